"""What tests start ends with them, however they end."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from uuid import uuid4

from tests.processes import START_SECONDS, until

from runfold.local import Service

ROOT = Path(__file__).parents[2]

SUITE = """
import asyncio, json, os, tempfile
from pathlib import Path

from tests.forking import runfold_process

async def test_that_hangs(kafka, mongo, tmp_path, request):
    (tmp_path / "kept").write_text("x")
    service = await runfold_process("serve", "projector", env=os.environ | {
        "RUNFOLD_KAFKA": kafka, "RUNFOLD_MONGO": mongo,
    })
    draft = Path(os.environ["RUNFOLD_TEST_READY"]).with_suffix(".draft")
    draft.write_text(json.dumps([os.getpid(), service.pid]))
    draft.rename(os.environ["RUNFOLD_TEST_READY"])
    await asyncio.sleep(600)
"""


async def test_nothing_is_left_of_tests_that_are_killed(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as sessions:
        for killed, number in (
            ("controller", signal.SIGTERM),
            ("controller", signal.SIGKILL),
            ("worker", signal.SIGKILL),
        ):
            folder = tmp_path / f"{killed}-{number}"
            folder.mkdir()
            sessions.create_task(check_nothing_is_left(folder, killed, number))


async def check_nothing_is_left(folder: Path, killed: str, number: signal.Signals) -> None:
    suite, ready = folder / "test_hang.py", folder / "ready"
    suite.write_text(SUITE)
    temporary = Path(tempfile.mkdtemp())  # the path of a socket is short
    mark = f"RUNFOLD_TEST_MARK={uuid4().hex}"
    variables = dict([mark.split("=")], TMPDIR=str(temporary), RUNFOLD_TEST_READY=str(ready))
    pytest_ = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-n", "1", "--max-worker-restart=0"]
    options = [f"--config-file={ROOT / 'pyproject.toml'}", f"--rootdir={ROOT}", "-p", "no:cacheprovider"]

    async def hangs(_: Service) -> None:
        await until(lambda: exists(ready), what="the test that hangs", seconds=START_SECONDS)

    session = Service(
        "tests", [*pytest_, *options, str(suite)], ready=hangs, log=folder / "log", env=variables
    )
    try:
        await session.start()
        worker, service = json.loads(ready.read_text())
        assert {session.pid, worker, service} <= set(marked(mark))
        databases = databases_of(marked(mark))
        os.kill(session.pid if killed == "controller" else worker, number)
        await until(lambda: is_over(mark), what="the end of all processes", seconds=START_SECONDS)
        if killed == "controller":  # otherwise it ends in order, and keeps the folder for who looks why
            await until(lambda: is_empty(temporary), what="the end of the session's folder")
    finally:
        await session.kill()

    assert [database for database in databases if database.exists()] == []


def marked(mark: str) -> list[int]:
    """The processes with this variable."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue  # it has just ended
    return found


def databases_of(processes: list[int]) -> list[Path]:
    """The folders in which those that are a mongod keep their data."""
    words = [word for each in processes for word in Path(f"/proc/{each}/cmdline").read_text().split("\0")]
    return [Path(word.partition("=")[2]) for word in words if word.startswith("--dbpath=")]


async def exists(path: Path) -> bool:
    return path.exists()


async def is_over(mark: str) -> bool:
    return not marked(mark)


async def is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())
