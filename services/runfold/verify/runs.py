"""Compares runs in MongoDB with the log and reports every difference.

The log is read from Kafka and folded with the same pure functions that the projector uses. Then
each page, each run state and each value of a run's own state is compared with the result.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from runfold.archive.archive import Archive
from runfold.archive.checking import damaged_runs
from runfold.log.archived_logs import ARCHIVE
from runfold.log.catalog_view import CatalogView
from runfold.log.ends import LogEnds
from runfold.log.leaders import Leaders
from runfold.log.reader import LogGoneError, read_fetches
from runfold.log.settings import LogSettings
from runfold.store.edition import Edition
from runfold.store.page import Page, extent_of, fault_of, packed_records, pages_of, read_document, unpack
from runfold.store.run_state import RunState, state_of
from runfold.store.state import own_scope
from runfold.verify.patience import LOOK_SECONDS, WAIT_SECONDS, Patience
from runfold_projections.activity import NO_ACTIVITY, fold_activity
from runfold_projections.admission import Admission, Admitted, is_skipped
from runfold_projections.chain import START, extend
from runfold_projections.run import RunRecord, fold
from runfold_projections.state import Value, own_changes
from runfold_projections.usage import RunUsage, fold_usage
from runfold_schemas.archive_errors import ArchiveDamagedError
from runfold_schemas.codec import Record
from runfold_schemas.errors import DamagedError, UnavailableError
from runfold_schemas.topics import Partition, RunTopic


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
    `verify` waits until the state reaches the end that the log had at the beginning, as long as
    projectors get on (see `Patience`). Differences are checked again, for `wait_seconds` at most.
    A run that is deleted meanwhile is left out.

    A run that is damaged in the archive has one difference that says so, whatever else differs.

    A run in quarantine is compared up to the offset that cannot be folded. An archived run is
    compared with the archive and its topic, if it has one: without an archive this raises
    `NoArchiveError`.
    """
    # Topics are listed after the runs in MongoDB, because a run's topic exists before the run is in
    # MongoDB.
    progress = {name: position async for name, position in stores.runs.progress()}
    stored = {name for name in progress if run_id in (None, name)}
    deadline = asyncio.get_running_loop().time() + wait_seconds
    unread: dict[str, UnavailableError] = {}
    damaged = {error.run_id: error for error in await _damaged(log, run_id)}

    async def folded() -> int:
        return sum([position async for _, position in stores.runs.progress()])

    patience = Patience(folded, at=sum(progress.values()), wait_seconds=wait_seconds)
    async with Leaders.connect(log) as leaders, CatalogView.connect(log, leaders=leaders) as catalog:
        async with LogEnds.connect(log, leaders=leaders) as ends:
            topics = {
                name: life
                for name, life in (await ends.run_topics()).items()
                if run_id in (None, life.run_id)
            }
            end_of = await ends.ends(topics)
        for entry in await stores.quarantine.all(kind="run"):
            end_of[entry.topic] = min(end_of.get(entry.topic, 0), entry.offset)
        without_topic = await _runs_of(catalog, run_id) | stored
        for name in sorted(without_topic - {life.run_id for life in topics.values()}):
            if (sealed := await catalog.look_up_segments(name)) is not None:
                topic = log.topics.run(name, sealed.log_id)
                topics[topic] = RunTopic(name, sealed.log_id)
                end_of[topic] = min(sealed.end, end_of.get(topic, sealed.end))
        for topic, life in sorted(topics.items()):
            comparison = _Comparison(log, topic, life, end_of[topic], stores, leaders, catalog, patience)
            try:
                differences = await comparison.differences(deadline=deadline)
            except ArchiveDamagedError as error:
                damaged[life.run_id] = error
            except UnavailableError as error:
                if error.server != ARCHIVE:
                    raise
                unread[life.run_id] = error
            else:
                if differences is not None and life.run_id not in damaged:
                    stored.discard(life.run_id)
                    yield life.run_id, differences
    for name in sorted(damaged):
        stored.discard(name)
        yield name, [Difference(name, "damaged archive", damaged[name].reason)]
    for name in sorted(unread.keys() - damaged.keys()):
        raise unread[name]
    for name in sorted(await _without_topic(stores, stored, deadline=deadline)):
        yield name, [Difference(name, "no log", "MongoDB knows the run, Kafka has no topic of it")]


async def _damaged(log: LogSettings, run_id: str | None) -> list[ArchiveDamagedError]:
    """The runs that are damaged in the archive, by another library than the one that reads logs."""
    if not isinstance(log.archived, Archive):
        return []
    return await damaged_runs(log.archived, None if run_id is None else [run_id])


async def _runs_of(catalog: CatalogView, run_id: str | None) -> set[str]:
    """The runs that the catalog names, also those without a topic that MongoDB does not have."""
    if run_id is not None:
        life = await catalog.lookup(run_id)
        return {run_id} if life is not None and not life.deleted else set()
    async with aclosing(catalog.lives()) as lives:
        return {life.run_id async for life in lives}


async def _without_topic(stores: Edition, run_ids: set[str], *, deadline: float) -> set[str]:
    """Those of the runs without a topic that MongoDB still has at the deadline. When a run is
    deleted, a projector removes it from MongoDB a moment after its topic is gone.
    """
    while run_ids:
        run_ids = run_ids & {name async for name, _ in stores.runs.progress()}
        if asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(LOOK_SECONDS)
    return run_ids


