"""Sessions as MongoDB has them, and nothing older than what was acknowledged before they were asked for.

Kafka is asked how far the logs reach that decide an answer; then the answer waits until as much is folded. A run that the
projector has not reached yet is read from its log instead.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime
from typing import Any, Final, Self

from aiokafka import TopicPartition

from runfold.log.catalog import partition_of
from runfold.log.ends import LogEnds
from runfold.log.reader import LogGoneError
from runfold.log.settings import LogSettings
from runfold.query.history import History, Slice, SnapshotHistory
from runfold.query.runs import RunReader
from runfold.query.snapshots import Generation, Snapshots
from runfold.session import EventsWanted, Logged, Session, life_of
from runfold.session_log import is_shown, is_wanted, shared_scopes
from runfold.store.sessions import SessionFilter
from runfold.store.state import own_scope
from runfold_projections.run import fold
from runfold_projections.session import SessionRecord
from runfold_projections.state import Value, own_changes
from runfold_schemas.catalog import Life
from runfold_schemas.codec import Record, decode
from runfold_schemas.errors import InvalidIdError, UnavailableError
from runfold_schemas.sessions import session_key
from runfold_schemas.topics import CATALOG_PARTITIONS, Topics

_POLL_SECONDS: Final = 0.002
_POLL_SECONDS_MAX: Final = 0.020

_PATIENCE_SECONDS: Final = 0.5
_PATIENCE_SHORT_SECONDS: Final = 0.03
_SHORT: Final = 500
"""Events of a log that is read from Kafka sooner than the projector is waited for: it takes some 10 ms."""

_ATTEMPTS: Final = 5
"""To find state and events of one moment, before the log is read instead."""


class StoredSessions:
    """A `SessionReader`. Use it as an async context manager; it connects to Kafka when it is first asked."""

    def __init__(
        self, snapshots: Snapshots, runs: RunReader, settings: LogSettings, *, wait_timeout_seconds: float
    ) -> None:
        self._snapshots = snapshots
        self._runs = runs
        self._settings = settings
        self._topics = Topics(settings.prefix)
        self._wait_timeout_seconds = wait_timeout_seconds
        self._connecting = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._log_ends: LogEnds | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def find(self, session_id: str) -> SessionRecord | None:
        shared = self._shared([session_key(session_id)])
        generation = await self._folded(await self._ends(shared))
        if generation is None:
            return None
        return (await generation.sessions.get([session_id])).get(session_id)

    async def view(self, record: SessionRecord, wanted: EventsWanted | None) -> Session:
        scopes = shared_scopes(record)
        at = self._run_partition(record)
        ends = await self._ends({*self._shared(scopes), at})
        end = ends.pop(at, None)
        if end is None:
            raise LogGoneError(at.topic)
        shared = await self._values(await self._folded(ends), scopes)
        return await self._session(record, end, shared, wanted)

    async def _session(
        self, record: SessionRecord, end: int, shared: Mapping[str, Any], wanted: EventsWanted | None
    ) -> Session:
        history, own = await self._history(life_of(record), end)
        run, last_offset = history.base, history.base_last_offset
        # What is saved lags behind the pages, so the rest is folded here.
        async for part in history.slices(first_offset=run.next_offset):
            admitted = part.admitted()
            run = fold(run, admitted).model_copy(update={"next_offset": part.next_offset})
            for one in admitted:
                last_offset = one.record.offset if one.counts else last_offset
                own |= {key: value for key, value in own_changes(one).items() if _is_later(own, key, value)}
            await asyncio.sleep(0)
        events = await _events(history, wanted) if wanted is not None else ()
        return Session(record, run, history.end, last_offset, {**_plain(own), **shared}, events)

    async def _history(self, life: Life, end: int) -> tuple[History, dict[str, Value]]:
        """The run up to `end` at least, and its own state as it is saved, which is not of a moment after that."""
        for _ in range(_ATTEMPTS):
            patience = _PATIENCE_SHORT_SECONDS if end <= _SHORT else _PATIENCE_SECONDS
            history = await self._runs.up_to(life, end, patience_seconds=patience)
            if not isinstance(history, SnapshotHistory):
                return history, {}
            scope = own_scope(life.log_id)
            own = (await history.generation.values.read([scope]))[scope]
            latest = _latest(own)
            if latest < history.end:
                return history, own
            end = latest + 1  # somebody has appended meanwhile
        return self._runs.log_history(life, end=end), {}

    async def values(self, scopes: Sequence[str]) -> dict[str, Any]:
        return await self._values(await self._folded(await self._ends(self._shared(scopes))), scopes)

    async def _views(self, generation: Generation, records: Sequence[SessionRecord]) -> list[Session]:
        """Those that are not gone, in few queries, but for those whose saved state is behind their log."""
        places = {record.run_id: at for record in records if (at := self._place(record)) is not None}
        ends = await self._ends(places.values())
        standing = [record for record in records if record.run_id in places and places[record.run_id] in ends]
        states = await generation.runs.get_many([record.run_id for record in standing])
        scopes = {
            scope for record in standing for scope in (*shared_scopes(record), own_scope(record.log_id))
        }
        held = await generation.values.read(sorted(scopes))
        found = []
        for record in standing:
            state, end = states.get(record.run_id), ends[places[record.run_id]]
            own = held[own_scope(record.log_id)]
            shared = {key: one.value for scope in shared_scopes(record) for key, one in held[scope].items()}
            if state is None or state.record.next_offset < max(end, _latest(own) + 1):
                view = await self._unless_gone(record, end, shared)
                found += [view] if view is not None else []
                continue
            run = state.record
            found.append(Session(record, run, run.next_offset, state.last_offset, {**_plain(own), **shared}))
        return found

    async def _unless_gone(
        self, record: SessionRecord, end: int, shared: Mapping[str, Any]
    ) -> Session | None:
        try:
            return await self._session(record, end, shared, None)
        except LogGoneError:
            return None
        except UnavailableError:
            # Its pages may just have been deleted under the reader.
            standing = await self.find(record.session_id)
            if standing is not None and standing.run_id == record.run_id:
                raise
            return None

    async def _folded(self, ends: Mapping[TopicPartition, int]) -> Generation | None:
        """The generation that has folded `{prefix}.sessions` up to these ends; None if nothing was ever there to fold."""
        until, pause = time.monotonic() + self._wait_timeout_seconds, _POLL_SECONDS
        while True:
            for generation in await self._snapshots.generations():
                positions = await generation.sessions.positions()
                if all(positions.get(at.partition, 0) >= end for at, end in ends.items()):
                    return generation
            if not any(ends.values()):
                return None
            if time.monotonic() > until:
                raise UnavailableError(
                    "The projector",
                    reason=f"{self._topics.sessions} was not projected to its end within {self._wait_timeout_seconds:g} s",
                )
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, _POLL_SECONDS_MAX)

    async def _values(self, generation: Generation | None, scopes: Sequence[str]) -> dict[str, Any]:
        if generation is None:
            return {}
        held = await generation.values.read(scopes)
        return {key: value.value for scope in scopes for key, value in held[scope].items()}

    async def _ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        try:
            async with asyncio.timeout(self._wait_timeout_seconds):
                return await (await self._connected()).ends_of(list(partitions))
        except TimeoutError as error:
            raise UnavailableError(
                "Kafka", reason=f"no answer in {self._wait_timeout_seconds:g} s"
            ) from error

    async def _connected(self) -> LogEnds:
        async with self._connecting:
            if self._log_ends is None:
                self._log_ends = await self._stack.enter_async_context(
                    LogEnds.connect(self._settings, timeout_seconds=self._wait_timeout_seconds)
                )
            return self._log_ends

    def _shared(self, keys: Iterable[str]) -> set[TopicPartition]:
        """The partitions that decide these keys."""
        return {TopicPartition(self._topics.sessions, partition_of(key)) for key in keys}

    def _run_partition(self, record: SessionRecord) -> TopicPartition:
        return TopicPartition(self._topics.run(record.run_id, record.log_id), 0)

    def _place(self, record: SessionRecord) -> TopicPartition | None:
        """None for a record of somebody's own making, by which there can be no log."""
        try:
            return self._run_partition(record)
        except InvalidIdError:
            return None

    async def list(
        self, *, app: str | None, user: str | None, labels: Mapping[str, str], limit: int, cursor: str | None
    ) -> tuple[list[Session], str | None]:
        shared = {TopicPartition(self._topics.sessions, number) for number in range(CATALOG_PARTITIONS)}
        generation = await self._folded(await self._ends(shared))
        if generation is None:
            return [], None
        records, following = await generation.sessions.list(
            SessionFilter(app, user, labels), now=datetime.now(UTC), limit=limit, cursor=cursor
        )
        return await self._views(generation, records), following


