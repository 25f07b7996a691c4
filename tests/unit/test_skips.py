"""Records that an operator skipped count for nothing, however the log is read. No reader decodes
them.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import event, event_id
from tests.partitions import partition_of, topics_of
from tests.records import logs, modest, portions, record, records, restored

import runfold.client.run_log
import runfold.log.shared
import runfold.query.history
import runfold_projections.admission
from runfold.client.run_log import RunLog
from runfold.log.segments import SegmentBook
from runfold.log.settings import LogSettings
from runfold.log.shared import decided_event, read_counting
from runfold.query.history import LogHistory, _slice_of
from runfold.store.pages import pages_of
from runfold_projections.admission import SKIPPED, Admission, Admitted
from runfold_projections.run import RunRecord, fold
from runfold_schemas.codec import Record
from runfold_schemas.errors import UndecodableError
from runfold_schemas.memories import Memory, MemoryCreated, memory_key
from runfold_schemas.runs import RunCompleted, RunOpened
from runfold_schemas.topics import PARTITIONS_DEFAULT, Partition, Topics

EMPTY = RunRecord(run_id="run-1")

OPENED = RunOpened(agent_id="agent-1", log_id="log-1")


def skips(log: Sequence[Record]) -> st.SearchStrategy[frozenset[range]]:
    """Ranges of offsets around a log, which may overlap."""
    end = log[-1].offset + 2 if log else 2
    ranges = st.tuples(st.integers(0, end), st.integers(1, 3)).map(lambda pair: range(pair[0], sum(pair)))
    return st.frozensets(ranges, max_size=4)


@contextmanager
def served(log: Sequence[Record], skipped: Collection[range]) -> Iterator[None]:
    """The log as what readers read from Kafka, one record for each fetch. Decoding a skipped record
    fails.
    """

    async def read(
        *_: Any, first_offset: int = 0, end: int | None = None, **__: Any
    ) -> AsyncGenerator[list[Record], None]:
        for each in log:
            if first_offset <= each.offset < (log[-1].offset + 1 if end is None else end):
                yield [each]

    def refusing(decode: Callable[[Record], Any]) -> Callable[[Record], Any]:
        def decode_unless_skipped(record: Record) -> Any:
            assert not any(record.offset in offsets for offsets in skipped), "a skipped record is decoded"
            return decode(record)

        return decode_unless_skipped

    with pytest.MonkeyPatch.context() as patch:
        for module in (runfold.client.run_log, runfold.query.history, runfold.log.shared):
            patch.setattr(module, "read", read)
        decode_record = runfold_projections.admission.decode_record
        patch.setattr(runfold_projections.admission, "decode_record", refusing(decode_record))
        yield


def plainly(log: Sequence[Record], skipped: Collection[range]) -> list[Admitted]:
    admission = Admission("run-1", skipped=skipped)
    return [admission.admit(each) for each in log]


@modest
@given(st.data())
def test_every_reader_of_a_run_agrees_on_skipped_records(data):
    log = data.draw(logs())
    skipped = data.draw(skips(log))
    with served(log, skipped):
        expected = plainly(log, skipped)

        assert _in_portions(data.draw(portions(log)), skipped) == expected
        assert _through_pages(data.draw(portions(expected))) == expected
        assert asyncio.run(_by_the_client(log, skipped)) == expected
        assert asyncio.run(_by_the_query_service(log, skipped)) == expected
    concerned = [each for each in expected if any(each.record.offset in offsets for offsets in skipped)]
    assert all(
        (each.outcome, each.event, each.reason) == ("undecodable", None, SKIPPED) for each in concerned
    )


@modest
@given(st.data())
def test_a_run_folds_as_if_skipped_records_were_bytes_that_are_no_event(data):
    log = data.draw(logs())
    skipped = data.draw(skips(log))
    broken = [
        each._replace(value=b"{") if any(each.offset in offsets for offsets in skipped) else each
        for each in log
    ]

    assert fold(EMPTY, plainly(log, skipped)) == fold(EMPTY, plainly(broken, ()))


def test_an_ending_that_was_skipped_ended_nothing():
    log = records(OPENED, RunCompleted())

    assert asyncio.run(_ended_before(log, (), 2))
    assert not asyncio.run(_ended_before(log, {range(1, 2)}, 2))


def test_a_skipped_record_of_a_shared_topic_counts_for_nothing():
    key = memory_key("b", "m")
    at = Partition("p.memories", partition_of(key))
    log = [
        record(event(_memory(f"fact {offset}"), event_id=event_id(offset)), offset, key=key.encode())
        for offset in range(3)
    ]
    log[1] = log[1]._replace(value=b"{")
    log.append(log[2]._replace(offset=3))

    with served(log, ()):
        facts = asyncio.run(_facts(at, {range(1, 3)}))

    assert facts == [(0, "fact 0"), (3, "fact 2")]
    with pytest.raises(UndecodableError, match=SKIPPED):
        decided_event(topics_of(), log[0], at, {range(1)})


def _memory(fact: str) -> MemoryCreated:
    return MemoryCreated(bank_id="b", memory_id="m", memory=Memory(fact=fact, scope={"user": "ann"}))


def _in_portions(parts: Sequence[Sequence[Record]], skipped: Collection[range]) -> list[Admitted]:
    admission, admitted = Admission("run-1"), list[Admitted]()
    for part in parts:
        admission = restored(admission, admitted)
        admission.skipped = skipped
        admitted += [admission.admit(each) for each in part]
    return admitted


def _through_pages(parts: Sequence[Sequence[Admitted]]) -> list[Admitted]:
    ends = [0, *(part[-1].record.offset + 1 for part in parts if part)]
    pages = [
        page
        for part, (begin, end) in zip(filter(None, parts), pairwise(ends), strict=True)
        for page in pages_of("log-1", part, first_offset=begin, next_offset=end)
    ]
    return [
        admitted
        for page in pages
        for admitted in _slice_of(
            page, page.records, first_offset=page.first_offset, end=page.next_offset
        ).admitted()
    ]


def _log(skipped: Collection[range]) -> RunLog:
    async def skips() -> Collection[range]:
        return skipped

    segments = SegmentBook(Topics("p"))
    settings = LogSettings(kafka="127.0.0.1:1")
    return RunLog(settings, "p.run.run-1.log-1", "run-1", segments=segments, skips=skips)


async def _by_the_client(log: Sequence[Record], skipped: Collection[range]) -> list[Admitted]:
    return [admitted async for admitted in _log(skipped).history()]


async def _ended_before(log: Sequence[Record], skipped: Collection[range], offset: int) -> bool:
    with served(log, skipped):
        return await _log(skipped).ended_before(offset)


async def _by_the_query_service(log: Sequence[Record], skipped: Collection[range]) -> list[Admitted]:
    async def skipped_in(_: str) -> Collection[range]:
        return skipped

    history = LogHistory(
        LogSettings(kafka="127.0.0.1:1"),
        "p.run.run-1.log-1",
        EMPTY,
        end=log[-1].offset + 1 if log else 0,
        skipped_in=skipped_in,
    )
    return [admitted async for slice_ in history.slices() for admitted in slice_.admitted()]


async def _facts(at: Partition, skipped: Collection[range]) -> list[tuple[int, str]]:
    settings = LogSettings(kafka="127.0.0.1:1", partitions=PARTITIONS_DEFAULT)
    return [
        (keyed.offset, keyed.event.data.memory.fact) async for keyed in read_counting(settings, at, skipped)
    ]
