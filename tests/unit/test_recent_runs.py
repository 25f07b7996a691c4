"""What readers of the newest records keep, and how they connect, without servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import RequestTimedOutError
from tests.records import records

from runfold import UserMessage
from runfold.log.ends import LogEnds
from runfold.log.leaders import Leaders
from runfold.log.newest import Newest, newest
from runfold.log.settings import LogSettings
from runfold.query import recent
from runfold.query.log_ends import ConnectedEnds
from runfold.query.recent import RecentRun, RecentRuns, UnstoredRecords
from runfold_projections import admission
from runfold_projections.admission import Admission
from runfold_schemas.codec import Record, decode_record
from runfold_schemas.errors import QuarantinedError, UnavailableError
from runfold_schemas.sessions import StateChanged
from runfold_schemas.topics import Partition

AT = Partition("p.run.run-1.log-1", 0)


class Silent:
    """A client whose broker does not answer."""

    cluster = ClusterMetadata()

    async def send(self, *_: object, **__: object) -> None:
        raise RequestTimedOutError


class Busy:
    """A client that its broker has pause, because of a quota: answers have no partitions."""

    cluster = ClusterMetadata()

    async def send(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(throttle_time_ms=120, error_code=0, session_id=0, partitions=[])


class Ends:
    """A connection to Kafka."""

    async def get(self) -> Any:
        return SimpleNamespace(leaders=None)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """The records that the log has. At most two are read at once."""
    log: list[Record] = []

    async def read(_: object, __: object, *, first_offset: int) -> Newest:
        read = log[first_offset : first_offset + 2]
        return Newest(read, first_offset + len(read))

    monkeypatch.setattr(recent, "newest", read)
    return log


async def read_ahead(log: list[Record], offset: int) -> RecentRun:
    run = RecentRun(AT, Admission("run-1"), 0)
    assert await run.advance(Ends(), offset)  # type: ignore[arg-type]
    return run


async def test_a_connection_that_readers_do_not_wait_for_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0

    @asynccontextmanager
    async def connect(*_: object, **__: object) -> AsyncIterator[object]:
        nonlocal attempts
        attempts += 1
        await asyncio.sleep(0.05)
        yield SimpleNamespace()

    monkeypatch.setattr(LogEnds, "connect", connect)
    async with ConnectedEnds(LogSettings(kafka="none"), timeout_seconds=5) as ends:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await ends.get()

        assert await ends.get() is await ends.get()
    assert attempts == 1


async def test_a_connection_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [UnavailableError("Kafka", reason="a test")]

    @asynccontextmanager
    async def connect(*_: object, **__: object) -> AsyncIterator[object]:
        if failures:
            raise failures.pop()
        yield SimpleNamespace()

    monkeypatch.setattr(LogEnds, "connect", connect)
    async with ConnectedEnds(LogSettings(kafka="none"), timeout_seconds=5) as ends:
        with pytest.raises(UnavailableError):
            await ends.get()

        assert await ends.get()


async def test_a_leader_that_does_not_answer_is_asked_for_again() -> None:
    leaders = Leaders(Silent())  # type: ignore[arg-type]
    leaders.note_leaders({AT: 1})

    with pytest.raises(UnavailableError):
        await newest(leaders, AT, first_offset=0)

    assert leaders.leader(AT) is None


async def test_an_answer_without_partitions_has_no_records() -> None:
    client: Any = Busy()
    leaders = Leaders(client)
    leaders.note_leaders({AT: 1})

    assert await newest(leaders, AT, first_offset=3) == Newest([], 3)
    assert leaders.leader(AT) == 1


async def test_records_that_the_pages_have_are_not_kept(log: list[Record]) -> None:
    log += records(*(UserMessage(message=str(number)) for number in range(4)))
    run = await read_ahead(log, 3)
    size = run.size

    run.drop_stored(3)

    unstored = run.unstored(3)
    assert unstored is not None
    assert [admitted.record.offset for admitted in unstored.records] == [3]
    assert run.unstored(2) is None
    assert run.size < size


async def test_large_records_count_by_their_bytes(log: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    log += records(UserMessage(message="x" * 100_000))
    runs = RecentRuns()
    monkeypatch.setattr(recent, "_BYTES_MAX", 250_000)

    for number in range(4):
        runs.keep(str(number), await read_ahead(log, 0))

    assert [number for number in range(4) if runs.get(str(number))] == [2, 3]


async def test_runs_that_are_old_are_dropped_by_any_read(
    log: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    log += records(UserMessage(message="1"))
    runs = RecentRuns()
    runs.keep("old", await read_ahead(log, 0))
    monkeypatch.setattr(recent, "_KEPT_SECONDS", -1.0)

    runs.get("another")
    monkeypatch.undo()

    assert runs.get("old") is None


async def test_a_record_behind_the_offset_that_cannot_be_admitted_fails_no_read(
    log: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    log += records(UserMessage(message="1"), UserMessage(message="2"))

    def fail_at_one(record: Record) -> Any:
        if record.offset == 1:
            raise ValueError(record.offset)
        return decode_record(record)

    monkeypatch.setattr(admission, "decode_record", fail_at_one)

    assert (await read_ahead(log, 0)).next_offset == 1
    with pytest.raises(QuarantinedError):
        await read_ahead(log, 1)


async def test_what_one_reader_does_to_an_event_no_other_reader_sees(log: list[Record]) -> None:
    log += records(StateChanged(state_delta={"list": [1]}))
    run = await read_ahead(log, 0)
    unstored = run.unstored(0)
    assert unstored is not None

    first, second = (delta_of(unstored) for _ in range(2))
    first["list"].append(2)

    assert second == delta_of(unstored) == {"list": [1]}


def delta_of(unstored: UnstoredRecords) -> Any:
    (admitted,) = unstored.between(0, 1)
    assert admitted.event is not None
    assert isinstance(admitted.event.data, StateChanged)
    return admitted.event.data.state_delta
