"""Lists of runs: what they are filtered and sorted by, as queries of MongoDB that use an index."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from runfold.store.listing import (
    SortKey,
    after_cursor,
    after_key,
    cursor_of,
    label_pairs,
    list_order,
    microseconds,
)
from runfold.store.run_listing import has_words, text_query
from runfold.store.run_state import RunState, list_fields_of
from runfold_projections.run import LIVE, RunRecord
from runfold_schemas.cursors import decode_cursor, encode_cursor, foreign_cursor
from runfold_schemas.lists import RunSort, ShownStatus
from runfold_schemas.runs import Status

_FIELDS: Final[Mapping[RunSort, str]] = {
    "started": "started_us",
    "updated": "updated_us",
    "ended": "ended_us",
    "duration": "duration_us",
    "tokens": "tokens",
}

_ALL_STATUSES: Final = (*sorted(LIVE), "completed", "failed", "canceled")

_LEAST: Final[Mapping[RunSort, Mapping[str, int]]] = {
    "ended": {"$gt": 0},
    "duration": {"$gte": 0},
    "tokens": {"$gt": 0},
}
"""Runs without a value are not in these lists, and not in their indexes."""

_CURSOR: Final = TypeAdapter[tuple[str, int, str]](
    tuple[str, Annotated[int, Field(ge=-(2**63), lt=2**63)], str]
)


@dataclass(frozen=True, slots=True)
class RunFilter:
    """A filter for lists of runs. Fields that are None do not restrict. `since` and `until` are
    limits of `started_at`; `until` is exclusive.
    """

    agent_id: str | None = None
    session_id: str | None = None
    status: ShownStatus | Collection[ShownStatus] | None = None
    """One status, or several, of which a run has one."""
    labels: Mapping[str, str] | None = None
    since: datetime | None = None
    until: datetime | None = None
    user_id: str | None = None
    is_session: bool | None = None
    """Whether the run is a session's own."""
    ended_since: datetime | None = None
    updated_since: datetime | None = None
    updated_until: datetime | None = None
    """Runs without an event at this time or later."""
    text: str | None = None
    """Each of its words begins a word of the run."""

    @property
    def statuses(self) -> tuple[ShownStatus, ...] | None:
        if self.status is None or isinstance(self.status, str):
            return None if self.status is None else (self.status,)
        return tuple(self.status)

    def matches(self, record: RunRecord, fields: Mapping[str, Any] | None = None) -> bool:
        """Whether a list with this filter contains the run. `fields` are those of its document
        that are not in its record.
        """
        fields = fields or {}
        started, updated = microseconds(record.started_at), fields.get("updated_us", 0)
        return (
            self.agent_id in (None, record.agent_id)
            and self.session_id in (None, record.session_id)
            and (
                self.statuses is None or not self.statuses_of(record.status, fields).isdisjoint(self.statuses)
            )
            and self.user_id in (None, record.user_id)
            and (self.labels or {}).items() <= record.labels.items()
            and (self.since is None or microseconds(self.since) <= started)
            and (self.until is None or started < microseconds(self.until))
            and self.is_session in (None, fields.get("is_session", False))
            and (self.ended_since is None or microseconds(self.ended_since) <= (fields.get("ended_us") or 0))
            and (self.updated_since is None or microseconds(self.updated_since) <= updated)
            and (self.updated_until is None or updated < microseconds(self.updated_until))
            and (self.text is None or has_words(fields.get("text", ""), self.text))
        )

    @staticmethod
    def statuses_of(status: Status, fields: Mapping[str, Any]) -> set[str]:
        """The statuses by which a run is found."""
        return {status, "open"} if status == "running" and fields.get("is_session") else {status}


