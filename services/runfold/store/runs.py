"""Run states: the record of each run with the number of records that it includes, and whether a
worker tails the run.
"""

from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import ASCENDING, IndexModel, UpdateOne

from runfold.store.database import Database
from runfold.store.listing import (
    SortKey,
    after_cursor,
    cursor_of,
    label_pairs,
    list_index,
    microseconds,
    newest_first,
)
from runfold.store.unavailable import mongo_errors
from runfold.store.writing import upsert_where
from runfold_projections.run import RunRecord
from runfold_schemas.catalog import Life

_INDEXES = [
    *(list_index("started_us", field) for field in ("agent_id", "session_id", "status", "label_pairs")),
    list_index("started_us"),
    IndexModel([("partition", ASCENDING), ("active", ASCENDING)]),
    IndexModel([("session_deleted", ASCENDING)], sparse=True),
]

_NOT_DELETED: dict[str, Any] = {"deleted": {"$ne": True}}
"""A deleted run stays as its id, so that a worker that does not know of the deletion cannot add it
again.
"""


@dataclass(frozen=True, slots=True)
class RunState:
    """A life of a run with its fold after `record.next_offset` records. `opened`, `ended` and
    `last_offset` are the state of its `Admission`.
    """

    log_id: str
    partition: int
    active: bool
    record: RunRecord
    opened: bool = False
    ended: bool = False
    last_offset: int = -1
    announced_ms: int = 0
    """When the run was announced first, by the broker's clock, in milliseconds since 1970. Set when
    the run is added, and never changed.
    """

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def life(self) -> Life:
        """The run's life, as in the catalog."""
        record = self.record
        return Life(
            run_id=record.run_id,
            log_id=self.log_id,
            agent_id=record.agent_id,
            session_id=record.session_id,
            user_id=record.user_id,
            ended=self.ended,
        )


@dataclass(frozen=True, slots=True)
class RunFilter:
    """A filter for lists of runs. Fields that are None do not restrict. `since` and `until` are
    limits of `started_at`; `until` is exclusive.
    """

    agent_id: str | None = None
    session_id: str | None = None
    status: str | None = None
    labels: Mapping[str, str] | None = None
    since: datetime | None = None
    until: datetime | None = None

    def matches(self, record: RunRecord) -> bool:
        """Whether a list with this filter contains the run."""
        started = microseconds(record.started_at)
        return (
            self.agent_id in (None, record.agent_id)
            and self.session_id in (None, record.session_id)
            and self.status in (None, record.status)
            and (self.labels or {}).items() <= record.labels.items()
            and (self.since is None or microseconds(self.since) <= started)
            and (self.until is None or started < microseconds(self.until))
        )


