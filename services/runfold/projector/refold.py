"""Folding one run anew: what MongoDB has of the run becomes what its log says.

A reader sees nothing older meanwhile, and the run's owner may be at work: a document that changed
since it was compared is left alone, and the comparison is repeated.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from runfold.log.catalog import partition_of
from runfold.log.effect_keys import may_change_others
from runfold.log.partition_counts import counted
from runfold.log.reader import end_offset, read_fetches
from runfold.log.segments import SegmentBook
from runfold.log.settings import LogSettings
from runfold.projector.page_mending import PageMending, StoredPages
from runfold.store.edition import Edition
from runfold.store.page import EVENTS_MAX, packed_records
from runfold.store.run_state import RunState, state_of
from runfold.store.shared_positions import SharedPositionStore
from runfold.store.state import Entry, entry_of, own_scope, value_id
from runfold_projections.activity import NO_ACTIVITY, RunActivity, fold_activity
from runfold_projections.admission import Admission, Admitted, is_skipped
from runfold_projections.chain import START, extend
from runfold_projections.run import RunRecord, fold
from runfold_projections.state import Value, changes_shared, own_changes, shared_changes
from runfold_projections.usage import RunUsage, fold_usage
from runfold_schemas.codec import Record, UnreadableBatch
from runfold_schemas.errors import DamagedError, RunfoldError
from runfold_schemas.topics import Partition, RunTopic

_ATTEMPTS = 5


class ShortenedLogError(RunfoldError):
    """A log ends before the events that MongoDB has of it: its last records were lost, for example
    because an older backup of Kafka was restored.
    """

    def __init__(self, run_id: str, *, end: int, stored: int) -> None:
        super().__init__(
            f"the log of run {run_id!r} ends at {end}, and MongoDB has the run up to {stored}: the log has"
            f" lost events. `runfold rebuild {run_id}` makes the run what its log says"
        )
        self.run_id = run_id
        self.end = end
        self.stored = stored


class UnreadableLogError(RunfoldError):
    """A log has a batch that cannot be unpacked, and no operator has skipped the batch."""

    def __init__(self, run_id: str, batch: UnreadableBatch) -> None:
        super().__init__(
            f"the log of run {run_id!r} has a batch at offset {batch.offset} that cannot be read:"
            f" {batch.reason}. See `runfold quarantine show {run_id}`"
        )
        self.run_id = run_id
        self.offsets = range(batch.offset, batch.next_offset)
        self.reason = batch.reason


class Refolded(NamedTuple):
    """The numbers of documents that were written or deleted, and the end of the log."""

    pages: int = 0
    states: int = 0
    values: int = 0
    end: int = 0

    @property
    def documents(self) -> int:
        return self.pages + self.states + self.values


async def refold(
    stores: Edition,
    log: LogSettings,
    run: RunTopic,
    *,
    cuts_stored: bool = False,
    only_stored: bool = False,
    segments: SegmentBook | None = None,
) -> Refolded:
    """Makes the pages, the state and the values of a run what its log says, also if the run is not
    stored yet. A deleted run stays deleted, and another life of the run stays as it is.

    With `cuts_stored` the log also counts if MongoDB has more of the run than the log. Otherwise
    this raises `ShortenedLogError` then. With `only_stored` records that were never stored are not
    decoded, because one of them may be deadly. `segments` knows where logs lie. Raises
    `LogGoneError` if there is no log, `UnreadableLogError` at a batch that cannot be read and is
    not skipped, and `UnavailableError`.
    """
    log = await counted(log)
    segments = segments or SegmentBook(log.topics)
    topic = log.topics.run(run.run_id, run.log_id)
    if (await stores.runs.deleted([run.run_id])).get(run.run_id):
        return Refolded()
    skipped = (await stores.skips.all([topic])).get(Partition(topic, 0), frozenset())
    total = Refolded()
    for _ in range(_ATTEMPTS):
        end = await end_offset(log, topic, segments=segments)
        document = await stores.runs.document(run.run_id)
        if _has_other_life(document, run):
            break
        stored = await StoredPages.find(stores.pages, run.log_id, end=end)
        position = _position_of(document)
        if max(position, stored.reached) > end and not cuts_stored:
            raise ShortenedLogError(run.run_id, end=end, stored=max(position, stored.reached))
        if only_stored:
            end = max(position, stored.reached)
        pages = PageMending(stores.pages, stored, end=end)
        folding = _StateFold(
            stores.shared_positions,
            run,
            document,
            skipped,
            partition=partition_of(log.topics, run.run_id),
            stored_at=min(position, end),
            may_affect=partial(may_change_others, log.effect_keys, topic),
        )
        async with aclosing(_records(log, run, skipped, end=end, segments=segments)) as fetches:
            async for records in fetches:
                for begin in range(0, len(records), EVENTS_MAX):
                    await pages.take(await folding.take(records[begin : begin + EVENTS_MAX]))
        await pages.finish(end)
        values = await _mend_values(stores, run.log_id, folding.values, end=end)
        states, is_settled = await _mend_state(stores, document, folding.state(end))
        total = Refolded(total.pages + pages.written, total.states + states, total.values + values, end)
        if is_settled and not pages.is_overtaken:
            break
    return total


async def _records(
    log: LogSettings, run: RunTopic, skipped: Collection[range], *, end: int, segments: SegmentBook
) -> AsyncGenerator[list[Record], None]:
    """The records of a run's log up to `end`. Raises `UnreadableLogError`, because a fold beyond an
    unreadable batch would skip the batch without an operator's decision.
    """
    at = Partition(log.topics.run(run.run_id, run.log_id), 0)
    async with aclosing(read_fetches(log, at, end=end, segments=segments)) as fetches:
        async for fetch in fetches:
            for batch in fetch.unreadable:
                if not is_skipped(batch.offset, skipped):
                    raise UnreadableLogError(run.run_id, batch)
            yield fetch.records


class _Rule(NamedTuple):
    """The fields of a state that an `Admission` decides."""

    opened: bool
    ended: bool
    last_offset: int

    @classmethod
    def of(cls, admission: Admission) -> "_Rule":
        return cls(admission.opened, admission.ended, admission.last_offset)


class _StateFold:
    """Folds the log, and keeps the state that may be stored."""

    def __init__(
        self,
        positions: SharedPositionStore,
        run: RunTopic,
        document: Mapping[str, Any],
        skipped: Collection[range],
        *,
        partition: int,
        stored_at: int,
        may_affect: Callable[[Record], bool],
    ) -> None:
        self.values: dict[str, Value] = {}
        self._positions = positions
        self._may_affect = may_affect
        self._run = run
        self._partition = partition
        self._announced_ms = int(document.get("announced_ms", 0))
        self._admission = Admission(run.run_id, skipped=skipped)
        self._record = _unfolded(run.run_id, document)
        self._usage = RunUsage()
        self._activity = NO_ACTIVITY
        self._chain = START
        self._stored_at = stored_at
        self._at_stored: RunState | None = None
        self._unseen: RunState | None = None

    def state(self, end: int) -> RunState:
        """The state to store after the whole log, which ends at `end`.

        It ends before the first change of a shared topic that was not seen there: a later state
        would forget to forward the change. It reaches at least the stored position, because the
        changes before it are durable.
        """
        state = self._unseen or self._current(end)
        at_stored = self._at_stored or self._current(end)
        return at_stored if state.record.next_offset < self._stored_at else state

    async def take(self, records: Sequence[Record]) -> list[Admitted]:
        begin = [record for record in records if record.offset < self._stored_at]
        admitted = await self._take(begin)
        if self._at_stored is None and len(begin) < len(records):
            self._at_stored = self._current(self._stored_at)
        return admitted + await self._take(records[len(begin) :])

    async def _take(self, records: Sequence[Record]) -> list[Admitted]:
        admitted: list[Admitted] = []
        changing: list[tuple[int, _Rule]] = []
        for record in records:
            before = _Rule.of(self._admission)
            each = self._admission.admit(record)
            if each.event is not None and changes_shared(each.event):
                changing.append((len(admitted), before))
                self.values |= own_changes(each)
            admitted.append(each)
        folded = fold(self._record, admitted)
        chain, packed = self._chain, packed_records(records)
        if self._unseen is None:
            for index, before in changing:
                if await self._has_unseen(admitted[index], folded):
                    seen = admitted[:index]
                    self._unseen = self._state(
                        fold(self._record, seen),
                        fold_usage(self._usage, seen),
                        fold_activity(self._activity, seen),
                        chain=extend(chain, packed[:index]),
                        next_offset=admitted[index].record.offset,
                        rule=before,
                    )
                    break
        self._record, self._usage = folded, fold_usage(self._usage, admitted)
        self._activity = fold_activity(self._activity, admitted)
        self._chain = extend(chain, packed)
        return admitted

    async def _has_unseen(self, admitted: Admitted, record: RunRecord) -> bool:
        """Whether a change of the event has to be seen in the shared topics, and was not."""
        if not self._may_affect(admitted.record):
            return False
        forwards = shared_changes(admitted, app=record.agent_id, user=record.user_id)
        events = {(each.key, each.event.event_id) for each in forwards}
        return bool(events - (await self._positions.first_offsets(events)).keys())

    def _current(self, next_offset: int) -> RunState:
        return self._state(
            self._record, self._usage, self._activity, chain=self._chain, next_offset=next_offset
        )

    def _state(
        self,
        record: RunRecord,
        usage: RunUsage,
        activity: RunActivity,
        *,
        chain: bytes,
        next_offset: int,
        rule: "_Rule | None" = None,
    ) -> RunState:
        opened, ended, last_offset = rule or _Rule.of(self._admission)
        return RunState(
            log_id=self._run.log_id,
            partition=self._partition,
            active=True,
            record=record.model_copy(update={"next_offset": next_offset}),
            usage=usage,
            opened=opened,
            ended=ended,
            last_offset=last_offset,
            announced_ms=self._announced_ms,
            chain=chain,
            activity=activity,
        )


def _unfolded(run_id: str, document: Mapping[str, Any]) -> RunRecord:
    """The record before the first event, with what the catalog says of the run."""
    agent, session = document.get("agent_id"), document.get("session_id")
    return RunRecord(
        run_id=run_id,
        agent_id=agent if isinstance(agent, str) else "",
        session_id=session if isinstance(session, str) else None,
    )


def _has_other_life(document: Mapping[str, Any], run: RunTopic) -> bool:
    """Whether another life of the run counts, so that the log of this one counts for nothing."""
    state = _sound(document)
    return state is not None and state.log_id != run.log_id


def _position_of(document: Mapping[str, Any]) -> int:
    """The position of the stored state. 0 if there is none, or a damaged one."""
    state = _sound(document)
    return state.record.next_offset if state is not None else 0


def _sound(document: Mapping[str, Any]) -> RunState | None:
    try:
        return state_of(document) if document else None
    except DamagedError:
        return None


async def _mend_state(stores: Edition, document: Mapping[str, Any], expected: RunState) -> tuple[int, bool]:
    """The number of states that were written, and whether the state is right now."""
    if not document:
        return len(await stores.runs.add([expected])), True
    if await _has_state(stores, document, expected):
        return 0, True
    is_written = await stores.runs.replace(expected, stored=document)
    return int(is_written), is_written


async def _has_state(stores: Edition, document: Mapping[str, Any], expected: RunState) -> bool:
    stored = _sound(document)
    return (
        stored is not None
        and replace(stored, active=True, partition=expected.partition) == expected
        and not await stores.runs.inconsistent_fields(expected.run_id)
    )


async def _mend_values(stores: Edition, log_id: str, expected: Mapping[str, Value], *, end: int) -> int:
    """The number of values that were written or deleted. Values of later records are left alone."""
    scope = own_scope(log_id)
    stored = {document["_id"]: document for document in await stores.values.documents(scope)}
    missing = []
    count = 0
    for key, value in expected.items():
        entry = Entry(scope, key, value)
        document = stored.pop(value_id(scope, key), None)
        if document is None:
            missing.append(entry)
        elif not _holds(document, entry, end=end):
            await stores.values.put(entry, stored=document)
            count += 1
    extra = [document for document in stored.values() if not _holds(document, None, end=end)]
    await stores.values.save(missing)
    await stores.values.delete_documents(extra)
    return count + len(missing) + len(extra)


def _holds(document: Mapping[str, Any], entry: Entry | None, *, end: int) -> bool:
    """Whether the document is this entry, or one of a later record."""
    try:
        stored = entry_of(document)
    except DamagedError:
        return False
    return stored == entry or stored.value.offset >= end
