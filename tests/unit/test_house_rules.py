"""What we promise about the tree itself: documented settings and commands, one set of Kafka
settings, small files.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from inspect import signature
from itertools import chain
from pathlib import Path

import prometheus_client
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.servers import image
from typer.testing import CliRunner

import runfold.api.app
import runfold.archiver.service
import runfold.projector.service
import runfold.tracer.service
from runfold.cli.program import app
from runfold.local.kafka import SETTINGS
from runfold.local.kafka_jars import KAFKA_VERSION
from runfold.settings import Settings
from runfold_schemas.topics import DEAD_LETTER_BYTES_MAX, PARTITIONS_DEFAULT

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
PAGES = (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
MAKEFILE = (ROOT / "Makefile").read_text()
DEPLOYING = (ROOT / "deploy" / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

SERVICES = ROOT / "services" / "runfold"
PACKAGES = (ROOT / "schemas" / "runfold_schemas", ROOT / "projections" / "runfold_projections", SERVICES)


LINES_MAX = 450
TEST_LINES_MAX = 500

RELIED_ON = {
    "auto.create.topics.enable",
    "message.max.bytes",
    "replica.fetch.max.bytes",
    "replica.fetch.response.max.bytes",
    "controller.quorum.append.linger.ms",
    "log.index.size.max.bytes",
}
"""What deploy/README.md gives a reason for, and a single broker needs as much as a cluster."""

LISTENERS = {"listener.security.protocol.map"}
"""What differs between the stacks because their addresses do."""

VARIABLES_OF_TESTS = {
    "RUNFOLD_TEST_KAFKA",
    "RUNFOLD_TEST_MONGO",
    "RUNFOLD_TEST_SEED",
    "RUNFOLD_TEST_ROUNDS",
    "RUNFOLD_CONVERSATIONS",
}

FOR_SERVERS = {SERVICES / "log" / "catalog_group.py", SERVICES / "access" / "direct.py"}
"""Modules that need more than others of their folder: FastStream, and all of the services."""

ONLY_ALLOWED = """
import sys
from importlib import import_module

allowed, modules = [set(argument.split()) for argument in sys.argv[1:]]

class Blocked:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in allowed and top not in sys.stdlib_module_names and not top.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"{name} is not among the dependencies that are allowed", name=name)

sys.meta_path.insert(0, Blocked())
for module in sorted(modules):
    import_module(module)
"""

OURS = {"runfold", "runfold_projections", "runfold_schemas"}
BASE = OURS | {
    *("aiokafka", "async_timeout", "packaging", "typing_extensions"),
    *("pydantic", "pydantic_core", "annotated_types", "typing_inspection"),
}
HTTPX = {"httpx", "httpcore", "h11", "anyio", "sniffio", "idna", "certifi"}

HELP = f"""{ONLY_ALLOWED}
import runfold.cli

