"""`runfold serve projector --workers N`: several projectors under one command."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.processes import environment, projections, reaches, until

from runfold import Runfold, UserMessage
from runfold.local import free_port, ready_url
from runfold.settings import Settings

READY_SECONDS = 240


@pytest.fixture
def settings(own_settings) -> Settings:
    return own_settings(session_timeout_seconds=6, worker_id="machine")


async def test_two_workers_share_the_runs_and_one_that_is_killed_returns(settings: Settings) -> None:
    port = free_port()
    command = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "runfold.cli", "serve", "projector", "--port", str(port), "--workers", "2"),
        env=environment(settings),
    )
    try:
        async with asyncio.timeout(READY_SECONDS):
            await _ready(port)
            first, second = _children(command.pid)
            await _publish_and_fold(settings)

            os.kill(second, signal.SIGKILL)

            await until(lambda: _is_replaced(command.pid, second), what="another worker")
            await _ready(port)
            await _publish_and_fold(settings)
            assert first in _children(command.pid)
        workers = _children(command.pid)
        command.terminate()

        assert await asyncio.wait_for(command.wait(), READY_SECONDS) == 128 + signal.SIGTERM
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    finally:
        if command.returncode is None:
            command.kill()
            await command.wait()


async def test_a_worker_that_cannot_start_ends_the_command(settings: Settings) -> None:
    port = free_port()
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", port + 2)
    command = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "runfold.cli", "serve", "projector", "--port", str(port), "--workers", "2"),
        env=environment(settings),
    )
    try:
        assert await asyncio.wait_for(command.wait(), READY_SECONDS) == 3
    finally:
        taken.close()
        if command.returncode is None:
            command.kill()
            await command.wait()


async def test_only_the_projector_has_workers(settings: Settings) -> None:
    command = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "runfold.cli", "serve", "api", "--workers", "2"),
        env=environment(settings),
        stderr=asyncio.subprocess.PIPE,
    )

    _, errors = await command.communicate()

    assert command.returncode == 2
    assert "only the projector has workers" in errors.decode()


async def _ready(port: int) -> None:
    for number in (1, 2):
        await ready_url(f"http://127.0.0.1:{port + number}/health/ready")(None)


async def _publish_and_fold(settings: Settings) -> None:
    async with Runfold.of(settings.log()) as runfold, projections(settings) as stored:
        runs = [await runfold.open_run(agent_id="desk") for _ in range(8)]
        offsets = [(await run.publish(UserMessage(message="hello"))).offset for run in runs]
        for run, offset in zip(runs, offsets, strict=True):
            await until(lambda run=run, offset=offset: reaches(stored, run, offset), what="the fold")


async def _is_replaced(pid: int, worker: int) -> bool:
    children = _children(pid)
    return len(children) == 2 and worker not in children


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]