_Fault = tuple[str, str, int | None]


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The comparison of one life of a run, at least up to the offset `end` of its log."""

    log: LogSettings
    topic: str
    life: RunTopic
    end: int
    stores: Edition
    leaders: Leaders
    catalog: CatalogView
    patience: Patience

    async def differences(self, *, deadline: float) -> list[Difference] | None:
        """The differences. None if there is nothing to compare: MongoDB has another life of the
        run, the log is empty, or the run was deleted meanwhile.
        """
        try:
            found = await self._found(deadline=deadline)
        except LogGoneError:
            if await self._is_over():
                return None
            raise
        return None if found and await self._is_over() else found

    async def _found(self, *, deadline: float) -> list[Difference] | None:
        try:
            state = await self._settled()
        except DamagedError as error:
            return [Difference(self.life.run_id, "wrong state", error.reason)]
        if state is None:
            unknown = f"the log has {self.end} records, MongoDB does not have the run"
            return [Difference(self.life.run_id, "no state", unknown)] if self.end else None
        if state.log_id != self.life.log_id:
            return None
        faults = await self._faults(state)
        while faults:
            # Pages may be replaced while they are read, so only faults that every look finds count.
            await asyncio.sleep(LOOK_SECONDS)
            again = await self._faults(await self._current() or state)
            faults = [fault for fault in faults if fault in again]
            if asyncio.get_running_loop().time() > deadline:
                break
        reached = state.record.next_offset
        if reached < self.end:
            stale = f"the state is at offset {reached}, the log ends at {self.end}"
            faults.append(("stale state", stale, reached))
        return [Difference(self.life.run_id, kind, detail, offset) for kind, detail, offset in faults]

    async def _settled(self) -> RunState | None:
        """The state as soon as it reaches `end`, or when nothing is to be waited for."""
        while True:
            state = await self._current()
            reached = state.record.next_offset if state else 0
            if reached >= self.end or await self._is_over() or not await self.patience.lasts():
                return state
            await asyncio.sleep(LOOK_SECONDS)

    async def _is_over(self) -> bool:
        """Whether this life of the run has been deleted."""
        life = await self.catalog.lookup(self.life.run_id)
        return life is not None and (life.deleted or life.log_id != self.life.log_id)

    async def _current(self) -> RunState | None:
        """The stored state. Raises `DamagedError`."""
        document = await self.stores.runs.document(self.life.run_id)
        return state_of(document) if document else None

    async def _faults(self, state: RunState) -> list[_Fault]:
        # The log is read last, so that it has everything that MongoDB has. Pages may be ahead of
        # the state.
        inconsistent = await self.stores.runs.inconsistent_fields(self.life.run_id)
        faults: list[_Fault] = []
        stored = [page async for page in self._pages(faults)]
        scope = own_scope(self.life.log_id)
        values = await self._values(scope, faults)
        reached = [page.next_offset for page in stored] + [value.offset + 1 for value in values.values()]
        end = max([self.end, state.record.next_offset, *reached])
        skipped = await self.catalog.skips_of(self.life.run_id, self.topic)
        admission = Admission(self.life.run_id, skipped=skipped)
        admitted: list[Admitted] = []
        at = Partition(self.topic, 0)
        async for fetch in read_fetches(self.log, at, end=end, leaders=self.leaders):
            faults += (
                ("unreadable batch", f"{batch.reason}; no operator has skipped the batch", batch.offset)
                for batch in fetch.unreadable
                if not is_skipped(batch.offset, skipped)
            )
            admitted += map(admission.admit, fetch.records)
        wrong = list(_state_faults(state, admitted))
        return [
            *faults,
            *_coverage(stored, end),
            *(fault for page in stored for fault in _page_faults(page, admitted)),
            *wrong,
            *_value_faults(values, admitted, saved=state.record.next_offset),
            *(
                ("wrong state", f"the field {field} beside the run record differs from the record", None)
                for field in inconsistent
                # These are copies of what was compared with the log just now.
                if field not in {"models", "tools"} or not wrong
            ),
        ]

    async def _pages(self, faults: list[_Fault]) -> AsyncIterator[Page]:
        """The stored pages, also those whose checksums are wrong. A document that is no page
        becomes a fault.
        """
        async for document in self.stores.pages.documents(self.life.log_id):
            fault = fault_of(document, has_body=False)
            extent = extent_of(document)
            try:
                page = read_document(document)
                page.event_ids()
            except (KeyError, TypeError, ValueError, AttributeError):
                extent = None
            if extent is None:
                faults.append(("unreadable page", f"page {document['_id']}: {fault}", None))
                continue
            if fault is not None:
                faults.append(("wrong page", f"page {page.first_offset}: {fault}", page.first_offset))
            yield page

    async def _values(self, scope: str, faults: list[_Fault]) -> Mapping[str, Value]:
        try:
            return (await self.stores.values.read([scope]))[scope]
        except DamagedError as error:
            faults.append(("wrong state", f"a value of the run's own state: {error.reason}", None))
            return {}


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
    if not isinstance(page.body, bytes) or crc32(page.body) != page.checksum:
        yield (
            "wrong checksum",
            f"the body of page {page.first_offset} does not match its checksum",
            page.first_offset,
        )
        return
    covered = [each for each in admitted if page.first_offset <= each.record.offset < page.next_offset]
    try:
        # Neither the count nor the offsets are looked at here, because they are compared below.
        records = unpack(page.body)
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
    # An earlier version counted tokens in the providers' meanings, and no totals by model.
    usage = {"usage": state.record.usage} if state.usage is None else {}
    expected = expected.model_copy(update={"next_offset": reached, **unfolded, **usage})
    if state.usage not in (None, fold_usage(RunUsage(), records)):
        yield "wrong state", "the usage by model differs from the fold of the log", None
    if state.activity not in (None, fold_activity(NO_ACTIVITY, records)):
        yield "wrong state", "the times of the tools or of the end differ from the fold of the log", None
    if state.chain not in (None, extend(START, packed_records(each.record for each in records))):
        yield "wrong state", "the chain of hashes differs from that of the log", None
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