async def _events(history: History, wanted: EventsWanted) -> list[Logged]:
    """The events that are wanted, as they are in the log; they are decoded only where their time has to be known."""
    if wanted.newest is None:
        return await _events_from(history, wanted, wanted.first_offset, limit=wanted.limit)
    if wanted.newest == 0:
        return []
    begin = await _begin_of_newest(history, wanted)
    kept = await _events_from(history, wanted, begin)
    return kept[-wanted.newest :][: wanted.limit]


async def _begin_of_newest(history: History, wanted: EventsWanted) -> int:
    """Where to begin to read for the newest events: near the end, unless more than their kind has to be looked at."""
    if not isinstance(history, SnapshotHistory) or wanted.since or wanted.end_offset is not None:
        return wanted.first_offset
    begin = await history.begin_of_last(wanted.newest or 0, lambda counts: _shown_of(counts, wanted))
    return max(begin, wanted.first_offset)


async def _events_from(
    history: History, wanted: EventsWanted, begin: int, *, limit: int | None = None
) -> list[Logged]:
    found: list[Logged] = []
    async with aclosing(history.slices(first_offset=begin, end=wanted.end_offset)) as slices:
        async for part in slices:
            found += _events_of(part, wanted)
            if limit is not None and len(found) >= limit:
                break
            await asyncio.sleep(0)
    return found[:limit]


