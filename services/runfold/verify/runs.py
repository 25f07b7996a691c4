"""Compares runs in MongoDB with the log and reports every difference.

The log is read from Kafka and folded with the same pure functions that the projector uses. Then
each page, each run state and each value of a run's own state is compared with the result.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from runfold.log.ends import LogEnds
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold.store.edition import Edition
from runfold.store.pages import Page, pages_of
from runfold.store.runs import RunState
from runfold.store.state import own_scope
from runfold_projections.admission import Admission, Admitted
from runfold_projections.run import RunRecord, fold
from runfold_projections.state import Value, own_changes
from runfold_schemas.codec import Record
from runfold_schemas.topics import RunTopic

WAIT_SECONDS = 5.0
_LOOK_SECONDS = 0.1


class Difference(NamedTuple):
    """A difference between MongoDB and the log. `offset` is None if it concerns the whole run."""

    run_id: str
    kind: str
    detail: str
    offset: int | None = None


async def verify(
    log: LogSettings,
    stores: Edition,
    *,
    run_id: str | None = None,
    wait_seconds: float = WAIT_SECONDS,
) -> AsyncIterator[tuple[str, list[Difference]]]:
    """Yields every run, or only `run_id`, with its differences. The list is empty for a correct
    run.

    Projectors may work meanwhile. So a run is compared up to its state in MongoDB, for which
    `verify` waits until the state reaches the end that the log had at the beginning. Differences
    are checked again. Both take `wait_seconds` at most, for all runs together.
    """
    # Topics are listed after the runs in MongoDB, because a run's topic exists before the run is in
    # MongoDB.
    stored = {name async for name, _ in stores.runs.progress() if run_id in (None, name)}
    async with LogEnds.connect(log) as ends:
        topics = {
            name: life for name, life in (await ends.run_topics()).items() if run_id in (None, life.run_id)
        }
        end_of = await ends.ends(topics)
    deadline = asyncio.get_running_loop().time() + wait_seconds
    for topic, life in sorted(topics.items()):
        comparison = _Comparison(log, topic, life, end_of[topic], stores)
        differences = await comparison.differences(deadline=deadline)
        if differences is not None:
            stored.discard(life.run_id)
            yield life.run_id, differences
    for name in sorted(stored):
        yield name, [Difference(name, "no log", "MongoDB knows the run, Kafka has no topic of it")]


_Fault = tuple[str, str, int | None]


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The comparison of one life of a run, at least up to the offset `end` of its log."""

    log: LogSettings
    topic: str
    life: RunTopic
    end: int
    stores: Edition

    async def differences(self, *, deadline: float) -> list[Difference] | None:
        """The differences. None if there is nothing to compare: MongoDB has another life of the
        run, or the log is empty.
        """
        state = await self._settled(deadline=deadline)
        if state is None:
            unknown = f"the log has {self.end} records, MongoDB does not have the run"
            return [Difference(self.life.run_id, "no state", unknown)] if self.end else None
        if state.log_id != self.life.log_id:
            return None
        faults = await self._faults(state)
        while faults:
            # Pages may be replaced while they are read, so only faults that every look finds count.
            await asyncio.sleep(_LOOK_SECONDS)
            again = await self._faults(await self.stores.runs.get(self.life.run_id) or state)
            faults = [fault for fault in faults if fault in again]
            if asyncio.get_running_loop().time() > deadline:
                break
        reached = state.record.next_offset
        if reached < self.end:
            stale = f"the state is at offset {reached}, the log ends at {self.end}"
            faults.append(("stale state", stale, reached))
        return [Difference(self.life.run_id, kind, detail, offset) for kind, detail, offset in faults]

    async def _settled(self, *, deadline: float) -> RunState | None:
        """The state as soon as it reaches `end`, or at the deadline."""
        while True:
            state = await self.stores.runs.get(self.life.run_id)
            reached = state.record.next_offset if state else 0
            if reached >= self.end or asyncio.get_running_loop().time() > deadline:
                return state
            await asyncio.sleep(_LOOK_SECONDS)

    async def _faults(self, state: RunState) -> list[_Fault]:
        # The log is read last, so that it has everything that MongoDB has. Pages may be ahead of
        # the state.
        inconsistent = await self.stores.runs.inconsistent_fields(self.life.run_id)
        stored = await self.stores.pages.all(self.life.log_id)
        scope = own_scope(self.life.log_id)
        values = (await self.stores.values.read([scope]))[scope]
        reached = [page.next_offset for page in stored] + [value.offset + 1 for value in values.values()]
        end = max([self.end, state.record.next_offset, *reached])
        admission = Admission(self.life.run_id)
        admitted = [
            admission.admit(record) async for batch in read(self.log, self.topic, end=end) for record in batch
        ]
        return [
            *_coverage(stored, end),
            *(fault for page in stored for fault in _page_faults(page, admitted)),
            *_state_faults(state, admitted),
            *_value_faults(values, admitted, saved=state.record.next_offset),
            *(
                ("wrong state", f"the field {field} beside the run record differs from the record", None)
                for field in inconsistent
            ),
        ]