class RunStore:
    """The run states of one edition."""

    def __init__(self, database: Database, edition: str) -> None:
        self._runs = database[f"runs.{edition}"]

    async def create_indexes(self) -> None:
        with mongo_errors():
            await self._runs.create_indexes(_INDEXES)

    async def add(self, states: Sequence[RunState]) -> list[RunState]:
        """Adds the runs that do not exist yet, and returns them."""
        if not states:
            return []
        operations = [
            UpdateOne({"_id": state.run_id}, {"$setOnInsert": _document(state)}, upsert=True)
            for state in states
        ]
        with mongo_errors():
            answer = await self._runs.bulk_write(operations, ordered=False)
        return [states[index] for index in answer.upserted_ids]

    async def save(self, states: Iterable[RunState]) -> None:
        """Saves each state over a state of the same life with a lower offset."""
        operations = [
            UpdateOne(
                {
                    "_id": state.run_id,
                    "log_id": state.log_id,
                    "next_offset": {"$lt": state.record.next_offset},
                    **_NOT_DELETED,
                },
                {"$set": _fold_of(state)},
            )
            for state in states
        ]
        if operations:
            with mongo_errors():
                await self._runs.bulk_write(operations, ordered=False)

    async def set_active(self, run_ids: Sequence[str], *, active: bool) -> None:
        with mongo_errors():
            await self._runs.update_many({"_id": {"$in": list(run_ids)}}, {"$set": {"active": active}})

    async def get(self, run_id: str) -> RunState | None:
        with mongo_errors():
            document = await self._runs.find_one({"_id": run_id, **_NOT_DELETED})
        return _from_document(document) if document else None

    async def get_many(self, run_ids: Sequence[str]) -> dict[str, RunState]:
        with mongo_errors():
            return {
                document["_id"]: _from_document(document)
                async for document in self._runs.find({"_id": {"$in": list(run_ids)}, **_NOT_DELETED})
            }

    async def active(self, partitions: Iterable[int], *, except_for: Container[str] = ()) -> list[RunState]:
        """The active runs of these catalog partitions, without the runs in `except_for`."""
        with mongo_errors():
            cursor = self._runs.find({"partition": {"$in": list(partitions)}, "active": True, **_NOT_DELETED})
            return [
                _from_document(document) async for document in cursor if document["_id"] not in except_for
            ]

    async def ends(self, partitions: Iterable[int]) -> dict[str, tuple[str, int]]:
        """The log id and the position of every run of these catalog partitions, by run id. The
        position of a deleted run is -1.
        """
        fields = {"log_id": 1, "next_offset": 1, "deleted": 1}
        with mongo_errors():
            cursor = self._runs.find({"partition": {"$in": list(partitions)}}, fields)
            return {
                document["_id"]: (
                    document["log_id"],
                    -1 if document.get("deleted") else document["next_offset"],
                )
                async for document in cursor
            }

    async def of_session(self, session_id: str, *, announced_by_ms: int | None = None) -> list[Life]:
        """The lives of a session's runs; with `announced_by_ms` only of runs that were announced by
        then.
        """
        query = {"session_id": session_id, **_NOT_DELETED}
        if announced_by_ms is not None:
            query["announced_ms"] = {"$not": {"$gt": announced_by_ms}}
        with mongo_errors():
            return [_from_document(document).life async for document in self._runs.find(query)]

    async def delete(
        self, lives: Iterable[tuple[Life, int]], *, with_session: Mapping[str, int] | None = None
    ) -> list[Life]:
        """Marks lives, given with their catalog partitions, as deleted: readers no longer see them,
        and later writes have no effect. Returns the lives that are deleted now. A life is not
        deleted if its run id belongs to another life.

        `with_session` has the run ids of sessions' own runs, with the time of the session's
        deletion in milliseconds: see `session_deletions`.
        """
        pairs = list(lives)
        operations = [
            UpdateOne(
                {"_id": life.run_id, "log_id": life.log_id},
                {
                    "$set": {
                        "deleted": True,
                        "active": False,
                        "partition": partition,
                        **_session_fields(life, (with_session or {}).get(life.run_id)),
                    },
                    "$unset": dict.fromkeys(_FOLD_FIELDS, ""),
                },
                upsert=True,
            )
            for life, partition in pairs
        ]
        await upsert_where(self._runs, operations)
        deleted = await self.deleted([life.run_id for life, _ in pairs])
        return [life for life, _ in pairs if deleted.get(life.run_id) == life.log_id]

    async def deleted(self, run_ids: Iterable[str]) -> dict[str, str]:
        """The log ids of those of these runs that were deleted, by run id."""
        with mongo_errors():
            cursor = self._runs.find({"_id": {"$in": list(run_ids)}, "deleted": True}, {"log_id": 1})
            return {document["_id"]: document["log_id"] async for document in cursor}

    async def deleted_logs(self, run_ids: Iterable[str]) -> list[str]:
        """The log ids of those of these runs that were deleted."""
        return list((await self.deleted(run_ids)).values())

    async def session_deletions(self, session_ids: Iterable[str]) -> dict[str, int]:
        """When these sessions were deleted last, by the broker's clock, in milliseconds since 1970.
        Sessions that were never deleted are left out.
        """
        last: dict[str, int] = {}
        with mongo_errors():
            async for document in self._runs.find({"session_deleted": {"$in": list(session_ids)}}):
                session_id = document["session_deleted"]
                last[session_id] = max(last.get(session_id, 0), document["session_deleted_ms"])
        return last

    async def inconsistent_fields(self, run_id: str) -> list[str]:
        """The fields for queries whose value is not that of the record, for `verify`."""
        with mongo_errors():
            document = await self._runs.find_one({"_id": run_id, **_NOT_DELETED})
        expected = _fold_of(_from_document(document)) if document else {}
        return [name for name, value in expected.items() if document[name] != value]

    async def progress(self) -> AsyncIterator[tuple[str, int]]:
        """The run id and the position of each run's state."""
        with mongo_errors():
            async for document in self._runs.find(_NOT_DELETED, {"next_offset": 1}):
                yield document["_id"], document["next_offset"]

    async def list(
        self, run_filter: RunFilter, *, limit: int, cursor: str | None = None
    ) -> tuple[list[RunState], str | None]:
        """A page of runs, newest first, and the cursor of the next page. Raises `InvalidEventError`
        for a cursor that no list returned.
        """
        query = after_cursor(_query(run_filter), "started_us", cursor)
        with mongo_errors():
            documents = self._runs.find(query).sort(newest_first("started_us")).limit(limit + 1)
            states = [_from_document(document) async for document in documents]
        if len(states) <= limit:
            return states, None
        return states[:limit], cursor_after(states[limit - 1])


