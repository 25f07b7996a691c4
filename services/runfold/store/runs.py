"""Run states: the record of each run with the number of records that it includes, and whether a
worker tails the run.
"""

import inspect
import json
import re
from collections.abc import AsyncIterator, Collection, Container, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

from pymongo import ASCENDING, IndexModel, UpdateOne

from runfold.store.database import Database
from runfold.store.listing import QUERY_MS, list_index
from runfold.store.run_filter import NEWEST_FIRST, RunFilter, RunOrder, run_query
from runfold.store.run_listing import LIST_FIELDS, LIST_INDEXES
from runfold.store.run_state import (
    FOLD_FIELDS,
    RunState,
    changed_fields,
    document_of,
    fold_fields,
    list_fields_of,
    position_of,
    read_document,
    state_of,
    state_or_rest,
)
from runfold.store.saved_states import SavedStates
from runfold.store.unavailable import mongo_errors
from runfold.store.word_search import SEARCH_MS, WordSearches
from runfold.store.writing import upsert_where
from runfold_projections.run import LIVE
from runfold_schemas.catalog import Life
from runfold_schemas.errors import DamagedError
from runfold_schemas.topics import RunTopic

__all__ = ["RunFilter", "RunOrder", "RunState", "RunStore"]

_INDEXES = [
    *(list_index("started_us", field) for field in ("agent_id", "session_id", "label_pairs")),
    list_index("started_us"),
    *LIST_INDEXES,
    IndexModel([("partition", ASCENDING), ("active", ASCENDING)]),
    IndexModel([("session_deleted", ASCENDING)], sparse=True),
    IndexModel([("log_id", ASCENDING)]),
]

_BY_ID: Final = [("_id", ASCENDING)]
"""The index of a save. MongoDB would consider each index for each save."""

_UNREAD: Final = {"models": 0, "text": 0}
"""Fields that are in the queries of lists, and not in a state."""

_NOT_DELETED: dict[str, Any] = {"deleted": {"$ne": True}}
"""A deleted run stays as its id, so that a worker that does not know of the deletion cannot add it
again.
"""


