"""What we promise about how the tree is written."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_helper_and_fixture_of_the_tests_says_what_it_returns():
    helpers = [
        (path, node)
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("test_")
    ]
    untyped = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path, node in helpers
        if node.returns is None
    ]

    assert len(helpers) > 100
    assert untyped == []
