"""Quiet partitions whose publishers announce records: nothing waits for them, and what nobody
announces is found all the same.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import pytest
from tests.processes import soonest, until
from tests.tails import Appender, TailReader, create_topics

from runfold.log.fetch_session import FetchSession
from runfold.log.hot_and_cold import HotAndCold, Pace, runs_pace
from runfold_schemas.topics import Partition

QUIET = 30
"""More partitions than a request names without a session."""

LOOK_SECONDS = 2.0
CALM = Pace(hot_seconds=0.2, cold_wait_ms=int(1000 * LOOK_SECONDS), is_announced=True, restless_seconds=5)
RARE = replace(CALM, cold_wait_ms=60_000)
"""No look is due within a test."""


@pytest.fixture(scope="module")
async def appender(kafka: str) -> AsyncIterator[Appender]:
    async with Appender.connect(kafka, f"t{uuid4().hex[:8]}") as appender:
        yield appender


@pytest.fixture
async def quiet(
    request: pytest.FixtureRequest, kafka: str, prefix: str
) -> AsyncIterator[tuple[TailReader, list[Partition]]]:
    """A tail whose partitions are all quiet."""
    pace = getattr(request, "param", CALM)
    places = [Partition(f"{prefix}.run.{number}", 0) for number in range(QUIET)]
    await create_topics(kafka, [at.topic for at in places])
    async with TailReader.connect(kafka, pace=pace) as reader:
        for at in places:
            reader.follow(at)
        await _are_cold(reader, places)
        yield reader, places


def _noted_waits(reader: TailReader, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The waits of the fetches of this reader, from now on. A process may have other readers."""
    waits: list[int] = []
    fetch = FetchSession.fetch

    async def noted(session: FetchSession, wait_ms: int) -> object:
        brokers = reader.tail._placing.brokers.values()
        if any(session in (broker.hot, *broker.colds) for broker in brokers):
            waits.append(wait_ms)
        return await fetch(session, wait_ms)

    monkeypatch.setattr(FetchSession, "fetch", noted)
    return waits


def _broker(reader: TailReader) -> HotAndCold:
    [broker] = reader.tail._placing.brokers.values()
    return broker


async def _are_cold(reader: TailReader, places: list[Partition]) -> None:
    async def are_cold() -> bool:
        brokers = reader.tail._placing.brokers.values()
        return any(not len(broker.hot) and all(at in broker for at in places) for broker in brokers)

    await until(are_cold, what=f"the quiet of {len(places)} partitions")


async def test_no_fetch_waits_for_quiet_partitions(
    quiet: tuple[TailReader, list[Partition]], monkeypatch: pytest.MonkeyPatch
):
    reader, _ = quiet
    waits = _noted_waits(reader, monkeypatch)
    began = time.monotonic()
    await asyncio.sleep(2.5 * LOOK_SECONDS)

    assert 1 <= len(waits) <= (time.monotonic() - began) / LOOK_SECONDS + 1
    assert set(waits) == {0}


@pytest.mark.parametrize("quiet", [RARE], indirect=True)
async def test_an_announced_record_arrives_at_once(
    quiet: tuple[TailReader, list[Partition]], appender: Appender
):
    reader, places = quiet
    others = iter(places)

    async def arrives() -> float:
        at = next(others)
        await appender.append(at)
        reader.tail.expect(at)
        return await reader.has({at: 1})

    assert await soonest(arrives, seconds=3) < 3


async def test_after_a_record_that_nobody_announced_fetches_wait_for_the_next_ones(
    quiet: tuple[TailReader, list[Partition]], appender: Appender
):
    reader, places = quiet
    await appender.append(places[0])
    assert await reader.has({places[0]: 1}) < 10 * LOOK_SECONDS

    others = iter(places[1:])

    async def arrives() -> float:
        at = next(others)
        await appender.append(at)
        return await reader.has({at: 1})

    assert await soonest(arrives, seconds=0.3) < 0.3


@pytest.mark.parametrize("quiet", [RARE], indirect=True)
async def test_partitions_leave_the_hot_session_while_others_stay_quiet(
    quiet: tuple[TailReader, list[Partition]], appender: Appender
):
    reader, places = quiet
    await appender.append(places[0])
    reader.tail.expect(places[0])
    await reader.has({places[0]: 1})

    async def is_quiet() -> bool:
        return not len(_broker(reader).hot)

    await until(is_quiet, what="the end of the hot session")


async def test_hot_fetches_wait_longer_while_no_record_comes(
    kafka: str, prefix: str, appender: Appender, monkeypatch: pytest.MonkeyPatch
):
    at = Partition(f"{prefix}.run.hot", 0)
    await create_topics(kafka, [at.topic])
    async with TailReader.connect(kafka, pace=Pace(hot_seconds=3600)) as reader:
        waits = _noted_waits(reader, monkeypatch)
        reader.follow(at)

        async def are_long() -> bool:
            return waits[-2:] == [100, 100]

        await until(are_long, what="fetches that wait longest")
        waits.clear()
        await appender.append(at)
        await reader.has({at: 1})

        async def are_long_again() -> bool:
            return 20 in waits and waits[-2:] == [100, 100]

        await until(are_long_again, what="fetches that wait longest again")

    record = waits.index(20)
    assert set(waits[:record]) <= {100}
    assert waits[record : record + 5] == [20, 40, 80, 100, 100]


@pytest.mark.parametrize(("park_seconds", "hot_seconds"), [(1.5, 6.0), (10.0, 6.0), (60.0, 31.0)])
def test_runs_stay_hot_until_their_publishers_ring(park_seconds: float, hot_seconds: float):
    pace = runs_pace(park_seconds)

    assert pace.hot_seconds == hot_seconds > park_seconds / 2
    assert pace.is_announced
