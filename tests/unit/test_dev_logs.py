"""The logs of services in the terminal of `runfold dev`, and their files."""

from pathlib import Path

import pytest

from runfold.cli.dev_logs import DevLogs

ENTRIES = """2026-11-23 07:00:00,000 INFO runfold.a: quiet
2026-11-23 07:00:00,001 ERROR runfold.a: loud
Traceback (most recent call last):
ValueError: no
2026-11-23 07:00:00,002 INFO runfold.a: quiet again
a line of another program
2026-11-23 07:00:00,003 WARNING runfold.b: hot"""


@pytest.mark.parametrize("is_verbose", [False, True])
def test_warnings_and_errors_are_shown_or_everything(tmp_path: Path, is_verbose: bool):
    path, said = tmp_path / "api.log", []
    path.write_text("2026-11-22 07:00:00,000 ERROR runfold.a: before the start\n")
    logs = DevLogs({"api": path}, [tmp_path / "missing"], say=said.append, is_verbose=is_verbose)
    for part in (ENTRIES[:100], ENTRIES[100:], "\n"):
        with path.open("a") as file:
            file.write(part)
        logs.look()

    lines = [f"api: {line}" for line in ENTRIES.splitlines()]
    assert said == (lines if is_verbose else [*lines[1:4], lines[6]])


def test_a_long_file_is_copied_and_emptied_and_three_older_ones_are_kept(tmp_path: Path):
    path, said = tmp_path / "api.log", []
    logs = DevLogs({"api": path}, [], say=said.append, is_verbose=True, bytes_max=3)
    with path.open("a") as service:
        for number in range(5):
            service.write(f"line {number}\n")
            service.flush()
            logs.look()

    assert path.read_text() == ""
    assert {each.name: each.read_text() for each in tmp_path.iterdir() if each != path} == {
        "api.log.1": "line 4\n",
        "api.log.2": "line 3\n",
        "api.log.3": "line 2\n",
    }
    assert said == [f"api: line {number}" for number in range(5)]
