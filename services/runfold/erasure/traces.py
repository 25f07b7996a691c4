"""What the topics that runs share have of a user, and how much of it is erased already.

The log alone is read, so nothing is missed that a projector has not folded yet, and a repeated
erasure goes on where the one before it was killed.
"""

import json
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from runfold.encryption.subjects import subject_of_scope
from runfold.erasure.contents import Readable, of_event
from runfold.log.catalog_view import CatalogView
from runfold.log.ends import LogEnds
from runfold.log.leaders import Leaders
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold.log.shared import Keyed, decided_event, partitions_of
from runfold_projections.memory import Head, Refused
from runfold_projections.memory import apply as apply_to_memory
from runfold_projections.session import SessionRecord
from runfold_projections.session import apply as apply_to_session
from runfold_schemas.codec import Record
from runfold_schemas.errors import UndecodableError
from runfold_schemas.memories import (
    USER_KEYS,
    MemoryChange,
    MemoryCreated,
    MemoryDeleted,
    MemoryRolledBack,
    MemoryUpdated,
    memory_key,
)
from runfold_schemas.sessions import (
    RunDeleted,
    SessionCreated,
    SessionDeleted,
    SessionUpdated,
    StateChanged,
    StateDeleted,
    parted,
)
from runfold_schemas.topics import Partition

_USER_SCOPE = "user:"


class TracedSession(NamedTuple):
    """A session of the user, which may be deleted."""

    session_id: str
    app: str
    run_id: str
    log_id: str


class TracedMemory(NamedTuple):
    """A memory of a scope that names the user."""

    bank_id: str
    memory_id: str
    began: int
    """The offset of its creation. A later memory with the same id may be somebody else's."""

    @property
    def key(self) -> str:
        return memory_key(self.bank_id, self.memory_id)


class Deletion(NamedTuple):
    """The last deletion of a state or of a memory by an erasure of the user."""

    offset: int
    """What was set before is deleted. A memory with this id may have begun later."""
    memory: TracedMemory | None = None


class ErasedRun(NamedTuple):
    """A run that an erasure of the user has deleted."""

    run_id: str
    log_id: str


@dataclass
class Traces:
    """What is left of the user, and when the rest was erased. Sessions are named by their runs."""

    sessions: dict[str, TracedSession] = field(default_factory=dict)
    scopes: set[str] = field(default_factory=set)
    memories: dict[str, TracedMemory] = field(default_factory=dict)
    erased_sessions: dict[str, tuple[TracedSession, datetime]] = field(default_factory=dict)
    erased_scopes: dict[str, datetime] = field(default_factory=dict)
    erased_memories: dict[str, datetime] = field(default_factory=dict)
    erased_runs: dict[ErasedRun, datetime] = field(default_factory=dict)
    deletions: dict[str, Deletion] = field(default_factory=dict)
    """Those of erased scopes and memories, by key."""
    has_clear: bool = False
    """Whether a record has contents of the user that are not encrypted."""
    owners: dict[str, str] = field(default_factory=dict)
    """The user of the last session under each id that was one of the user's."""
    subjects: set[str] = field(default_factory=set)
    """Those by whose keys memories of the user are encrypted."""
    heads: dict[str, Head] = field(default_factory=dict)
    """Of the memories under keys that may have something of the user, as projectors fold them."""
    live_sessions: dict[str, SessionRecord | None] = field(default_factory=dict)
    """Those under such keys, as projectors fold them."""

    @property
    def all_sessions(self) -> list[TracedSession]:
        """All sessions of the user that ever were."""
        return [*self.sessions.values(), *(session for session, _ in self.erased_sessions.values())]

    @property
    def session_ids(self) -> set[str]:
        return {session.session_id for session in self.all_sessions}

    def own_session_ids(self, user: str) -> set[str]:
        """The ids whose last session was the user's. Others were used again by somebody else."""
        return {session_id for session_id in self.session_ids if self.owners.get(session_id) == user}


def names_user(scope: Mapping[str, str], user: str) -> bool:
    """Whether the scope of a memory names the user."""
    return any(scope.get(key) == user for key in USER_KEYS)


def is_scope_of(key: str, user: str) -> bool:
    """Whether the key is that of the state of the user in some app."""
    return key.startswith(_USER_SCOPE) and parted(key.removeprefix(_USER_SCOPE))[1:] == (user,)


async def find_traces(settings: LogSettings, catalog: CatalogView, *, user: str, subject: str) -> Traces:
    """Reads the topics of sessions and of memories. Raises `UnavailableError`."""
    topics, traces = settings.topics, Traces()
    partitions = [*partitions_of(topics, topics.sessions), *partitions_of(topics, topics.memories)]
    await catalog.read_skips(range(topics.partitions))
    async with LogEnds.connect(settings) as ends:
        end_of = await ends.ends_of(partitions)
        for at in partitions:
            if end_of.get(at) != 0:
                await _read(settings, at, ends.leaders, catalog, traces, user=user, subject=subject)
    return traces