def _shown_of(counts: Mapping[str, int], wanted: EventsWanted) -> int:
    return sum(count for kind, count in counts.items() if is_shown(kind, wanted.types))


def _events_of(part: Slice, wanted: EventsWanted) -> list[Logged]:
    shown = [is_shown(kind, wanted.types) for kind in part.types]
    if not any(shown):
        return []
    records, outcomes = part.counting()
    if wanted.since is not None or not all(shown):
        records = [record for record in records if _is_wanted(record, wanted)]
    return [
        Logged(offset, log_time, outcomes.get(offset, "accepted"), value or b"")
        for offset, log_time, _, _, value in records
    ]


def _is_wanted(record: Record, wanted: EventsWanted) -> bool:
    kind = next((value for name, value in record.headers if name == "ce_type" and value), None)
    if kind is None or wanted.since is not None:
        # The header need not be there, and the time in one is nobody's promise.
        return is_wanted(record.offset, decode(record.value), wanted)
    return is_shown(kind.decode(), wanted.types)


def _plain(values: Mapping[str, Value]) -> dict[str, Any]:
    return {key: value.value for key, value in values.items()}


def _latest(values: Mapping[str, Value]) -> int:
    return max((value.offset for value in values.values()), default=-1)


def _is_later(own: Mapping[str, Value], key: str, value: Value) -> bool:
    return key not in own or own[key].offset < value.offset
