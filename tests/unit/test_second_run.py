"""`make test`: what failed by chance runs once more, and everything else is red at once."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.outcomes import Outcomes
from tests.run import slow_files

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 120

PASSES = "def test_that_passes():\n    pass\n"

FAILS_ONCE = """
from pathlib import Path

def test_that_fails_once():
    seen = Path("seen")
    first = not seen.exists()
    seen.touch()
    print("said before it failed")
    assert not first, "once"
"""

DIES_ONCE = """
import os
from pathlib import Path

def test_that_dies_once():
    if not Path("seen").exists():
        Path("seen").touch()
        os._exit(3)

def test_after_it():
    pass
"""

DIES = "import os\ndef test_that_dies():\n    os._exit(3)\n"

FAILING_SETUP_ONCE = """
from pathlib import Path
import pytest

@pytest.fixture
def server():
    if not Path("seen-by-a-setup").exists():
        Path("seen-by-a-setup").touch()
        raise OSError("the port is taken")

def test_with_a_server(server):
    pass
"""

FAILING_TEARDOWN = """
import pytest

@pytest.fixture(scope="session")
def server():
    yield
    raise OSError("it still runs")

def test_with_a_server(server):
    pass
"""

NEEDS_THE_TEST_BEFORE = """
from pathlib import Path

made = []

def test_that_makes_it():
    made.append(1)

def test_that_needs_it():
    first = not Path("seen").exists()
    Path("seen").touch()
    assert made and not first
"""

SKIPPED_THEN = """
from pathlib import Path
import pytest

def test_that_gives_up():
    if Path("seen").exists():
        pytest.skip("not now")
    Path("seen").touch()
    assert False
"""

COLLECTED_BY_CHANCE = """
import os
import pytest

@pytest.mark.parametrize("worker", [os.environ["PYTEST_XDIST_WORKER"]])
def test_with_a_name_by_chance(worker):
    pass
"""

MANY_FAIL = """
import pytest

@pytest.mark.parametrize("number", range(13))
def test_that_fails(number):
    assert False
"""

INTERRUPTED = "def test_with_ctrl_c():\n    raise KeyboardInterrupt\n"


class Ended(NamedTuple):
    code: int
    output: str

    @property
    def runs(self) -> int:
        return self.output.count("test session starts")

    @property
    def last_lines(self) -> list[str]:
        return [re.sub(r" in [\d.]+s.*| *=+ *", "", line) for line in self.output.splitlines()[-2:]]


def run(folder: Path, **files: str) -> Ended:
    """`tests.run` in a folder of these files, without plugins that they do not need."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p xdist\n")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.run"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=DEADLINE_SECONDS,
    )
    return Ended(ended.returncode, ended.stdout)


def test_a_green_suite_runs_once(tmp_path: Path) -> None:
    ended = run(tmp_path, test_one=PASSES, test_two=PASSES)

    assert (ended.code, ended.runs) == (0, 1)
    assert ended.last_lines == ["FLAKY: 0", "2 passed"]


def test_what_does_not_fail_again_is_flaky_and_shown_in_full(tmp_path: Path) -> None:
    ended = run(tmp_path, test_one=FAILS_ONCE, test_two=PASSES, test_setup=FAILING_SETUP_ONCE)

    assert (ended.code, ended.runs) == (0, 2)
    shown = ended.output.partition("FLAKY test_one.py::test_that_fails_once\n")[2]
    assert "AssertionError: once" in shown
    assert "said before it failed" in shown
    assert "FLAKY test_setup.py::test_with_a_server\n" in ended.output
    assert ended.last_lines == ["FLAKY: 2", "3 passed"]


def test_a_failure_that_comes_again_is_red(tmp_path: Path) -> None:
    ended = run(tmp_path, test_one=FAILS_ONCE, test_two="def test_that_fails():\n    assert False\n")

    assert (ended.code, ended.runs) == (1, 2)
    assert ended.last_lines == ["FLAKY: 1", "1 failed, 1 passed"]


def test_the_whole_file_of_a_failure_runs_again(tmp_path: Path) -> None:
    ended = run(tmp_path, test_one=NEEDS_THE_TEST_BEFORE)

    assert (ended.code, ended.runs) == (0, 2)
    assert ended.last_lines == ["FLAKY: 1", "2 passed"]


def test_a_failure_that_is_skipped_then_is_red(tmp_path: Path) -> None:
    ended = run(tmp_path, test_one=SKIPPED_THEN)

    assert (ended.code, ended.runs) == (1, 2)
    assert ended.last_lines == ["FLAKY: 0", "1 skipped"]


@pytest.mark.parametrize("dying", [DIES_ONCE, DIES], ids=["once", "always"])
def test_a_worker_that_dies_is_red_at_once(tmp_path: Path, dying: str) -> None:
    ended = run(tmp_path, test_one=dying, test_two=PASSES)

    assert (ended.code, ended.runs) == (1, 1)
    assert re.search(r"^ERROR worker gw\d died", ended.output, flags=re.MULTILINE)


def test_a_test_that_kills_the_second_run_is_red(tmp_path: Path) -> None:
    dies_then = FAILS_ONCE.replace("assert not first", "import os; first or os._exit(0); assert not first")

    ended = run(tmp_path, test_one=dies_then)

    assert (ended.code, ended.runs) == (1, 2)
    assert "ERROR pytest ended with exit code 0\n" in ended.output


def test_a_failing_teardown_is_red_at_once(tmp_path: Path) -> None:
    ended = run(tmp_path, test_one=FAILING_TEARDOWN)

    assert (ended.code, ended.runs) == (1, 1)
    assert "ERROR teardown failed: test_one.py::test_with_a_server\n" in ended.output


def test_a_broken_import_is_red_at_once(tmp_path: Path) -> None:
    ended = run(tmp_path, test_one="import no_such_module\n", test_two=PASSES)

    assert ended.code != 0
    assert ended.runs == 1
    assert "ERROR collection failed: test_one.py\n" in ended.output


def test_workers_that_collect_different_tests_are_red_at_once(tmp_path: Path) -> None:
    ended = run(tmp_path, test_one=COLLECTED_BY_CHANCE)

    assert ended.code != 0
    assert ended.runs == 1
    assert "ERROR the workers collected different tests\n" in ended.output


def test_more_failures_than_chance_makes_are_red_at_once(tmp_path: Path) -> None:
    ended = run(tmp_path, test_one=MANY_FAIL)

    assert (ended.code, ended.runs) == (1, 1)
    assert ended.last_lines == ["FLAKY: 0", "13 failed"]


def test_an_interruption_is_red_at_once(tmp_path: Path) -> None:
    ended = run(tmp_path, test_one=INTERRUPTED)

    assert (ended.code, ended.runs) == (2, 1)


def test_a_suite_without_tests_is_red(tmp_path: Path) -> None:
    ended = run(tmp_path)

    assert (ended.code, ended.runs) == (5, 1)
    assert ended.last_lines == ["FLAKY: 0", "no tests ran"]


def test_files_that_take_too_long_are_named_the_slowest_first() -> None:
    seconds = {"a.py::one": 40.0, "b.py::one": 90.0, "a.py::two": 40.0, "c.py::one": 60.0}

    assert slow_files(Outcomes(seconds=seconds)) == [("b.py", 90.0), ("a.py", 80.0)]
