"""What ARCHITECTURE.md and the other pages say about the tree, held against the tree itself and the
import contracts.
"""

import re
import tomllib
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

SERVICES = ROOT / "services" / "runfold"
PACKAGES = (ROOT / "schemas" / "runfold_schemas", ROOT / "projections" / "runfold_projections", SERVICES)

COLUMNS_MAX = 100

MANIFESTS = ROOT / "deploy" / "kubernetes"

MADE_LATER = {".runfold/", ".venv/bin/"}
"""Folders that are named in prose, and exist where Runfold was run."""


def test_the_architecture_has_the_layers_of_the_contract_and_of_the_tree():
    rows = re.findall(r"^\| (\d+) \| `([\w.]+)/?` \| \S", ARCHITECTURE, flags=re.MULTILINE)
    in_tree = {path.name for path in SERVICES.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))}
    [contract] = [one for one in PROJECT["tool"]["importlinter"]["contracts"] if one.get("exhaustive")]
    layers = [set(re.findall(r"\w+", layer)) for layer in contract["layers"]]

    shown = [
        {name.removesuffix(".py") for number, name in rows if int(number) == layer}
        for layer in range(1, len(layers) + 1)
    ]

    assert shown == layers
    assert sorted(name for _, name in rows) == sorted(in_tree - {"__init__.py"})
    assert [int(number) for number, _ in rows] == sorted(int(number) for number, _ in rows)


@pytest.mark.parametrize("package", PACKAGES[:2], ids=lambda package: package.name)
def test_the_architecture_names_every_module_of_the_pure_packages(package: Path):
    place = package.relative_to(ROOT)
    table = ARCHITECTURE.partition(f"| in `{place}/` |")[2].partition("\n\n")[0]
    in_tree = {path.name for path in package.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))}

    named = [name.strip("/") for row in table.splitlines() for name in _code(row.partition(" | ")[0])]

    assert sorted(named) == sorted(in_tree - {"__init__.py"})


@pytest.mark.parametrize(
    "page",
    ["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md", "deploy/README.md", "benchmarks/README.md"],
)
def test_every_path_that_is_named_in_prose_exists(page: str):
    path = ROOT / page
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if ":" not in link]
    named = {one for code in _code(text) for one in _paths(code)} - MADE_LATER
    folders = (ROOT, path.parent, *PACKAGES, MANIFESTS, MANIFESTS / "base")

    missing = [link for link in links if not (path.parent / link).exists()]
    missing += [name for name in sorted(named) if not any((folder / name).exists() for folder in folders)]

    assert missing == []


def test_every_name_of_code_in_the_architecture_is_in_the_code():
    code = "\n".join(path.read_text() for package in PACKAGES for path in package.rglob("*.py"))
    words = set(re.findall(r"\w+", code))

    named = {
        word
        for span in _code(ARCHITECTURE)
        if re.fullmatch(r"\w+(\.\w+)*", span) and not _paths(span)
        for word in span.split(".")
    }

    assert named - words == set()


def test_the_architecture_wraps():
    lines = ARCHITECTURE.splitlines()

    assert [line for line in lines if len(line) > COLUMNS_MAX and not line.startswith("|")] == []


def _code(text: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`\n]+)`", text)


def _paths(code: str) -> list[str]:
    """The files and folders that a piece of code names: `a/{b,c}.py` names two."""
    if not re.fullmatch(r"[\w./{},-]+(/|\.(py|md|json|toml|ya?ml|txt))", code) or code.startswith("/"):
        return []
    parts = [part.split(",") for part in re.split(r"[{}]", code)]
    return ["".join(choice) for choice in product(*parts)]
