"""The code of an earlier commit, run by the same interpreter as ours: its data and its services
have to work together with ours.
"""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

COMMIT = "b364bdba8dedbc337284e17615b49baf0e552d96"
"""The last commit before modules moved and sets of projections were called editions."""

ROOTS = ("schemas", "projections", "services")
_REPOSITORY = Path(__file__).parents[1]


def unpacked(folder: Path) -> str:
    """Puts the commit's packages into `folder` and gives the PYTHONPATH by which they are imported.

    If the clone lacks the commit, the test fails: a skipped test would prove nothing.
    """
    archive = subprocess.run(
        ["git", "archive", COMMIT, *ROOTS], cwd=_REPOSITORY, capture_output=True, check=False
    )
    if archive.returncode:
        pytest.fail(
            f"git cannot read commit {COMMIT[:7]}, with which this test compares: "
            f"{archive.stderr.decode().strip()}. In a shallow clone, `git fetch --unshallow` gets it;"
            " without git's history this test cannot run",
            pytrace=False,
        )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    roots = ":".join(str(folder / root) for root in ROOTS)
    _check_is_imported(folder, roots)
    return roots


def _check_is_imported(folder: Path, roots: str) -> None:
    """The editable installation of our own code must not come first."""
    names = "runfold_schemas, runfold_projections, runfold"
    files = subprocess.run(
        [sys.executable, "-c", f"import {names}\nfor each in {names}: print(each.__file__)"],
        env={"PYTHONPATH": roots},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len(files) == len(ROOTS)
    assert all(Path(file).is_relative_to(folder) for file in files), files
