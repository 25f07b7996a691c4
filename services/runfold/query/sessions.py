"""Sessions from MongoDB. An answer contains every change that was acknowledged before the question.

`SharedReader` waits until the shared topics are folded to their ends. A run that the projector has
not reached yet is read from its log.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from runfold.client.prefixes import check_offset
from runfold.client.session import (
    NOW,
    EventSelection,
    RecordedEvent,
    Session,
    is_selected,
    is_shown,
    shared_scopes,
    user_of_scopes,
)
from runfold.log.reader import LogGoneError
from runfold.query.as_of import end_of
from runfold.query.history import History, Slice, SnapshotHistory
from runfold.query.runs import RunReader
from runfold.query.shared import SharedReader
from runfold.query.unforeseen import reading_run
from runfold.store.edition import Edition
from runfold.store.sessions import SessionFilter
from runfold.store.state import own_scope
from runfold_projections.as_of import AsOf
from runfold_projections.run import RunRecord, fold
from runfold_projections.session import SessionRecord, life_of
from runfold_projections.state import Value, own_changes
from runfold_schemas.catalog import Life
from runfold_schemas.codec import Record, decode
from runfold_schemas.errors import InvalidIdError, QuarantinedError, UnavailableError
from runfold_schemas.sessions import session_key
from runfold_schemas.topics import Partition

_PATIENCE_SECONDS: Final = 0.5
_PATIENCE_SHORT_SECONDS: Final = 0.03
_SHORT: Final = 500
"""Events of a short log. Reading it from Kafka takes some 10 ms, so the wait for the projector is
short too.
"""

_ATTEMPTS: Final = 5
"""Attempts to read state and events of one moment. After them, the log is read instead."""


class StoredSessions:
    """A `SessionReader`."""

    def __init__(self, shared: SharedReader, runs: RunReader) -> None:
        self._shared = shared
        self._runs = runs
        self._names = shared.names

    async def find(self, session_id: str) -> SessionRecord | None:
        async def read(edition: Edition) -> SessionRecord | None:
            record = (await edition.sessions.get([session_id])).get(session_id)
            return record if record is None else await self._shared.revealed_session(record)

        return await self._shared.find(session_key(session_id), read)

    async def view(
        self, record: SessionRecord, selection: EventSelection | None, moment: AsOf = NOW
    ) -> Session:
        if moment != NOW:
            return await self._view_as_of(record, selection, moment)
        scopes = shared_scopes(record)
        at = self._run_partition(record)
        ends = await self._shared.ends({*await self._shared.deciding(scopes), at})
        end = await self._runs.log_end(at, ends.pop(at, None))
        shared = await self._values(await self._shared.edition_at(ends), scopes)
        return await self._session(record, end, shared, selection)

    async def _view_as_of(
        self, record: SessionRecord, selection: EventSelection | None, moment: AsOf
    ) -> Session:
        at = self._run_partition(record)
        log_end = await self._runs.log_end(at, (await self._shared.ends({at})).get(at))
        check_offset(moment, record.run_id, log_end=log_end)
        history, _ = await self._history(life_of(record), log_end)
        end = await end_of(moment, history)
        folded = await _fold(history, _Folded(RunRecord(run_id=record.run_id), -1, {}), end=end)
        events: Sequence[RecordedEvent] = ()
        if selection is not None:
            last = end if selection.end_offset is None else min(end, selection.end_offset)
            events = await _events(history, replace(selection, end_offset=last))
        return self._session_of(record, folded, {}, events)

    async def _session(
        self, record: SessionRecord, end: int, shared: Mapping[str, Any], selection: EventSelection | None
    ) -> Session:
        history, own = await self._history(life_of(record), end)
        # What is revealed once is never revealed again: clear text may look like a ciphertext.
        own = await self._shared.revealed_own(own, record)
        folded = _Folded(await self._runs.revealed(history.base), history.base_last_offset, own)
        folded = await _fold(history, folded, end=history.end)
        events = await _events(history, selection) if selection is not None else ()
        return self._session_of(record, folded, shared, events)

    def _session_of(
        self,
        record: SessionRecord,
        folded: "_Folded",
        shared: Mapping[str, Any],
        events: Sequence[RecordedEvent],
    ) -> Session:
        run, last_offset, own = folded
        state = {**self._shared.shown(_plain(own)), **shared}
        return Session(record, run, run.next_offset, last_offset, state, events)

    async def _history(self, life: Life, end: int) -> tuple[History, dict[str, Value]]:
        """The run up to `end` at least, and its saved own state, which holds nothing later than the
        run's end.
        """
        for _ in range(_ATTEMPTS):
            patience = _PATIENCE_SHORT_SECONDS if end <= _SHORT else _PATIENCE_SECONDS
            history = await self._runs.up_to(life, end, patience_seconds=patience)
            if not isinstance(history, SnapshotHistory):
                return history, {}
            scope = own_scope(life.log_id)
            own = (await history.edition.values.read([scope]))[scope]
            latest = _latest(own)
            if latest < history.end:
                return history, own
            end = latest + 1  # events were appended meanwhile
        return self._runs.log_history(life, end=end), {}

    async def values(self, scopes: Sequence[str]) -> dict[str, Any]:
        # A scope in quarantine has its values from before: they are read by sessions of others too.
        partitions = await self._shared.deciding(scopes)
        return await self._values(await self._shared.edition_after(partitions), scopes)

    async def _views(
        self, edition: Edition, records: Sequence[SessionRecord], *, with_state: bool
    ) -> list[Session]:
        """The sessions that were not deleted meanwhile. Few queries read them all; a session whose
        saved state lags behind its log is read alone.
        """
        partitions = {record.run_id: at for record in records if (at := self._partition(record)) is not None}
        ends = await self._shared.ends(partitions.values())
        existing = [record for record in records if partitions.get(record.run_id) in ends]
        states = await edition.runs.get_many([record.run_id for record in existing])
        scopes = {
            scope for record in existing for scope in (*shared_scopes(record), own_scope(record.log_id))
        }
        values = await edition.values.read(sorted(scopes)) if with_state else {key: {} for key in scopes}
        sessions = []
        for record in existing:
            state, end = states.get(record.run_id), ends[partitions[record.run_id]]
            own = await self._shared.revealed_own(values[own_scope(record.log_id)], record)
            joined = _join(values, shared_scopes(record))
            shared = await self._shared.revealed_state(joined, record.user)
            run = state.record if state is not None else RunRecord(run_id=record.run_id)
            last_offset = state.last_offset if state is not None else -1
            run = await self._runs.revealed(run)
            stored = Session(
                record, run, run.next_offset, last_offset, {**self._shared.shown(_plain(own)), **shared}
            )
            if state is None or state.record.next_offset < max(end, _latest(own) + 1):
                session = await self._unless_deleted(stored, end, shared)
                if session is not None:
                    sessions.append(session if with_state else replace(session, state={}))
            else:
                sessions.append(stored)
        return sessions

    async def _unless_deleted(self, stored: Session, end: int, shared: Mapping[str, Any]) -> Session | None:
        """The session with all events before `end`; as it is stored, if its run is in
        quarantine.
        """
        record = stored.record
        try:
            return await self._session(record, end, shared, None)
        except LogGoneError:
            return None
        except QuarantinedError:
            return stored
        except UnavailableError:
            # Its pages may have been deleted while they were read.
            current = await self.find(record.session_id)
            if current is not None and current.run_id == record.run_id:
                raise
            return None

    async def _values(self, edition: Edition | None, scopes: Sequence[str]) -> dict[str, Any]:
        if edition is None:
            return {}
        values = _join(await edition.values.read(scopes), scopes)
        return await self._shared.revealed_state(values, user_of_scopes(scopes))

    def _run_partition(self, record: SessionRecord) -> Partition:
        return Partition(self._names.run(record.run_id, record.log_id), 0)

    def _partition(self, record: SessionRecord) -> Partition | None:
        """None if the record's ids cannot name a topic, so that it has no log."""
        try:
            return self._run_partition(record)
        except InvalidIdError:
            return None

    async def list(
        self,
        *,
        app: str | None,
        user: str | None,
        labels: Mapping[str, str],
        limit: int,
        cursor: str | None,
        with_state: bool,
    ) -> tuple[list[Session], str | None]:
        self._shared.check_filter(labels)
        edition = await self._shared.edition_of_topic(self._names.sessions)
        if edition is None:
            return [], None
        records, following = await edition.sessions.list(
            SessionFilter(app, user, labels), now=datetime.now(UTC), limit=limit, cursor=cursor
        )
        records = [await self._shared.revealed_session(record) for record in records]
        return await self._views(edition, records, with_state=with_state), following


