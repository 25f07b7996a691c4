"""Sessions, written by the owners of the partitions of `{prefix}.sessions`.

For a moment a partition may have two owners. Both fold the same records, and a document replaces
only an older document, so a late owner does no harm. For the same reason a deleted session stays as
its position, and an erased one for an hour.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pymongo import ASCENDING, IndexModel, UpdateOne

from runfold.store.damage import read_record, seal
from runfold.store.database import Database
from runfold.store.lazy_indexes import LazyIndexes
from runfold.store.listing import (
    QUERY_MS,
    after_cursor,
    cursor_of,
    label_pairs,
    list_index,
    microseconds,
    newest_first,
)
from runfold.store.unavailable import mongo_errors
from runfold.store.writing import FORGOTTEN, upsert_where
from runfold_projections.session import SessionRecord
from runfold_schemas.errors import DamagedError

_NOT_DELETED: dict[str, Any] = {"record": {"$ne": None}}

_NOBODY: Final = "\0erased"
"""The user of an erased session. A session that is created anew has a user's id."""

_INDEXES = [
    list_index("created_us", "app"),
    list_index("created_us", "app", "user"),
    list_index("created_us", "user"),
    list_index("created_us", "label_pairs"),
    list_index("created_us"),
    IndexModel([("expires_us", ASCENDING)], sparse=True),
    IndexModel([("removed", ASCENDING)], expireAfterSeconds=0, partialFilterExpression={"user": _NOBODY}),
]


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """A filter for lists of sessions. Fields that are None do not restrict."""

    app: str | None = None
    user: str | None = None
    labels: Mapping[str, str] | None = None


class SessionStore:
    """The sessions of one edition."""

    def __init__(self, database: Database, edition: str) -> None:
        self._sessions = database[f"sessions.{edition}"]
        self.indexes: Final = LazyIndexes(self._sessions, _INDEXES)

    async def create_indexes(self) -> None:
        await self.indexes.create()

    async def get(self, session_ids: Sequence[str]) -> dict[str, SessionRecord]:
        with mongo_errors():
            cursor = self._sessions.find({"_id": {"$in": list(session_ids)}, **_NOT_DELETED})
            return {document["_id"]: _record(document) async for document in cursor}

    async def save(self, sessions: Mapping[str, SessionRecord | None], *, position: int) -> None:
        """Saves the state of sessions after `position` records of their partition. None stands for
        a deleted session.
        """
        operations = [
            UpdateOne(
                {"_id": session_id, "position": {"$lt": position}},
                {"$set": {"position": position, **_fields(record, position)}}
                if record is not None
                else {"$set": {"position": position}, "$unset": dict.fromkeys(_FIELDS, "")},
                upsert=True,
            )
            for session_id, record in sessions.items()
        ]
        if operations:
            await self.indexes.before_insert()
        await upsert_where(self._sessions, operations)

    async def forget(self, session_ids: Iterable[str]) -> None:
        """Removes the ids of deleted sessions after an hour, because an erasure deleted them."""
        query = {"_id": {"$in": list(session_ids)}, "record": None}
        removed = {"removed": datetime.now(UTC) + FORGOTTEN, "user": _NOBODY}
        with mongo_errors():
            await self._sessions.update_many(query, {"$set": removed})

    async def delete(self, session_id: str) -> None:
        """Removes what is stored of a session, because its events are folded anew."""
        with mongo_errors():
            await self._sessions.delete_one({"_id": session_id})

    async def expired(self, now: datetime) -> AsyncIterator[SessionRecord]:
        """The sessions that have expired."""
        query = {**_NOT_DELETED, "expires_us": {"$lte": microseconds(now)}}
        with mongo_errors():
            async for document in self._sessions.find(query):
                yield _record(document)

    async def next_expiry(self) -> datetime | None:
        """When the next session expires, also if it has expired already. None if none does."""
        query = {**_NOT_DELETED, "expires_us": {"$gt": 0}}
        with mongo_errors():
            document = await self._sessions.find_one(
                query, {"expires_us": 1}, sort=[("expires_us", ASCENDING)]
            )
        return None if document is None else datetime.fromtimestamp(document["expires_us"] / 1e6, UTC)

    async def all(self) -> dict[str, SessionRecord]:
        """All sessions, for `verify`. Damaged ones are left out."""
        sessions = {}
        with mongo_errors():
            async for document in self._sessions.find(_NOT_DELETED):
                with suppress(DamagedError):
                    sessions[document["_id"]] = _record(document)
        return sessions

    async def list(
        self, session_filter: SessionFilter, *, now: datetime, limit: int, cursor: str | None = None
    ) -> tuple[list[SessionRecord], str | None]:
        """A page of sessions that have not expired, newest first, and the cursor of the next page.

        Raises `InvalidEventError` for a cursor that no list returned.
        """
        query = after_cursor(_query(session_filter, now), "created_us", cursor)
        with mongo_errors():
            found = self._sessions.find(query).sort(newest_first("created_us")).limit(limit + 1)
            documents = found.max_time_ms(QUERY_MS)
            records = [_record(document) async for document in documents]
        if len(records) <= limit:
            return records, None
        return records[:limit], cursor_after(records[limit - 1])


def cursor_after(record: SessionRecord) -> str:
    """The cursor with which `SessionStore.list` goes on after this session."""
    return cursor_of((microseconds(record.created_at), record.session_id))


def _query(session_filter: SessionFilter, now: datetime) -> dict[str, Any]:
    fields = {"app": session_filter.app, "user": session_filter.user}
    query = _NOT_DELETED | {name: value for name, value in fields.items() if value is not None}
    if session_filter.labels:
        query["label_pairs"] = {"$all": label_pairs(session_filter.labels)}
    return query | {"expires_us": {"$not": {"$lte": microseconds(now)}}}


def _fields(record: SessionRecord, position: int) -> dict[str, Any]:
    text = record.model_dump_json()
    return {
        "record": text,
        "seal": seal(position, text),
        "app": record.app,
        "user": record.user,
        "created_us": microseconds(record.created_at),
        "label_pairs": label_pairs(record.labels),
        "expires_us": microseconds(record.expires_at) if record.expires_at else None,
    }


_FIELDS = ("record", "seal", "app", "user", "created_us", "label_pairs", "expires_us")


def _record(document: dict[str, Any]) -> SessionRecord:
    return read_record(SessionRecord, document, "sessions", position="position")
