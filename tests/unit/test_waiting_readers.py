"""Waiting readers are woken by progress of their own, share a stream, and do without one."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.processes import DEADLINE_SECONDS

from runfold.query import waiting_readers as module
from runfold.query.waiting_readers import WaitingReaders
from runfold_schemas.errors import UnavailableError


class Streams:
    """A fake of `ProgressStore`, whose streams tell what a test has told them."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.told: asyncio.Queue[str | Exception | None] = asyncio.Queue()

    async def positions(self) -> AsyncGenerator[str | None, None]:
        self.opened += 1
        try:
            yield None
            while True:
                told = await self.told.get()
                if isinstance(told, Exception):
                    raise told
                yield told
        finally:
            self.closed += 1


class Looks:
    """What a reader looks for."""

    def __init__(self) -> None:
        self.count = 0
        self.found: str | None = None

    async def look(self) -> str | None:
        self.count += 1
        return self.found


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks after a pause would hide that nobody was woken."""
    for name in ("_PAUSE_SECONDS", "_PAUSE_SECONDS_MAX", "_LONG_PAUSE_SECONDS"):
        monkeypatch.setattr(module, name, 30.0)


def with_short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PAUSE_SECONDS", "_PAUSE_SECONDS_MAX"):
        monkeypatch.setattr(module, name, 0.002)


@pytest.fixture
def streams() -> Streams:
    return Streams()


@pytest.fixture
def edition(streams: Streams) -> Any:
    return SimpleNamespace(name="e", progress=streams)


@pytest.fixture
async def readers() -> AsyncIterator[WaitingReaders]:
    async with WaitingReaders() as readers:
        yield readers


def waiting(
    readers: WaitingReaders, edition: Any, looks: Looks, key: str = "a", *, seconds: float = 60
) -> asyncio.Task[str | None]:
    until = time.monotonic() + seconds
    return asyncio.create_task(readers.first(looks.look, edition, {key}, until=until))


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_is_there_needs_no_stream(readers: WaitingReaders, streams: Streams, edition: Any):
    looks = Looks()
    looks.found = "it"

    assert await waiting(readers, edition, looks) == "it"
    assert (looks.count, streams.opened) == (1, 0)


async def test_a_reader_is_woken_by_progress_of_its_own_only(
    readers: WaitingReaders, streams: Streams, edition: Any
):
    looks, others = Looks(), Looks()
    reader, other = waiting(readers, edition, looks), waiting(readers, edition, others, "b")
    await turns()
    before = looks.count, others.count
    looks.found = others.found = "it"
    streams.told.put_nowait("a")
    found = await asyncio.wait_for(reader, DEADLINE_SECONDS)
    await turns()

    assert found == "it"
    assert (looks.count, others.count) == (before[0] + 1, before[1])
    assert streams.opened == 1
    streams.told.put_nowait("b")
    assert await asyncio.wait_for(other, DEADLINE_SECONDS) == "it"


async def test_what_changed_while_the_stream_opened_is_not_missed(readers: WaitingReaders, edition: Any):
    looks = Looks()
    reader = waiting(readers, edition, looks)
    await asyncio.sleep(0)
    looks.found = "it"

    assert await asyncio.wait_for(reader, DEADLINE_SECONDS) == "it"


async def test_without_a_stream_readers_look_after_pauses(
    readers: WaitingReaders, streams: Streams, edition: Any, monkeypatch: pytest.MonkeyPatch
):
    with_short_pauses(monkeypatch)
    looks = Looks()
    reader = waiting(readers, edition, looks)
    await turns()
    streams.told.put_nowait(UnavailableError("MongoDB", reason="no change streams"))
    await turns()
    before = looks.count
    async with asyncio.timeout(DEADLINE_SECONDS):
        while looks.count == before:
            await asyncio.sleep(0.002)
    looks.found = "it"

    assert await asyncio.wait_for(reader, DEADLINE_SECONDS) == "it"


async def test_without_an_edition_readers_look_after_pauses(
    readers: WaitingReaders, monkeypatch: pytest.MonkeyPatch
):
    with_short_pauses(monkeypatch)
    looks = Looks()
    reader = waiting(readers, None, looks)
    await turns()
    looks.found = "it"

    assert await asyncio.wait_for(reader, DEADLINE_SECONDS) == "it"


async def test_a_reader_gives_up_in_time(readers: WaitingReaders, edition: Any):
    assert await waiting(readers, edition, Looks(), seconds=0.05) is None


async def test_a_stream_that_nobody_uses_is_closed_and_opened_again(
    readers: WaitingReaders, streams: Streams, edition: Any, monkeypatch: pytest.MonkeyPatch
):
    async def wait_and_leave() -> None:
        reader = waiting(readers, edition, Looks())
        await turns()
        reader.cancel()
        await asyncio.wait([reader])

    await wait_and_leave()
    opened = streams.opened
    with monkeypatch.context() as patched:
        patched.setattr(module, "_OPEN_SECONDS", 0.0)
        streams.told.put_nowait(None)
        await turns()
    closed = streams.closed
    await wait_and_leave()

    assert (opened, closed, streams.opened) == (1, 1, 2)