@dataclass(frozen=True, slots=True)
class RunOrder:
    """The order of a list: descending, unless `ascending`."""

    sort: RunSort = "started"
    ascending: bool = False

    @property
    def field(self) -> str:
        return _FIELDS[self.sort]

    def key(self, state: RunState) -> SortKey:
        """The sort key of a run."""
        if self.sort == "started":
            return microseconds(state.record.started_at), state.run_id
        name, value = state.listed_by or ("", None)
        if name != self.field:
            value = list_fields_of(state)[self.field]
        return (value if value is not None else -1), state.run_id

    def cursor_after(self, state: RunState) -> str:
        """The cursor with which a list goes on after this run."""
        key = self.key(state)
        # Cursors of the usual order are those of earlier versions.
        return cursor_of(key) if self == RunOrder() else encode_cursor(self._name, *key)

    def after(self, query: dict[str, Any], cursor: str | None) -> dict[str, Any]:
        """`query`, restricted to the entries after the cursor. Raises `InvalidEventError` for a
        cursor of another order.
        """
        if cursor is None or self == RunOrder():
            return after_cursor(query, self.field, cursor)
        name, value, run_id = decode_cursor(cursor, _CURSOR)
        if name != self._name:
            raise foreign_cursor()
        return after_key(query, self.field, (value, run_id), ascending=self.ascending)

    @property
    def _name(self) -> str:
        return f"{'+' if self.ascending else '-'}{self.sort}"

    @property
    def keys(self) -> list[tuple[str, int]]:
        return list_order(self.field, ascending=self.ascending)


NEWEST_FIRST: Final = RunOrder()


def run_query(run_filter: RunFilter, order: RunOrder) -> dict[str, Any]:
    """The query of a list. Deleted runs are in none."""
    query: dict[str, Any] = {"deleted": {"$ne": True}} | {
        name: value
        for name, value in (
            ("agent_id", run_filter.agent_id),
            ("session_id", run_filter.session_id),
            ("user_id", run_filter.user_id),
        )
        if value is not None
    }
    if run_filter.labels:
        query["label_pairs"] = {"$all": label_pairs(run_filter.labels)}
    also = text_query(run_filter.text) if run_filter.text is not None else []
    query |= _statuses(run_filter, order)
    if "$or" in query:
        also.append({"$or": query.pop("$or")})
    if also:
        query["$and"] = also
    for name, begin, end in (
        ("started_us", run_filter.since, run_filter.until),
        ("updated_us", run_filter.updated_since, run_filter.updated_until),
        ("ended_us", run_filter.ended_since, None),
    ):
        limits = {
            **({"$gte": microseconds(begin)} if begin else {}),
            **({"$lt": microseconds(end)} if end else {}),
        }
        if limits:
            query[name] = limits
    if (least := _LEAST.get(order.sort)) is not None:
        query[order.field] = {**least, **query.get(order.field, {})}
    return query


def _statuses(run_filter: RunFilter, order: RunOrder) -> dict[str, Any]:
    """The conditions on the fields by which indexes begin. MongoDB merges the sorted ranges of an
    index whose first fields have a few values, so all values are named.
    """
    statuses: tuple[str, ...] | None = run_filter.statuses
    by_time = order.sort in ("updated", "ended") or run_filter.updated_since or run_filter.updated_until
    if statuses is None and (by_time or run_filter.ended_since):
        statuses = _ALL_STATUSES
    if statuses is None:
        return _of_sessions(run_filter.is_session)
    if "open" in statuses and "running" not in statuses:
        others = [status for status in statuses if status != "open"]
        if others:
            of_sessions = {"status": "running", **_of_sessions(True)}
            return {"$or": [of_sessions, {"status": {"$in": others}}], **_of_sessions(run_filter.is_session)}
        conditions = [] if run_filter.is_session is None else [_of_sessions(run_filter.is_session)]
        return {"status": "running", **_of_sessions(True), **({"$or": conditions} if conditions else {})}
    statuses = tuple(status for status in statuses if status != "open")
    query: dict[str, Any] = {"status": statuses[0] if len(statuses) == 1 else {"$in": list(statuses)}}
    if run_filter.is_session is None and order.sort == "started":
        return query | {"is_session": {"$in": [False, None, True]}}
    return query | _of_sessions(run_filter.is_session)


def _of_sessions(is_session: bool | None) -> dict[str, Any]:
    if is_session is None:
        return {}
    # Documents of earlier versions lack the field.
    return {"is_session": True if is_session else {"$in": [False, None]}}
