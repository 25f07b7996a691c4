"""Comparing MongoDB with the log: every difference, by name.

The log is read from Kafka and folded here, by the same pure functions that the projector uses; then each page and each
run state is held against it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

from runfold.log.ends import LogEnds
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold.store.pages import Page, PageStore, pages_of
from runfold.store.runs import RunState, RunStore
from runfold_projections.admission import Admission, Admitted
from runfold_projections.run import RunRecord, fold
from runfold_schemas.codec import Record

WAIT_SECONDS = 5.0
_LOOK_SECONDS = 0.1


class Difference(NamedTuple):
    """Something in MongoDB that is not what the log says. `offset` is None where it concerns the whole run."""

    run_id: str
    kind: str
    detail: str
    offset: int | None = None


async def verify(
    log: LogSettings,
    pages: PageStore,
    runs: RunStore,
    *,
    run_id: str | None = None,
    wait_seconds: float = WAIT_SECONDS,
) -> AsyncIterator[tuple[str, list[Difference]]]:
    """Every run (or the one named) with its differences, none for a run that is right.

    The ends of all runs are taken first and their projections given `wait_seconds` to reach them, so a projector may work
    meanwhile.
    """
    async with LogEnds.connect(log) as ends:
        topics = {
            name: life for name, life in (await ends.run_topics()).items() if run_id in (None, life.run_id)
        }
        end_of = await ends.ends(topics)
    deadline = asyncio.get_running_loop().time() + wait_seconds
    logs = set()
    for topic, life in sorted(topics.items()):
        state = await runs.get(life.run_id)
        if state is not None and state.log_id != life.log_id:
            continue  # An opening that lost: another life stands.
        logs.add(life.run_id)
        if state is None:
            yield (
                life.run_id,
                [
                    Difference(
                        life.run_id,
                        "no state",
                        f"the log has {end_of[topic]} records, MongoDB does not know the run",
                    )
                ],
            )
            continue
        state = await _settled(runs, state, end_of[topic], deadline=deadline)
        admission = Admission(life.run_id)
        admitted = [
            admission.admit(record) async for batch in read(log, topic, end=end_of[topic]) for record in batch
        ]
        inconsistent = await runs.inconsistent_fields(life.run_id)
        yield (
            life.run_id,
            _differences(state, await pages.all(life.log_id), admitted, end_of[topic], inconsistent),
        )
    async for known, _ in runs.progress():
        if known not in logs and run_id in (None, known):
            yield known, [Difference(known, "no log", "MongoDB knows the run, Kafka has no topic of it")]


def _differences(
    state: RunState,
    stored: Sequence[Page],
    admitted: Sequence[Admitted],
    end: int,
    inconsistent: Sequence[str],
) -> list[Difference]:
    faults = [
        *_coverage(stored, end),
        *(fault for page in stored for fault in _page_faults(page, admitted)),
        *_state_faults(state, admitted, end),
        *(
            ("wrong state", f"{field} beside the run record is not the record's", None)
            for field in inconsistent
        ),
    ]
    return [Difference(state.run_id, kind, detail, offset) for kind, detail, offset in faults]


async def _settled(runs: RunStore, state: RunState, end: int, *, deadline: float) -> RunState:
    while state.record.next_offset < end and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(_LOOK_SECONDS)
        state = await runs.get(state.run_id) or state
    return state


_Fault = tuple[str, str, int | None]


def _coverage(pages: Sequence[Page], end: int) -> Iterator[_Fault]:
    first = pages[0].first_offset if pages else end
    if first > 0:
        yield "missing page", f"no page covers the offsets 0 to {first - 1}", 0
    for before, after in pairwise(pages):
        if after.first_offset > before.next_offset:
            yield (
                "missing page",
                f"no page covers the offsets {before.next_offset} to {after.first_offset - 1}",
                before.next_offset,
            )
        elif after.first_offset < before.next_offset:
            yield (
                "overlap",
                f"pages {before.first_offset} and {after.first_offset} both cover offset {after.first_offset}",
                after.first_offset,
            )
    if pages and pages[-1].next_offset < end:
        yield (
            "missing page",
            f"no page covers the offsets {pages[-1].next_offset} to {end - 1}",
            pages[-1].next_offset,
        )


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


def _state_faults(state: RunState, admitted: Sequence[Admitted], end: int) -> Iterator[_Fault]:
    reached = state.record.next_offset
    if reached < end:
        yield "stale state", f"the state is at offset {reached}, the log ends at {end}", reached
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