async def _read(
    settings: LogSettings,
    at: Partition,
    leaders: Leaders,
    catalog: CatalogView,
    traces: Traces,
    *,
    user: str,
    subject: str,
) -> None:
    """Takes the events under keys that have something of the user. Each counts once."""
    needles = json.dumps(user, ensure_ascii=False)[1:-1].encode(errors="surrogatepass"), subject.encode()
    keys: set[bytes | None] = set()
    async with aclosing(read(settings, at.topic, partition=at.partition, leaders=leaders)) as reading:
        async for records in reading:
            keys.update(record.key for record in records if _may_name(record, needles))
    if not keys:
        return
    seen: set[tuple[str, str]] = set()
    async with aclosing(read(settings, at.topic, partition=at.partition, leaders=leaders)) as reading:
        async for records in reading:
            for record in records:
                if record.key not in keys:
                    continue
                try:
                    keyed = decided_event(settings.topics, record, at, catalog.skipped(at))
                except UndecodableError:
                    continue
                if (keyed.key, keyed.event.event_id) in seen:
                    continue
                seen.add((keyed.key, keyed.event.event_id))
                if _take(traces, keyed, user=user, subject=subject):
                    is_clear = of_event(record.value, ()) is Readable.CLEAR
                    traces.has_clear = traces.has_clear or is_clear


def _may_name(record: Record, needles: tuple[bytes, ...]) -> bool:
    texts = record.value or b"", record.key or b""
    if any(needle in text for needle in needles for text in texts):
        return True
    # A value with escapes may have the same text in another form, and so may a key.
    return b"\\" in texts[0] or b"%" in texts[1]


def _take(traces: Traces, keyed: Keyed, *, user: str, subject: str) -> bool:
    """Whether the event is about the user."""
    data, at, run_id = keyed.event.data, keyed.event.timestamp, keyed.event.run_id
    counts = _fold(traces, keyed)
    match data:
        case SessionCreated():
            if counts:
                _take_session(traces, data, run_id, user)
            return data.user == user
        case SessionUpdated():
            return run_id in traces.sessions or run_id in traces.erased_sessions
        case SessionDeleted() if data.erased == subject:
            session = traces.sessions.pop(run_id, None)
            if session is not None:
                traces.erased_sessions[run_id] = session, at
        case StateChanged() if is_scope_of(keyed.key, user):
            traces.scopes.add(keyed.key)
        case StateDeleted() if data.erased == subject:
            traces.scopes.discard(keyed.key)
            traces.erased_scopes[keyed.key] = at
            traces.deletions[keyed.key] = Deletion(keyed.offset)
        case RunDeleted() if data.erased == subject:
            traces.erased_runs[ErasedRun(run_id, data.log_id)] = at
        case MemoryDeleted() if data.erased == subject:
            _take_erasure(traces, keyed, counts=counts)
        case MemoryCreated() | MemoryUpdated() | MemoryRolledBack() if names_user(data.memory.scope, user):
            traces.subjects.add(subject_of_scope(data.bank_id, data.memory.scope))
            if counts:
                began = traces.heads[keyed.key].began
                traces.memories[keyed.key] = TracedMemory(data.bank_id, data.memory_id, began)
        case _:
            return False
    return True


def _fold(traces: Traces, keyed: Keyed) -> bool:
    """Whether the event has an effect, as projectors decide it."""
    event = keyed.event
    match event.data:
        case SessionCreated() | SessionUpdated() | SessionDeleted() as change:
            before = traces.live_sessions.get(change.session_id)
            after = traces.live_sessions[change.session_id] = apply_to_session(before, event)
            return after is not before
        case MemoryChange():
            effect = apply_to_memory(traces.heads.get(keyed.key), event, keyed.offset)
            if isinstance(effect, Refused):
                return False
            traces.heads[keyed.key] = effect.head
    return True


def _take_erasure(traces: Traces, keyed: Keyed, *, counts: bool) -> None:
    """Takes the erasure of a memory. One without effect is of an earlier memory with the id."""
    traces.erased_memories[keyed.key] = keyed.event.timestamp
    memory, head = traces.memories.get(keyed.key), traces.heads.get(keyed.key)
    if memory is not None:
        is_later = head is not None and head.began != memory.began
        traces.deletions[keyed.key] = Deletion(head.began if head and is_later else keyed.offset, memory)
    if counts or head is None or (memory is not None and memory.began != head.began):
        traces.memories.pop(keyed.key, None)


def _take_session(traces: Traces, created: SessionCreated, run_id: str, user: str) -> None:
    traces.owners[created.session_id] = created.user
    if created.user == user:
        traces.sessions[run_id] = TracedSession(created.session_id, created.app, run_id, created.log_id)