sys.argv = ["runfold", "--help"]
runfold.cli.main()
"""


def test_every_setting_is_in_the_table_of_settings_with_its_default():
    rows = {
        f"| `RUNFOLD_{name.upper()}` | {_default(name, field.default)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    }

    assert rows <= set(DEPLOYING.splitlines())


def test_every_variable_that_is_named_anywhere_exists():
    known = {f"RUNFOLD_{name.upper()}" for name in Settings.model_fields} | VARIABLES_OF_TESTS
    texts = [ROOT / "docker-compose.yml", *ROOT.glob("*.md"), *PAGES, *(ROOT / "deploy").rglob("*")]

    for path in texts:
        if path.is_file():
            named = set(re.findall(r"RUNFOLD_[A-Z_]*[A-Z]", path.read_text()))
            assert named <= known, f"{path.relative_to(ROOT)} names {named - known}"


def test_every_command_is_in_the_documentation():
    text = "\n".join(page.read_text() for page in PAGES)
    commands = list(_commands())

    assert len(commands) > 10
    for words, _ in commands:
        name = " ".join(words)
        assert re.search(rf"(`|\n)runfold {name}\b", text), name


def test_every_command_and_every_option_has_a_help():
    for words, callback in _commands():
        shown = CliRunner().invoke(app, [*words, "--help"])
        assert shown.exit_code == 0
        assert " ".join((callback.__doc__ or "").split()[:3]) in shown.output
        for parameter in signature(callback).parameters.values():
            assert parameter.annotation.__metadata__[0].help, parameter


def test_every_command_has_an_example_and_says_what_it_needs():
    for words, callback in _commands():
        shown = CliRunner().invoke(app, [*words, "--help"]).output
        assert f"Example: runfold {' '.join(words)}" in shown
        assert re.search(r"^ *Needs ", shown, flags=re.MULTILINE), callback


def test_every_metric_is_in_the_table_of_metrics():
    assert runfold.api
    assert runfold.projector.service
    assert runfold.tracer.service
    assert runfold.archiver.service
    names = {
        f"{metric.name}_total" if metric.type == "counter" else metric.name
        for metric in prometheus_client.REGISTRY.collect()
        if metric.name.startswith("runfold_")
    }

    assert names == set(re.findall(r"^\| `(runfold_\w+)` \|", DEPLOYING, flags=re.MULTILINE))


def test_the_kafka_of_compose_is_set_as_that_of_the_local_stack():
    compose = {
        name.lower().replace("_", "."): value.strip()
        for name, value in re.findall(r'^ +KAFKA_([A-Z_]+): "?([^"#\n]+)', COMPOSE, flags=re.MULTILINE)
    }

    assert compose.keys() >= RELIED_ON
    both = compose.keys() & SETTINGS.keys() - LISTENERS
    assert {name: compose[name] for name in both} == {name: SETTINGS[name] for name in both}


def test_the_first_key_has_the_same_scopes_everywhere():
    texts = [ROOT / "docker-compose.yml", *ROOT.glob("docs/*.md"), *(ROOT / "deploy").rglob("*.*")]
    commands = [
        " ".join(command.split())
        for text in texts
        if text.is_file()
        for command in re.findall(r"keys add\s+admin((?:\s+--scope \w+)+)", text.read_text())
    ]

    assert len(commands) >= 4
    assert set(commands) == {"--scope administer --scope read"}


def test_what_the_design_relies_on_has_its_value_and_reason_in_the_deployment_page():
    for name in RELIED_ON:
        assert f"`{name}`" in DEPLOYING
    assert int(SETTINGS["message.max.bytes"]) >= DEAD_LETTER_BYTES_MAX
    assert int(SETTINGS["replica.fetch.max.bytes"]) >= DEAD_LETTER_BYTES_MAX
    assert f"{PARTITIONS_DEFAULT} partitions or `RUNFOLD_PARTITIONS`, `compact`" in DEPLOYING


def test_compose_and_tests_run_the_same_servers():
    assert image("apache/kafka").partition("@")[0] == f"apache/kafka:{KAFKA_VERSION}"
    assert image("mongo").partition("@")[0] == "mongo:8.0"


def test_a_script_names_the_images_of_others_by_their_digests(tmp_path: Path):
    places = ("docker-compose.yml", "deploy/Dockerfile", "deploy/pin.sh")
    for place in places:
        (tmp_path / place).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / place, tmp_path / place)
    docker, digest = tmp_path / "docker", f"sha256:{'7' * 64}"
    docker.write_text(f"#!/bin/sh\necho {digest}\n")
    docker.chmod(0o700)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"

    for _ in range(2):  # a second time, new digests stand in the place of the old ones
        subprocess.run([tmp_path / "deploy" / "pin.sh"], check=True, env={"PATH": path})

    compose, dockerfile, _ = ((tmp_path / place).read_text() for place in places)
    assert compose.replace(f"@{digest}", "") == COMPOSE
    assert dockerfile.replace(f"@{digest}", "") == (ROOT / "deploy" / "Dockerfile").read_text()
    pinned = rf"(?:image: |ARG PYTHON=)\S+@{digest}\n"
    assert (len(re.findall(pinned, compose)), len(re.findall(pinned, dockerfile))) == (2, 1)


def test_the_image_and_its_sbom_have_the_same_packages():
    packages = re.search(r"^IMAGE := (.+)$", MAKEFILE, flags=re.MULTILINE)[1]

    assert packages in (ROOT / "deploy" / "Dockerfile").read_text()


def test_what_is_installed_has_a_version_and_hashes_and_comes_from_no_named_place():
    text = (ROOT / "requirements.txt").read_text()
    packages = [block for block in re.split(r"(?<!\\)\n", text) if block]

    assert "://" not in text
    assert len(packages) > 150
    for package in packages:
        assert re.fullmatch(r"\S+==\S+( ; [^\\]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+", package), package


def test_what_the_project_asks_for_is_in_the_list_of_versions():
    groups = PROJECT["dependency-groups"]
    asked = [
        *PROJECT["project"]["dependencies"],
        *chain(*PROJECT["project"]["optional-dependencies"].values()),
        *chain(*groups.values()),
    ]
    listed = dict(
        line.split(" ")[0].split("==")
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if "==" in line
    )

    for requirement in map(Requirement, asked):
        name = canonicalize_name(requirement.name)
        assert requirement.specifier.contains(listed[name]), f"{requirement}: run `make lock`"
    assert set(re.search(r"addprefix --group ,([\w ]+)\)", MAKEFILE)[1].split()) == set(groups)


def test_make_test_runs_every_folder_of_tests_once():
    folders = sorted({str(file.parent.relative_to(ROOT)) for file in (ROOT / "tests").glob("*/test_*.py")})

    assert sorted(PROJECT["tool"]["pytest"]["ini_options"]["testpaths"]) == folders


def test_agents_install_pydantic_and_aiokafka_alone():
    names = {re.split(r"[^\w-]", one)[0] for one in PROJECT["project"]["dependencies"]}

    assert names == {"aiokafka", "pydantic"}


@pytest.mark.parametrize(
    ("places", "allowed"),
    [
        (("__init__.py", "ids.py", "stores.py", "sync.py", "client", "log", *OURS - {"runfold"}), BASE),
        (("documents", "remote", "access"), BASE | HTTPX),
    ],
    ids=["the client", "the clients of the HTTP API"],
)
def test_no_other_dependencies_are_needed_to_import(places: tuple[str, ...], allowed: set[str]):
    modules = {module for place in places for module in _modules(place)}
    assert modules

    done = _run(ONLY_ALLOWED, allowed, modules)

    assert done.returncode == 0, done.stderr


def test_without_its_packages_the_command_line_says_in_a_line_how_to_install_them():
    done = _run(HELP, BASE, ["runfold"])

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("run pip install 'runfold[server]'\n")


@pytest.mark.parametrize(
    ("folder", "lines_max"),
    [
        ("schemas", LINES_MAX),
        ("projections", LINES_MAX),
        ("services", LINES_MAX),
        ("tests", TEST_LINES_MAX),
    ],
)
def test_no_file_is_longer_than_a_reader_bears(folder: str, lines_max: int):
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in (ROOT / folder).rglob("*.py")
    }

    assert len(lines) > 5
    assert {name: count for name, count in lines.items() if count > lines_max} == {}


def test_every_module_says_what_it_is_for():
    for folder in ("schemas", "projections", "services", "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            if text.strip():
                assert text.startswith('"""'), path.relative_to(ROOT)


