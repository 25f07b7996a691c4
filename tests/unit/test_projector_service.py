"""What the projector's process keeps up: a worker, and what it owns."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from tests.processes import DEADLINE_SECONDS

from runfold import ConfigurationError
from runfold.projector import service
from runfold.settings import Settings


class Logins:
    """Workers of which some are refused, by turns."""

    def __init__(self, *accepted: bool) -> None:
        self.turns = iter(accepted)
        self.works = asyncio.Event()

    @asynccontextmanager
    async def connect(self, *_: object) -> AsyncIterator[SimpleNamespace]:
        if not next(self.turns, True):
            raise ConfigurationError("Kafka refuses the login")
        yield SimpleNamespace(
            work=self.work,
            active_runs=0,
            backlog_runs=0,
            partitions=set(),
            is_assigned=False,
            events=0,
            quarantine=SimpleNamespace(
                counts=lambda: dict.fromkeys(service.get_args(service.QuarantineKind), 0)
            ),
        )

    async def work(self) -> None:
        self.works.set()
        await asyncio.sleep(0.05)
        raise ConfigurationError("Kafka refuses the login")


@pytest.fixture(autouse=True)
def _without_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def connect(*_: object) -> AsyncIterator[None]:
        yield

    async def current() -> str:
        return "e1"

    monkeypatch.setattr(service, "connect", connect)
    monkeypatch.setattr(service, "Editions", lambda _: SimpleNamespace(current_or_first=current))
    monkeypatch.setattr(service, "_RETRY_SECONDS", 0.01)


async def test_a_refused_login_at_the_start_ends_the_projector(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service, "connect_worker", Logins(False).connect)

    with pytest.raises(ExceptionGroup) as refused:
        await service.Projector(Settings()).project()

    assert refused.group_contains(ConfigurationError)


async def test_a_later_refusal_is_logged_and_the_projector_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    logins = Logins(True, False, False, True)
    monkeypatch.setattr(service, "connect_worker", logins.connect)
    projecting = asyncio.create_task(service.Projector(Settings()).project())
    async with asyncio.timeout(DEADLINE_SECONDS):
        for _ in range(2):
            await logins.works.wait()
            logins.works.clear()

    assert not projecting.done()
    projecting.cancel()
    await asyncio.wait([projecting])
    lines = [line for line in caplog.messages if "Kafka refuses the login; trying again in" in line]
    assert len(lines) >= 3


def worker(*partitions: int, is_assigned: bool = True) -> Any:
    return Mock(
        active_runs=0,
        backlog_runs=0,
        events=0,
        topics="topics",
        partitions=set(partitions),
        is_assigned=is_assigned,
        quarantine=SimpleNamespace(counts=Counter),
    )


def test_a_projector_without_partitions_hosts_no_tenants():
    projector, owned = service.Projector(Settings()), []
    for each in (worker(0, 1), worker(is_assigned=False), worker()):
        projector._worker = each
        projector._report()
        owned.append(projector._owned)

    assert owned == [("topics", {0, 1}), ("topics", {0, 1}), ("topics", set())]