def sort_key(state: RunState) -> SortKey:
    """The sort key of a run in lists, which are in descending order."""
    return microseconds(state.record.started_at), state.run_id


def cursor_after(state: RunState) -> str:
    """The cursor with which `RunStore.list` goes on after this run."""
    return cursor_of(sort_key(state))


def _query(run_filter: RunFilter) -> dict[str, Any]:
    query: dict[str, Any] = _NOT_DELETED | {
        name: value
        for name, value in (
            ("agent_id", run_filter.agent_id),
            ("session_id", run_filter.session_id),
            ("status", run_filter.status),
        )
        if value is not None
    }
    if run_filter.labels:
        query["label_pairs"] = {"$all": label_pairs(run_filter.labels)}
    times = {
        **({"$gte": microseconds(run_filter.since)} if run_filter.since else {}),
        **({"$lt": microseconds(run_filter.until)} if run_filter.until else {}),
    }
    if times:
        query["started_us"] = times
    return query


def _document(state: RunState) -> dict[str, Any]:
    return {
        "log_id": state.log_id,
        "partition": state.partition,
        "active": state.active,
        "announced_ms": state.announced_ms,
        **_fold_of(state),
    }


def _session_fields(life: Life, deleted_ms: int | None) -> dict[str, Any]:
    return (
        {} if deleted_ms is None else {"session_deleted": life.session_id, "session_deleted_ms": deleted_ms}
    )


def _fold_of(state: RunState) -> dict[str, Any]:
    """The fields of a state that the fold changes. The record is JSON text, exact to the
    microsecond and for any label; the indexes need some of its fields beside it.
    """
    record = state.record
    return {
        "next_offset": record.next_offset,
        "opened": state.opened,
        "ended": state.ended,
        "last_offset": state.last_offset,
        "record": record.model_dump_json(),
        "agent_id": record.agent_id,
        "session_id": record.session_id,
        "status": record.status,
        "started_us": microseconds(record.started_at),
        "label_pairs": label_pairs(record.labels),
    }


_FOLD_FIELDS = tuple(_fold_of(RunState(log_id="", partition=0, active=False, record=RunRecord(run_id=""))))


def _from_document(document: dict[str, Any]) -> RunState:
    return RunState(
        log_id=document["log_id"],
        partition=document["partition"],
        active=document["active"],
        record=RunRecord.model_validate_json(document["record"]),
        opened=document["opened"],
        ended=document["ended"],
        last_offset=document["last_offset"],
        announced_ms=document.get("announced_ms", 0),
    )