def _modules(place: str) -> Iterator[str]:
    """The modules of a file or folder of the services, or of another package, as they are
    imported.
    """
    path = SERVICES / place
    if not path.exists():
        [path] = [package for package in PACKAGES if package.name == place] or [path]
    for file in [path] if path.suffix else path.rglob("*.py"):
        if file.exists() and file not in FOR_SERVERS:
            steps = file.relative_to(next(one.parent for one in PACKAGES if file.is_relative_to(one)))
            yield ".".join(steps.with_suffix("").parts).removesuffix(".__init__")


def _run(program: str, allowed: Iterable[str], modules: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Runs the program in a process that finds the allowed packages alone."""
    return subprocess.run(
        [sys.executable, "-I", "-c", program, " ".join(allowed), " ".join(modules)],
        capture_output=True,
        text=True,
        check=False,
    )


def _commands() -> Iterator[tuple[list[str], Callable[..., object]]]:
    """Each command as it is called, those of groups too, and what it calls."""
    groups = [([], app), *(([group.name], group.typer_instance) for group in app.registered_groups)]
    for before, group in groups:
        for command in group.registered_commands:
            assert command.callback is not None
            yield [*before, command.name or command.callback.__name__], command.callback


def _default(name: str, value: object) -> str:
    if name == "database":
        return "the prefix"
    return "none" if value is None else f"`{value}`"
