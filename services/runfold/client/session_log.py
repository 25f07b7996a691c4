"""Sessions read from the log alone, for whoever has no MongoDB: slower the more there is, and
always right.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from runfold.client.connection import LogConnection
from runfold.client.session import EventsWanted, Logged, Session, has_expired
from runfold.log.catalog import partition_of
from runfold.log.reader import LogGoneError
from runfold.log.settings import LogSettings
from runfold.log.shared import read_counting
from runfold_projections.admission import Admitted
from runfold_projections.run import RunRecord, fold
from runfold_projections.session import SessionRecord, SharedFold, life_of
from runfold_projections.state import own_changes
from runfold_schemas.errors import InvalidEventError, InvalidIdError
from runfold_schemas.events import AnyEvent
from runfold_schemas.runs import ABOUT_THE_RUN
from runfold_schemas.sessions import app_scope, session_key, user_scope
from runfold_schemas.topics import CATALOG_PARTITIONS, Partition, Topics


class LogSessionReader:
    """A `SessionReader` that reads whole partitions of `{prefix}.sessions` for each answer."""

    def __init__(self, connection: LogConnection) -> None:
        self._connection = connection

    async def find(self, session_id: str) -> SessionRecord | None:
        folded = await fold_shared(self._connection.settings, {partition_of(session_key(session_id))})
        return folded.sessions.get(session_id)

    async def view(self, record: SessionRecord, wanted: EventsWanted | None) -> Session:
        return await self._session(record, await self.values(shared_scopes(record)), wanted)

    async def _session(
        self, record: SessionRecord, shared: Mapping[str, Any], wanted: EventsWanted | None
    ) -> Session:
        history = [admitted async for admitted in self._connection.log_of(life_of(record)).history()]
        own = {key: value.value for one in history for key, value in own_changes(one).items()}
        return Session(
            record,
            fold(RunRecord(run_id=record.run_id), history),
            next_offset=history[-1].record.offset + 1 if history else 0,
            last_offset=max((one.record.offset for one in history if one.counts), default=-1),
            state={**own, **shared},
            events=events_of(history, wanted) if wanted is not None else (),
        )

    async def values(self, scopes: Sequence[str]) -> dict[str, Any]:
        folded = await fold_shared(self._connection.settings, {partition_of(scope) for scope in scopes})
        return _values_of(folded, scopes)

    async def list(
        self, *, app: str | None, user: str | None, labels: Mapping[str, str], limit: int, cursor: str | None
    ) -> tuple[list[Session], str | None]:
        folded = await fold_shared(self._connection.settings, range(CATALOG_PARTITIONS))
        now = datetime.now(UTC)
        records = [
            record
            for record in folded.sessions.values()
            if record is not None
            and not has_expired(record, now)
            and app in (None, record.app)
            and user in (None, record.user)
            and labels.items() <= record.labels.items()
        ]
        records.sort(key=lambda record: (record.created_at, record.session_id), reverse=True)
        begin = _position(cursor)
        page = []
        for record in records[begin : begin + limit]:
            try:
                page.append(await self._session(record, _values_of(folded, shared_scopes(record)), None))
            except (LogGoneError, InvalidIdError):
                continue  # it was deleted meanwhile, or somebody has made it up
        return page, str(begin + limit) if len(records) > begin + limit else None


async def fold_shared(settings: LogSettings, partitions: Iterable[int]) -> SharedFold:
    """What these partitions of `{prefix}.sessions` fold to, from their beginning to their end as it
    is now.
    """
    folded = SharedFold({})
    topic = Topics(settings.prefix).sessions
    for partition in partitions:
        async for one in read_counting(settings, Partition(topic, partition)):
            folded.take(one.key, one.event, one.offset)
    return folded


def _values_of(folded: SharedFold, scopes: Sequence[str]) -> dict[str, Any]:
    return {key: value.value for (scope, key), value in folded.values.items() if scope in scopes}


def shared_scopes(record: SessionRecord) -> list[str]:
    """The scopes whose state the session shares with others."""
    return [app_scope(record.app), user_scope(record.app, record.user)]


def events_of(history: Sequence[Admitted], wanted: EventsWanted) -> list[Logged]:
    """The events of a history that are wanted."""
    events = [
        Logged(one.record.offset, one.record.log_time, one.outcome, one.record.value or b"")
        for one in history
        if one.counts and one.event is not None and is_wanted(one.record.offset, one.event, wanted)
    ]
    newest = events if wanted.newest is None else events[max(0, len(events) - wanted.newest) :]
    return newest[: wanted.limit]


def is_wanted(offset: int, event: AnyEvent, wanted: EventsWanted) -> bool:
    return (
        offset >= wanted.first_offset
        and (wanted.end_offset is None or offset < wanted.end_offset)
        and is_shown(event.type, wanted.types)
        and (wanted.since is None or event.timestamp >= wanted.since)
    )


def is_shown(kind: str, types: frozenset[str]) -> bool:
    """Whether events of this kind are among a session's. With `types`, only those."""
    return kind in types if types else kind not in ABOUT_THE_RUN


def _position(cursor: str | None) -> int:
    position = cursor or "0"
    if not position.isdecimal():
        raise InvalidEventError("the cursor is not one that was given out here", field="cursor")
    return int(position)
