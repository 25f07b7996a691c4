"""`runfold dev` as a process: what dies comes back, what was acknowledged is kept, and nothing is
left behind.
"""

import asyncio
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tests.documentation import PAGES, blocks_of
from tests.forking import runfold_process
from tests.processes import until

from runfold.local import free_port

START_SECONDS = 400
END_SECONDS = 120
PATIENCE = {"RUNFOLD_WAIT_TIMEOUT_SECONDS": "30", "RUNFOLD_ARCHIVE_AFTER_SECONDS": "1"}
"""Reads wait for a projector that has just come back. Ended runs are archived soon."""


async def test_services_that_die_come_back_and_data_outlives_the_stack(tmp_path: Path) -> None:
    data = tmp_path / ".runfold" / "dev"
    async with dev(data, ends_by=signal.SIGINT, code=130) as (said, api):
        run = {"run_id": "kept", "agent_id": "a"}
        assert (await api.post("/v1/runs", json=run)).status_code == 201
        assert await says(said, f"HTTP API    {api.base_url}".rstrip("/"))
        assert await says(said, f"its pages   {api.base_url}/docs".replace("//docs", "/docs"))
        assert await says(said, f"console     {api.base_url}")
        for name in (
            "Kafka       127.0.0.1:",
            "MongoDB     mongodb://127.0.0.1:",
            "export RUNFOLD_KAFKA=127.0.0.1:",
            f"RUNFOLD_SIGNING_KEYS={data / 'signing-keys.pem'}",
        ):
            assert await says(said, name)
        signing_keys = (data / "signing-keys.pem").read_text()
        for part in ("projector", "api"):
            for pid in started_in(data, f"serve {part}"):
                os.kill(pid, signal.SIGKILL)
        for part in ("projector", "api"):
            await until(lambda part=part: says(said, f"{part} died (killed by SIGKILL)"), what="the death")
            await until(
                lambda part=part: says(said, f"{part} is up again"), seconds=START_SECONDS, what="the return"
            )
        events = [{"type": "user_message", "data": {"message": "still there?"}}]
        sent = await api.post("/v1/runs/kept/events", json=events)
        newest = {"min_offset": sent.json()["positions"][0]["offset"]}
        ledger = await api.get("/v1/runs/kept/ledger", params=newest)
        assert ledger.json()["messages"][0]["parts"][0]["text"] == "still there?"
    assert started_in(data) == []

    back_up, restore, check = backup_commands()
    run_commands(back_up, tmp_path, os.environ)
    (data / "kafka").rename(tmp_path / "lost")
    run_commands(restore, tmp_path, os.environ)
    options = [f"--archive={tmp_path / 'archive'}"]
    async with dev(data, *options, ends_by=signal.SIGTERM, code=143) as (said, api):
        assert (await api.get("/v1/runs/kept/ledger", params=newest)).json() == ledger.json()
        printed = run_commands(check, tmp_path, os.environ | exported(said))
        assert "1 runs, 0 sessions and 0 memories compared with the log, 0 differences" in printed
        await api.post("/v1/runs/kept/status", json={"action": "complete"})

        async def is_archived() -> bool:
            run = (await api.get("/v1/runs/kept")).json()
            return run.get("archive", {}).get("status") == "archived"

        await until(is_archived, seconds=START_SECONDS, what="the archived run")

        async def is_counted() -> bool:
            return bool((await api.get("/v1/operations")).json()["archive"]["logs"] == 1)

        await until(is_counted, seconds=START_SECONDS, what="the archived log in the operations")
    assert started_in(data) == []
    assert (data / "signing-keys.pem").read_text() == signing_keys


def backup_commands() -> list[str]:
    """The blocks of the page for operators that need a stack of their own."""
    [page] = [page for page in PAGES if page.name == "operate.md"]
    return [block.text for block in blocks_of(page) if block.not_run == "backup"]