class _Folded(NamedTuple):
    """What is folded of a session's log: its run, its last event that counts, and its state."""

    run: RunRecord
    last_offset: int
    own: dict[str, Value]


async def _fold(history: History, folded: _Folded, *, end: int) -> _Folded:
    """The same at `end`: what is saved may lag behind the pages."""
    run, last_offset, own = folded
    async for slice_ in history.slices(first_offset=run.next_offset, end=end):
        with reading_run(history.run_id):
            records = slice_.admitted()
            run = fold(run, records).model_copy(update={"next_offset": slice_.next_offset})
        for admitted in records:
            last_offset = admitted.record.offset if admitted.counts else last_offset
            changes = own_changes(admitted).items()
            own |= {key: value for key, value in changes if _is_later(own, key, value)}
        await asyncio.sleep(0)
    return _Folded(run.model_copy(update={"next_offset": end}), last_offset, own)


async def _events(history: History, selection: EventSelection) -> list[RecordedEvent]:
    """The matching events, as they are in the log. They are decoded only if their time matters."""
    if selection.newest is None:
        return await _events_from(history, selection, selection.first_offset, limit=selection.limit)
    if selection.newest == 0:
        return []
    begin = await _begin_of_newest(history, selection)
    kept = await _events_from(history, selection, begin)
    if len(kept) < selection.newest and begin > selection.first_offset:
        # A page whose head is damaged counted too many events.
        kept = await _events_from(history, selection, selection.first_offset)
    return kept[-selection.newest :][: selection.limit]