def _coverage(pages: Sequence[Page], end: int) -> Iterator[_Fault]:
    """Offsets without a page. Pages may overlap if a worker was overtaken, so each page is compared
    with the log by itself.
    """
    reached = 0
    for page in pages:
        yield from _missing(reached, page.first_offset)
        reached = max(reached, page.next_offset)
    yield from _missing(reached, end)


def _missing(begin: int, end: int) -> Iterator[_Fault]:
    if begin < end:
        yield "missing page", f"no page covers the offsets {begin} to {end - 1}", begin


def _page_faults(page: Page, admitted: Sequence[Admitted]) -> Iterator[_Fault]:
    if crc32(page.body) != page.checksum:
        yield (
            "wrong checksum",
            f"the body of page {page.first_offset} does not match its checksum",
            page.first_offset,
        )
    covered = [each for each in admitted if page.first_offset <= each.record.offset < page.next_offset]
    try:
        records = page.records()
    except Exception as error:  # noqa: BLE001  # a flipped byte can break the frame in any way; it is a finding, not a failure
        yield (
            "unreadable page",
            f"page {page.first_offset} cannot be unpacked: {type(error).__name__}: {error}",
            page.first_offset,
        )
        return
    yield from _record_faults(page, records, {each.record.offset: each.record for each in covered})
    expected = (
        pages_of(page.log_id, covered, first_offset=page.first_offset, next_offset=page.next_offset)
        if covered
        else []
    )
    if len(expected) == 1:
        for name in ("count", "first_time", "max_time", "counts", "turns", "ids", "exceptions"):
            if getattr(page, name) != getattr(expected[0], name):
                yield (
                    "wrong page",
                    f"the field {name} of page {page.first_offset} does not match its records",
                    page.first_offset,
                )


def _record_faults(page: Page, records: Sequence[Record], logged: dict[int, Record]) -> Iterator[_Fault]:
    stored = {record.offset: record for record in records}
    for offset in sorted(stored.keys() | logged.keys()):
        if offset not in stored:
            yield "missing record", f"page {page.first_offset} lacks the record at offset {offset}", offset
        elif offset not in logged:
            yield (
                "extra record",
                f"page {page.first_offset} has a record at offset {offset}, the log has none",
                offset,
            )
        elif stored[offset] != logged[offset]:
            fields = [
                name
                for name, a, b in zip(Record._fields, stored[offset], logged[offset], strict=True)
                if a != b
            ]
            yield (
                "wrong record",
                f"the record at offset {offset} differs from the log in its {', '.join(fields)}",
                offset,
            )


def _state_faults(state: RunState, admitted: Sequence[Admitted]) -> Iterator[_Fault]:
    reached = state.record.next_offset
    records = [each for each in admitted if each.record.offset < reached]
    expected = fold(RunRecord(run_id=state.run_id), records)
    unfolded = (
        {"agent_id": state.record.agent_id, "session_id": state.record.session_id}
        if not expected.counts.get("run_opened")
        else {}
    )
    expected = expected.model_copy(update={"next_offset": reached, **unfolded})
    if state.record != expected:
        fields = [
            name for name in RunRecord.model_fields if getattr(state.record, name) != getattr(expected, name)
        ]
        yield "wrong state", f"the run record differs from the fold of the log in {', '.join(fields)}", None


def _value_faults(
    stored: Mapping[str, Value], admitted: Sequence[Admitted], *, saved: int
) -> Iterator[_Fault]:
    expected: dict[str, Value] = {}
    for each in admitted:
        expected |= {
            key: value
            for key, value in own_changes(each).items()
            # Values that were set after the saved state may be stored or not.
            if value.offset < saved or (key in stored and value.offset <= stored[key].offset)
        }
    for key in sorted(expected.keys() | stored.keys()):
        if expected.get(key) != stored.get(key):
            yield "wrong state", describe_difference(key, expected.get(key), stored.get(key)), None


def describe_difference(key: str, expected: Value | None, stored: Value | None) -> str:
    """The difference between two values of a key, in words."""
    return f"the log has {_describe(expected)} for {key!r}, MongoDB has {_describe(stored)}"


def _describe(value: Value | None) -> str:
    return "nothing" if value is None else f"{value.value!r:.80} of offset {value.offset}"
