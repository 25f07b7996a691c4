"""Sessions, written by the owners of the partitions of `{prefix}.sessions`.

For a moment a partition may have two owners. Both fold the same records, and a document replaces
only an older document, so a late owner does no harm. For the same reason a deleted session stays as
its position.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import ASCENDING, IndexModel, UpdateOne

from runfold.store.database import Database
from runfold.store.listing import (
    after_cursor,
    cursor_of,
    label_pairs,
    list_index,
    microseconds,
    newest_first,
)
from runfold.store.unavailable import mongo_errors
from runfold.store.writing import upsert_where
from runfold_projections.session import SessionRecord

_NOT_DELETED: dict[str, Any] = {"record": {"$ne": None}}

_INDEXES = [
    list_index("created_us", "app"),
    list_index("created_us", "app", "user"),
    list_index("created_us", "user"),
    list_index("created_us", "label_pairs"),
    list_index("created_us"),
    IndexModel([("expires_us", ASCENDING)], sparse=True),
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

    async def create_indexes(self) -> None:
        with mongo_errors():
            await self._sessions.create_indexes(_INDEXES)

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
                {"$set": {"position": position, **_fields(record)}}
                if record is not None
                else {"$set": {"position": position}, "$unset": dict.fromkeys(_FIELDS, "")},
                upsert=True,
            )
            for session_id, record in sessions.items()
        ]
        await upsert_where(self._sessions, operations)

    async def expired(self, now: datetime) -> AsyncIterator[SessionRecord]:
        """The sessions that have expired."""
        query = {**_NOT_DELETED, "expires_us": {"$lte": microseconds(now)}}
        with mongo_errors():
            async for document in self._sessions.find(query):
                yield _record(document)

    async def all(self) -> dict[str, SessionRecord]:
        """All sessions, for `verify`."""
        with mongo_errors():
            return {
                document["_id"]: _record(document) async for document in self._sessions.find(_NOT_DELETED)
            }

    async def list(
        self, session_filter: SessionFilter, *, now: datetime, limit: int, cursor: str | None = None
    ) -> tuple[list[SessionRecord], str | None]:
        """A page of sessions that have not expired, newest first, and the cursor of the next page.

        Raises `InvalidEventError` for a cursor that no list returned.
        """
        query = after_cursor(_query(session_filter, now), "created_us", cursor)
        with mongo_errors():
            documents = self._sessions.find(query).sort(newest_first("created_us")).limit(limit + 1)
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


def _fields(record: SessionRecord) -> dict[str, Any]:
    return {
        "record": record.model_dump_json(),
        "app": record.app,
        "user": record.user,
        "created_us": microseconds(record.created_at),
        "label_pairs": label_pairs(record.labels),
        "expires_us": microseconds(record.expires_at) if record.expires_at else None,
    }


_FIELDS = ("record", "app", "user", "created_us", "label_pairs", "expires_us")


def _record(document: dict[str, Any]) -> SessionRecord:
    return SessionRecord.model_validate_json(document["record"])
