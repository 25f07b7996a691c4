"""Comparing MongoDB with the log: every difference, by name.

The log is read from Kafka and folded here, by the same pure functions that the projector uses; then
each page, each run state and each value of the state that a run's own log decides is held against
it.
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
    """Something in MongoDB that is not what the log says. `offset` is None where it concerns the
    whole run.
    """

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
    """Every run (or the one named) with its differences, none for a run that is right.

    Projectors may work meanwhile: each run is compared as far as MongoDB had it when it was looked
    at, which must be the end that its log had at the beginning, and what is different is looked at
    again. Both within `wait_seconds`.
    """
    # Topics are listed after the runs that MongoDB knows: a run's topic is there before MongoDB
    # hears of it.
    known = {name async for name, _ in stores.runs.progress() if run_id in (None, name)}
    async with LogEnds.connect(log) as ends:
        topics = {
            name: life for name, life in (await ends.run_topics()).items() if run_id in (None, life.run_id)
        }
        end_of = await ends.ends(topics)
    deadline = asyncio.get_running_loop().time() + wait_seconds
    for topic, life in sorted(topics.items()):
        comparison = _Comparison(log, topic, life, end_of[topic], stores)
        found = await comparison.differences(deadline=deadline)
        if found is not None:
            known.discard(life.run_id)
            yield life.run_id, found
    for name in sorted(known):
        yield name, [Difference(name, "no log", "MongoDB knows the run, Kafka has no topic of it")]


_Fault = tuple[str, str, int | None]


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One life of a run, as the log has it up to `end` at least, and as MongoDB has it."""

    log: LogSettings
    topic: str
    life: RunTopic
    end: int
    stores: Edition

    async def differences(self, *, deadline: float) -> list[Difference] | None:
        """None where there is nothing to compare: another life of the run stands, or the log is
        empty so far.
        """
        state = await self._settled(deadline=deadline)
        if state is None:
            unknown = f"the log has {self.end} records, MongoDB does not know the run"
            return [Difference(self.life.run_id, "no state", unknown)] if self.end else None
        if state.log_id != self.life.log_id:
            return None
        faults = await self._faults(state)
        while faults:
            # Pages may be replaced while they are read: what is wrong is wrong at every look.
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
        """The state when it includes what the log had at the beginning, or at the deadline."""
        while True:
            state = await self.stores.runs.get(self.life.run_id)
            reached = state.record.next_offset if state else 0
            if reached >= self.end or asyncio.get_running_loop().time() > deadline:
                return state
            await asyncio.sleep(_LOOK_SECONDS)

    async def _faults(self, state: RunState) -> list[_Fault]:
        # Whatever MongoDB holds is in the log by then: the log is read last. And pages are ahead of
        # their state.
        inconsistent = await self.stores.runs.inconsistent_fields(self.life.run_id)
        stored = await self.stores.pages.all(self.life.log_id)
        scope = own_scope(self.life.log_id)
        held = (await self.stores.values.read([scope]))[scope]
        reached = [page.next_offset for page in stored] + [value.offset + 1 for value in held.values()]
        end = max([self.end, state.record.next_offset, *reached])
        admission = Admission(self.life.run_id)
        admitted = [
            admission.admit(record) async for batch in read(self.log, self.topic, end=end) for record in batch
        ]
        return [
            *_coverage(stored, end),
            *(fault for page in stored for fault in _page_faults(page, admitted)),
            *_state_faults(state, admitted),
            *_value_faults(held, admitted, saved=state.record.next_offset),
            *(
                ("wrong state", f"{field} beside the run record is not the record's", None)
                for field in inconsistent
            ),
        ]


def _coverage(pages: Sequence[Page], end: int) -> Iterator[_Fault]:
    """Pages may overlap, where a worker was overtaken: each is held against the log by itself."""
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
            f"the body of page {page.first_offset} is not the one that was stored",
            page.first_offset,
        )
    mine = [one for one in admitted if page.first_offset <= one.record.offset < page.next_offset]
    try:
        records = page.records()
    except Exception as error:  # noqa: BLE001  # a flipped byte can break the frame in any way; it is a finding, not a failure
        yield (
            "unreadable page",
            f"page {page.first_offset} cannot be unpacked: {type(error).__name__}: {error}",
            page.first_offset,
        )
        return
    yield from _record_faults(page, records, {one.record.offset: one.record for one in mine})
    expected = (
        pages_of(page.log_id, mine, first_offset=page.first_offset, next_offset=page.next_offset)
        if mine
        else []
    )
    if len(expected) == 1:
        for name in ("count", "first_time", "max_time", "counts", "turns", "ids", "exceptions"):
            if getattr(page, name) != getattr(expected[0], name):
                yield (
                    "wrong page",
                    f"page {page.first_offset} has another {name} than its records",
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
    expected = fold(RunRecord(run_id=state.run_id), [one for one in admitted if one.record.offset < reached])
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


def _value_faults(held: Mapping[str, Value], admitted: Sequence[Admitted], *, saved: int) -> Iterator[_Fault]:
    expected: dict[str, Value] = {}
    for one in admitted:
        expected |= {
            key: value
            for key, value in own_changes(one).items()
            # What is set behind the saved state may be stored already, or not yet.
            if value.offset < saved or (key in held and value.offset <= held[key].offset)
        }
    for key in sorted(expected.keys() | held.keys()):
        if expected.get(key) != held.get(key):
            yield "wrong state", told_apart(key, expected.get(key), held.get(key)), None


def told_apart(key: str, expected: Value | None, held: Value | None) -> str:
    """What of a key's value is different, in words."""
    return f"the log has {_told(expected)} for {key!r}, MongoDB {_told(held)}"


def _told(value: Value | None) -> str:
    return "nothing" if value is None else f"{value.value!r:.80} of offset {value.offset}"