def run_commands(text: str, folder: Path, variables: Mapping[str, str]) -> str:
    path = f"{Path(sys.executable).parent}:{variables['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", text],
        cwd=folder,
        env={**variables, "PATH": path, "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=END_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def exported(said: list[str]) -> dict[str, str]:
    """The variables that the stack prints for commands in another terminal."""
    [line] = [line for line in said if "export RUNFOLD_KAFKA=" in line]
    words = shlex.split(line.partition("export ")[2])
    return dict(word.split("=", 1) for word in words if word.startswith("RUNFOLD_"))


async def test_a_port_that_is_taken_is_told_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        code, said = await refusal(tmp_path, f"--port={free_port()}", f"--kafka-port={taken}")

    assert code == 2
    assert said == (
        f"error: --kafka-port: port {taken} cannot be listened on (Address already in use):"
        " choose another one\n"
    )


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--mongo-port=99999"], 2, "error: --mongo-port: 99999 is not a port: choose one from 1 to 65535"),
        (["--kafka-port=0"], 2, "error: --kafka-port: 0 is not a port: choose one from 1 to 65535"),
        (["--port=65535"], 2, "error: --port: Input should be less than or equal to 65534"),
        (["--kafka-port=8081"], 2, "error: --kafka-port: 8081 is also the port of --port"),
        (["--data=README.md/x"], 1, "error: data cannot be stored in "),
    ],
)
async def test_an_option_that_makes_no_sense_is_one_line(
    tmp_path: Path, options: list[str], code: int, told: str
) -> None:
    if "--data" in options[0]:
        ports = {"": free_port(), "kafka-": free_port(), "mongo-": free_port()}
        options = [*options, *(f"--{part}port={port}" for part, port in ports.items())]

    ended, said = await refusal(tmp_path, *options)

    assert ended == code
    assert said.startswith(told)
    assert said.count("\n") == 1


async def refusal(data: Path, *options: str) -> tuple[int | None, str]:
    """The exit code and the errors of a `runfold dev` that ends by itself and starts nothing."""
    process = await runfold_process(
        *("dev", f"--data={data / 'new'}", *options),
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(END_SECONDS):
        _, errors = await process.communicate()
    assert not (data / "new").exists()
    return process.returncode, errors.decode()


@asynccontextmanager
async def dev(
    data: Path, *options: str, ends_by: signal.Signals, code: int
) -> AsyncIterator[tuple[list[str], httpx.AsyncClient]]:
    """`runfold dev` with its data in `data`, what it says, and a client of its API."""
    port = free_port(count=3)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "runfold.cli", "dev", f"--data={data}", f"--port={port}"),
        *(f"--kafka-port={free_port()}", f"--mongo-port={free_port()}", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | PATIENCE | {"PYTHONUNBUFFERED": "1"},
    )
    said: list[str] = []
    listening = asyncio.create_task(listen(process, said))
    try:

        async def is_up_or_over() -> bool:
            return process.returncode is not None or await says(said, "Ctrl-C stops everything")

        await until(is_up_or_over, seconds=START_SECONDS, what=f"the stack, which said {said},")
        assert process.returncode is None, said
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as api:
            yield said, api
        process.send_signal(ends_by)
        async with asyncio.timeout(END_SECONDS):
            assert await process.wait() == code
    finally:
        if process.returncode is None:
            process.kill()  # its children are on a leash
            await process.wait()
        await listening


async def listen(process: asyncio.subprocess.Process, said: list[str]) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        said.append(line.decode())  # noqa: PERF401 - each as it comes


async def says(said: list[str], text: str) -> bool:
    return any(text in line for line in said)


def started_in(data: Path, command: str = "") -> list[int]:
    """The processes that write into `data` and whose command line holds `command`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            output = str((folder / "fd" / "1").readlink())
        except OSError:
            continue  # it has ended meanwhile
        if output.startswith(str(data)) and command in arguments:
            found.append(int(folder.name))
    return found