async def _begin_of_newest(history: History, selection: EventSelection) -> int:
    """The offset from which to read for the newest events: near the end, unless the filter looks at
    more than types.
    """
    if not isinstance(history, SnapshotHistory) or selection.since or selection.end_offset is not None:
        return selection.first_offset
    begin = await history.begin_of_last(selection.newest or 0, lambda counts: _count_shown(counts, selection))
    return max(begin, selection.first_offset)


async def _events_from(
    history: History, selection: EventSelection, begin: int, *, limit: int | None = None
) -> list[RecordedEvent]:
    events: list[RecordedEvent] = []
    async with aclosing(history.slices(first_offset=begin, end=selection.end_offset)) as slices:
        async for slice_ in slices:
            events += _events_of(slice_, selection)
            if limit is not None and len(events) >= limit:
                break
            await asyncio.sleep(0)
    return events[:limit]


def _count_shown(counts: Mapping[str, int], selection: EventSelection) -> int:
    return sum(count for kind, count in counts.items() if is_shown(kind, selection.types))


def _events_of(slice_: Slice, selection: EventSelection) -> list[RecordedEvent]:
    shown = [is_shown(kind, selection.types) for kind in slice_.types]
    if not any(shown):
        return []
    records, outcomes = slice_.counting()
    if selection.since is not None or not all(shown):
        records = [record for record in records if _is_selected(record, selection)]
    return [
        RecordedEvent(offset, log_time, outcomes.get(offset, "accepted"), value or b"")
        for offset, log_time, _, _, value in records
    ]


def _is_selected(record: Record, selection: EventSelection) -> bool:
    kind = next((value for name, value in record.headers if name == "ce_type" and value), None)
    if kind is None or selection.since is not None:
        # A record may lack the header, and no header is sure to have the event's time.
        return is_selected(record.offset, decode(record.value), selection)
    return is_shown(kind.decode(), selection.types)


def _join(values: Mapping[str, Mapping[str, Value]], scopes: Sequence[str]) -> dict[str, Any]:
    """The values of several scopes by key."""
    return {key: value.value for scope in scopes for key, value in values[scope].items()}


def _plain(values: Mapping[str, Value]) -> dict[str, Any]:
    return {key: value.value for key, value in values.items()}


def _latest(values: Mapping[str, Value]) -> int:
    return max((value.offset for value in values.values()), default=-1)


def _is_later(own: Mapping[str, Value], key: str, value: Value) -> bool:
    return key not in own or own[key].offset < value.offset
