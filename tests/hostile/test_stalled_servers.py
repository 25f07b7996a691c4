"""Servers that stop answering without closing a connection: the projector's readiness says so, and
everything goes on when they answer again.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.alerting import holding, samples
from tests.attacks import Stack, stack
from tests.processes import until
from tests.stalls import BUSY, NAMED_SECONDS, Measured, print_table

from runfold import UserMessage
from runfold.identity.key_log import key_topic
from runfold.identity.keys import ApiKeyRing
from runfold.local import LocalStack, Service
from runfold.log.compacted import Followed
from runfold.log.settings import LogSettings
from runfold.settings import Settings

STOPPED_SECONDS = 12.0


@pytest.fixture
async def servers_that_stop(tmp_path: Path) -> AsyncIterator[tuple[LocalStack, Stack]]:
    async with LocalStack(data_dir=tmp_path / "servers") as local:
        settings = Settings(kafka=local.kafka, mongo=local.mongo, session_timeout_seconds=20)
        async with stack(settings, tmp_path / "stack") as attacked:
            yield local, attacked


async def stopped(server: Service, attacked: Stack) -> Measured:
    """Stops a server for a while."""
    assert server.pid is not None

    health: dict[str, Any] = {}

    async def is_unready() -> bool:
        answer = await attacked.client.get(f"{attacked.projector_url}/health/ready")
        health.update(answer.json())
        return answer.status_code == 503 and bool(health.get("servers"))

    async def is_ready() -> bool:
        answer = await attacked.client.get(f"{attacked.projector_url}/health/ready")
        return answer.status_code == 200 and answer.json() == {"status": "ok"}

    began = time.monotonic()
    os.killpg(server.pid, signal.SIGSTOP)
    try:
        await until(is_unready, seconds=BUSY * NAMED_SECONDS, what="readiness without the server")
        named = time.monotonic() - began
        metrics = (await attacked.client.get(f"{attacked.projector_url}/metrics")).text
        print(health)
        await asyncio.sleep(STOPPED_SECONDS - named)
    finally:
        os.killpg(server.pid, signal.SIGCONT)
    assert all(server.name in state["server"] for state in health["servers"])
    assert "RunfoldServerAway" in holding({}, samples(metrics))
    continued = time.monotonic()
    await until(is_ready, what="readiness with the server")
    run = await attacked.runfold.open_run(agent_id="a")
    await run.publish(UserMessage(message="m"))
    await run.complete()
    return Measured(f"{server.name} does not answer", named, time.monotonic() - continued, "ready again")


async def test_servers_that_stop_answering(servers_that_stop: tuple[LocalStack, Stack]):
    local, attacked = servers_that_stop
    rows = []
    async with Followed(LogSettings(kafka=local.kafka), key_topic("runfold")) as keys:
        for server in (local.mongo_server, local.kafka_server):
            async with (
                # MongoDB's driver gives up a server 13 s after its last sign of life, so perhaps
                # within the pause. Then the worker begins anew, as after any outage.
                attacked.attacked(f"{server.name} stops", may_restart=True) as harm,
                longest_silence(keys) as silence,
            ):
                rows.append(await stopped(server, attacked))
            assert [line for line in harm.restarts if f"{server.name} is not available" not in line] == []
            if server is local.kafka_server:
                assert silence() > STOPPED_SECONDS - 2

        async def is_heard() -> bool:
            return keys.silent_seconds < STOPPED_SECONDS / 2

        await until(is_heard, what="an answer about the API keys")

    print_table(rows)
    assert all(row.named is not None and row.named < BUSY * NAMED_SECONDS for row in rows)


@asynccontextmanager
async def longest_silence(keys: Followed[ApiKeyRing]) -> AsyncIterator[Callable[[], float]]:
    """The longest time within the block for which Kafka said nothing of the keys, in seconds."""
    longest = 0.0

    async def measure() -> None:
        nonlocal longest
        while True:
            longest = max(longest, keys.silent_seconds)
            await asyncio.sleep(0.1)

    measuring = asyncio.create_task(measure())
    try:
        yield lambda: longest
    finally:
        measuring.cancel()