class RunStore:
    """The run states of one edition.

    `get` raises `DamagedError` for a damaged state. `get_many` and `active` leave out damaged
    states and note their ids, so that one of them does not stop a worker with all its runs.
    """

    def __init__(self, database: Database, edition: str) -> None:
        self._runs = database[f"runs.{edition}"]
        self._damaged: set[str] = set()
        self._saved = SavedStates()
        self._searches = WordSearches()

    def take_damaged(self) -> set[str]:
        """The runs whose states `get_many` and `active` left out since the last call."""
        found, self._damaged = self._damaged, set()
        return found

    async def create_indexes(self) -> None:
        with mongo_errors():
            await self._runs.create_indexes(_INDEXES)

    async def add(self, states: Sequence[RunState]) -> list[RunState]:
        """Adds the runs that do not exist yet, and returns them."""
        if not states:
            return []
        operations = [
            UpdateOne({"_id": state.run_id}, {"$setOnInsert": document_of(state)}, upsert=True)
            for state in states
        ]
        with mongo_errors():
            answer = await self._runs.bulk_write(operations, ordered=False)
        return [states[index] for index in answer.upserted_ids]

    async def save(self, states: Iterable[RunState]) -> None:
        """Saves each state over a state of the same life with a lower offset."""
        all_states = list(states)
        smaller = [_save_over(state, self._saved.base_of(state)) for state in all_states]
        matched = await self._write(
            [small or _save_of(state) for state, small in zip(all_states, smaller, strict=True)]
        )
        if matched < len(all_states):
            # Another worker may have saved some of these runs since this worker did.
            await self._write(
                [_save_of(state) for state, small in zip(all_states, smaller, strict=True) if small]
            )
        self._saved.note(all_states)

    async def _write(self, operations: Sequence[UpdateOne]) -> int:
        """The number of documents that these updates matched."""
        if not operations:
            return 0
        with mongo_errors():
            answer = await self._runs.bulk_write(operations, ordered=False)
        matched: int = answer.matched_count
        return matched

    async def set_active(self, run_ids: Sequence[str], *, active: bool) -> None:
        with mongo_errors():
            await self._runs.update_many({"_id": {"$in": list(run_ids)}}, {"$set": {"active": active}})

    async def get(self, run_id: str) -> RunState | None:
        with mongo_errors():
            document = await self._runs.find_one({"_id": run_id, **_NOT_DELETED})
        return state_of(document) if document else None

    async def get_many(self, run_ids: Sequence[str]) -> dict[str, RunState]:
        with mongo_errors():
            cursor = self._runs.find({"_id": {"$in": list(run_ids)}, **_NOT_DELETED})
            states = [self._sound(document) async for document in cursor]
        return {state.run_id: state for state in states if state is not None}

    async def active(self, partitions: Iterable[int], *, except_for: Container[str] = ()) -> list[RunState]:
        """The active runs of these catalog partitions, without the runs in `except_for`."""
        with mongo_errors():
            cursor = self._runs.find({"partition": {"$in": list(partitions)}, "active": True, **_NOT_DELETED})
            states = [self._sound(document) async for document in cursor if document["_id"] not in except_for]
        return [state for state in states if state is not None]

    async def has_active(self, partitions: Iterable[int], *, except_for: Collection[str]) -> bool:
        """Whether any run of these catalog partitions is active, apart from `except_for`."""
        query = {
            "_id": {"$nin": list(except_for)},
            "partition": {"$in": list(partitions)},
            "active": True,
            **_NOT_DELETED,
        }
        with mongo_errors():
            return await self._runs.find_one(query, {"_id": 1}) is not None

    def _sound(self, document: dict[str, Any]) -> RunState | None:
        try:
            return state_of(document)
        except DamagedError:
            self._damaged.add(document["_id"])
            return None

    async def ends(self, partitions: Iterable[int]) -> dict[str, tuple[str, int]]:
        """The log id and the position of every run of these catalog partitions, by run id. The
        position of a deleted run is -1.
        """
        return await self._ends({"partition": {"$in": list(partitions)}})

    async def ends_of(self, run_ids: Iterable[str]) -> dict[str, tuple[str, int]]:
        """The same of these runs, as far as they are stored."""
        return await self._ends({"_id": {"$in": list(run_ids)}})

    async def active_ends(self, partitions: Iterable[int], *, limit: int) -> dict[str, tuple[str, int]]:
        """The same of active runs of these catalog partitions, at most `limit` of them."""
        query = {"partition": {"$in": list(partitions)}, "active": True, **_NOT_DELETED}
        return await self._ends(query, limit=limit)

    async def _ends(self, query: Mapping[str, Any], *, limit: int = 0) -> dict[str, tuple[str, int]]:
        fields = {"log_id": 1, "next_offset": 1, "deleted": 1}
        with mongo_errors():
            return {
                document["_id"]: (
                    str(document.get("log_id")),
                    -1 if document.get("deleted") else position_of(document),
                )
                async for document in self._runs.find(query, fields).limit(limit)
            }

    async def of_session(self, session_id: str, *, announced_by_ms: int | None = None) -> list[Life]:
        """The lives of a session's runs; with `announced_by_ms` only of runs that were announced by
        then.
        """
        query = {"session_id": session_id, **_NOT_DELETED}
        if announced_by_ms is not None:
            query["announced_ms"] = {"$not": {"$gt": announced_by_ms}}
        with mongo_errors():
            return [state_or_rest(document).life async for document in self._runs.find(query)]

    async def of_user(self, user_id: str) -> list[Life]:
        """The lives of the runs that were opened for a user. Reads all states."""
        named = json.dumps(user_id, ensure_ascii=False)
        query = {"record": {"$regex": re.escape(f'"user_id":{named}')}, **_NOT_DELETED}
        with mongo_errors():
            lives = [state_or_rest(document).life async for document in self._runs.find(query)]
        return [life for life in lives if life.user_id == user_id]

    async def delete(
        self,
        lives: Iterable[tuple[Life, int]],
        *,
        with_session: Mapping[str, int] | None = None,
        is_erased: bool = False,
    ) -> list[Life]:
        """Marks lives, given with their catalog partitions, as deleted: readers no longer see them,
        and later writes have no effect. Returns the lives that are deleted now. A life is not
        deleted if its run id belongs to another life.

        `with_session` has the run ids of sessions' own runs, with the time of the session's
        deletion in milliseconds: see `session_deletions`. If an erasure deleted the session, only
        the hash of its id is kept.
        """
        pairs = list(lives)
        self._saved.forget(life.run_id for life, _ in pairs)
        operations = [
            UpdateOne(
                {"_id": life.run_id, "log_id": life.log_id},
                {
                    "$set": {
                        "deleted": True,
                        "active": False,
                        "partition": partition,
                        **_session_fields(life, (with_session or {}).get(life.run_id), is_erased=is_erased),
                    },
                    "$unset": dict.fromkeys(FOLD_FIELDS, ""),
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

    async def with_logs(self, log_ids: Iterable[str]) -> dict[RunTopic, int]:
        """The runs with these log ids that are not deleted, each with its position. Several runs
        can have one log id, because any program may write to the catalog.
        """
        fields = {"log_id": 1, "next_offset": 1}
        with mongo_errors():
            cursor = self._runs.find({"log_id": {"$in": list(log_ids)}, **_NOT_DELETED}, fields)
            return {
                RunTopic(document["_id"], document["log_id"]): position_of(document)
                async for document in cursor
            }

    async def session_deletions(self, session_ids: Iterable[str]) -> dict[str, int]:
        """When these sessions were deleted last, by the broker's clock, in milliseconds since 1970.
        Sessions that were never deleted are left out.
        """
        last: dict[str, int] = {}
        names = {name: each for each in session_ids for name in (each, _erased_name(each))}
        with mongo_errors():
            async for document in self._runs.find({"session_deleted": {"$in": list(names)}}):
                session_id = names[document["session_deleted"]]
                last[session_id] = max(last.get(session_id, 0), document["session_deleted_ms"])
        return last

    async def forget_session(self, run_id: str, session_id: str) -> None:
        """Keeps only the hash of the id of a deleted session, given its own run."""
        query = {"_id": run_id, "session_deleted": session_id}
        with mongo_errors():
            await self._runs.update_one(query, {"$set": {"session_deleted": _erased_name(session_id)}})

    async def inconsistent_fields(self, run_id: str) -> list[str]:
        """The fields for queries whose value is not that of the record, for `verify`."""
        document = await self.document(run_id)
        expected = fold_fields(read_document(document)) if document else {}
        is_listed = document.get("listed") == document.get("next_offset")
        # The expected activity is the one in the document.
        skipped = {"seal", "activity", *(() if is_listed else ("tools", *LIST_FIELDS))}
        return [
            name
            for name, value in expected.items()
            if name not in skipped and (name not in document or document[name] != value)
        ]

    async def document(self, run_id: str) -> dict[str, Any]:
        """The stored document as it is, also if it is damaged. Empty if there is none."""
        with mongo_errors():
            return await self._runs.find_one({"_id": run_id, **_NOT_DELETED}) or {}

    async def replace(self, state: RunState, *, stored: Mapping[str, Any]) -> bool:
        """Puts the state in the place of the document `stored`. Returns False if the document has
        changed since it was read.
        """
        expected = {name: stored[name] for name in FOLD_FIELDS if name in stored}
        with mongo_errors():
            answer = await self._runs.update_one(
                {"_id": state.run_id, **_NOT_DELETED, **expected}, {"$set": document_of(state)}
            )
        return bool(answer.matched_count)

    async def keep_without_log(self, run_id: str, document: Mapping[str, Any]) -> None:
        """Keeps a run whose log is gone as `document`, which may be of another edition, or without
        one as it is. No worker tails the run any more.
        """
        kept = {**document, "active": False, "without_log": True}
        kept.pop("_id", None)
        with mongo_errors():
            await self._runs.update_one(
                {"_id": run_id, **_NOT_DELETED}, {"$set": kept}, upsert=bool(document)
            )

    async def without_log(self) -> set[str]:
        """The runs that `keep_without_log` has kept."""
        with mongo_errors():
            cursor = self._runs.find({**_NOT_DELETED, "without_log": True}, {"_id": 1})
            return {document["_id"] async for document in cursor}

    async def progress(self) -> AsyncIterator[tuple[str, int]]:
        """The run id and the position of each run's state. Runs without a log are left out."""
        query = {**_NOT_DELETED, "without_log": {"$ne": True}}
        with mongo_errors():
            async for document in self._runs.find(query, {"next_offset": 1}):
                yield document["_id"], position_of(document)

    async def count_open(self, *, limit: int | None = None) -> int:
        """The number of runs that have not ended, up to `limit`."""
        query = {**_NOT_DELETED, "status": {"$in": sorted(LIVE)}}
        options = {} if limit is None else {"limit": limit}
        with mongo_errors():
            count: int = await self._runs.count_documents(query, **options)
        return count

    async def count_by_status(self) -> dict[str, int]:
        """The number of runs of each status, from an index alone."""
        steps: list[dict[str, Any]] = [
            {"$match": {"status": {"$gt": ""}}},
            {"$group": {"_id": "$status", "runs": {"$sum": 1}}},
        ]
        return {document["_id"]: document["runs"] for document in await self.aggregate(steps)}

    async def aggregate(self, steps: Sequence[Mapping[str, Any]]) -> Sequence[dict[str, Any]]:
        """The documents that MongoDB makes of the stored runs by these steps."""
        with mongo_errors():
            reading = self._runs.aggregate(steps, maxTimeMS=QUERY_MS)
            cursor: Any = await reading if inspect.isawaitable(reading) else reading
            return [document async for document in cursor]

    async def list_anew(self, partitions: Iterable[int], *, portion: int = 500) -> None:
        """Writes the fields for lists of those runs of these catalog partitions whose fields are
        not those of their state, because an earlier version has written it. There may be very many
        such runs, so one cursor finds all of them.
        """
        query = {
            "partition": {"$in": list(partitions)},
            "next_offset": {"$exists": True},
            "$expr": {"$ne": ["$listed", "$next_offset"]},
        }
        operations: list[UpdateOne] = []
        with mongo_errors():
            async for document in self._runs.find(query):
                operations.append(_listed_anew(document))
                if len(operations) == portion:
                    await self._runs.bulk_write(operations, ordered=False)
                    operations.clear()
            if operations:
                await self._runs.bulk_write(operations, ordered=False)

    async def list(
        self,
        run_filter: RunFilter,
        *,
        limit: int,
        cursor: str | None = None,
        order: RunOrder = NEWEST_FIRST,
    ) -> tuple[list[RunState], str | None]:
        """A page of runs in this order, and the cursor of the next page. Damaged states are among
        them. Raises `InvalidEventError` for a cursor that no list of this order returned, and for
        a search by words that takes too long.
        """
        query = order.after(run_query(run_filter, order), cursor)
        is_search = run_filter.text is not None
        limit_ms = SEARCH_MS if is_search else QUERY_MS
        with mongo_errors(), self._searches.bounded() if is_search else nullcontext():
            documents = self._runs.find(query, _UNREAD).sort(order.keys).limit(limit + 1)
            states = [_listed(document, order.field) async for document in documents.max_time_ms(limit_ms)]
        if len(states) <= limit:
            return states, None
        return states[:limit], order.cursor_after(states[limit - 1])


def _listed(document: Mapping[str, Any], field: str) -> RunState:
    state, value = state_or_rest(document), document.get(field)
    # The time of the start is in each state.
    return state if field == NEWEST_FIRST.field else replace(state, listed_by=(field, value))


def _listed_anew(document: Mapping[str, Any]) -> UpdateOne:
    """The change of a document's fields for lists, unless the document has changed."""
    state = state_or_rest(document)
    fields = list_fields_of(state) if not state.is_damaged else {}
    # `listed` would make the activity of an earlier state that of this one.
    fields |= {"listed": document["next_offset"], "activity": None, "tools": []}
    query = {"_id": document["_id"], "next_offset": document["next_offset"]}
    return UpdateOne(query, {"$set": fields})


def _save_of(state: RunState) -> UpdateOne:
    position = {"$lt": state.record.next_offset}
    query = {"_id": state.run_id, "log_id": state.log_id, "next_offset": position, **_NOT_DELETED}
    return UpdateOne(query, {"$set": fold_fields(state)}, hint=_BY_ID)


def _save_over(state: RunState, base: RunState | None) -> UpdateOne | None:
    """Saves the state if the document is that of the state `base`, with all its fields. None if
    the state has changed in too much for that.
    """
    fields = changed_fields(state, base) if base is not None else None
    if base is None or fields is None:
        return None
    at = base.record.next_offset
    query = {"_id": state.run_id, "log_id": state.log_id, "next_offset": at, "listed": at, **_NOT_DELETED}
    return UpdateOne(query, {"$set": fields}, hint=_BY_ID)


def _session_fields(life: Life, deleted_ms: int | None, *, is_erased: bool) -> dict[str, Any]:
    if deleted_ms is None or life.session_id is None:
        return {}
    name = _erased_name(life.session_id) if is_erased else life.session_id
    return {"session_deleted": name, "session_deleted_ms": deleted_ms}


def _erased_name(session_id: str) -> str:
    """What is kept of the id of an erased session: a session id may name its user."""
    return f"erased:{sha256(session_id.encode()).hexdigest()}"
