"""The form of the pages for people: their width, and blocks that can be pasted."""

import ast
from codeop import CommandCompiler
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from tests.documentation import PAGES, ROOT, blocks_of

WIDTH_MAX = 100

OTHER_PAGES = ["CHANGELOG.md", "CONTRIBUTING.md", "deploy/README.md", "benchmarks/README.md"]
PROSE = [*PAGES, *(ROOT / page for page in OTHER_PAGES)]


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_prose_wraps_at_100_columns(page: Path) -> None:
    lines = page.read_text().splitlines()
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    spans = [token.map for token in tokens if token.type == "paragraph_open" and token.map]

    wide = [
        number + 1 for first, end in spans for number in range(first, end) if len(lines[number]) > WIDTH_MAX
    ]

    assert wide == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_block_of_python_can_be_pasted_into_the_interpreter(page: Path) -> None:
    """A blank line ends a block there, and a block ends nowhere else."""
    for block in blocks_of(page):
        if block.language == "python":
            compile_command = CommandCompiler()
            compile_command.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            lines: list[str] = []
            for line in [*block.text.splitlines(), ""]:
                lines.append(line)
                if compile_command("\n".join(lines), block.place) is not None:
                    lines = []
            assert lines == [], block.place
