"""Sessions read from the log alone, without MongoDB. Each answer is current, and takes longer the
more there is in the log.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from runfold.client.connection import LogConnection
from runfold.client.pages import ListPlace, page_of
from runfold.client.session import (
    EventSelection,
    RecordedEvent,
    Session,
    has_expired,
    is_selected,
    shared_scopes,
)
from runfold.log.catalog import partition_of
from runfold.log.reader import LogGoneError
from runfold.log.settings import LogSettings
from runfold.log.shared import read_counting
from runfold_projections.admission import Admitted
from runfold_projections.run import RunRecord, fold
from runfold_projections.session import SessionRecord, SharedFold, life_of
from runfold_projections.state import own_changes
from runfold_schemas.errors import InvalidIdError
from runfold_schemas.sessions import session_key
from runfold_schemas.topics import CATALOG_PARTITIONS, Partition, Topics


class LogSessionReader:
    """A `SessionReader` that reads whole partitions of `{prefix}.sessions` for each answer."""

    def __init__(self, connection: LogConnection) -> None:
        self._connection = connection

    async def find(self, session_id: str) -> SessionRecord | None:
        folded = await self._folded({partition_of(session_key(session_id))})
        return folded.sessions.get(session_id)

    async def view(self, record: SessionRecord, selection: EventSelection | None) -> Session:
        return await self._session(record, await self.values(shared_scopes(record)), selection)

    async def values(self, scopes: Sequence[str]) -> dict[str, Any]:
        return _values_of(await self._folded({partition_of(scope) for scope in scopes}), scopes)

    async def list(
        self, *, app: str | None, user: str | None, labels: Mapping[str, str], limit: int, cursor: str | None
    ) -> tuple[list[Session], str | None]:
        folded = await self._folded(range(CATALOG_PARTITIONS))
        now = datetime.now(UTC)
        placed = [
            (ListPlace(record.created_at, record.session_id), record)
            for record in folded.sessions.values()
            if record is not None
            and not has_expired(record, now)
            and app in (None, record.app)
            and user in (None, record.user)
            and labels.items() <= record.labels.items()
        ]
        records, following = page_of(placed, limit=limit, cursor=cursor)
        page = []
        for record in records:
            try:
                page.append(await self._session(record, _values_of(folded, shared_scopes(record)), None))
            except (LogGoneError, InvalidIdError):
                continue  # it was deleted meanwhile, or a foreign producer has invented it
        return page, following

    async def _folded(self, partitions: Iterable[int]) -> SharedFold:
        return await fold_shared(self._connection.entered().settings, partitions)

    async def _session(
        self, record: SessionRecord, shared: Mapping[str, Any], selection: EventSelection | None
    ) -> Session:
        log = self._connection.entered().log_of(life_of(record))
        history = [admitted async for admitted in log.history()]
        own = {key: value.value for admitted in history for key, value in own_changes(admitted).items()}
        return Session(
            record,
            fold(RunRecord(run_id=record.run_id), history),
            next_offset=history[-1].record.offset + 1 if history else 0,
            last_offset=max((admitted.record.offset for admitted in history if admitted.counts), default=-1),
            state={**own, **shared},
            events=events_of(history, selection) if selection is not None else (),
        )


async def fold_shared(settings: LogSettings, partitions: Iterable[int]) -> SharedFold:
    """The fold of these partitions of `{prefix}.sessions`, from their beginning to their end as it
    is now.
    """
    folded = SharedFold({})
    topic = Topics(settings.prefix).sessions
    for partition in partitions:
        async for keyed in read_counting(settings, Partition(topic, partition)):
            folded.take(keyed.key, keyed.event, keyed.offset)
    return folded


def events_of(history: Sequence[Admitted], selection: EventSelection) -> list[RecordedEvent]:
    """The events of a history that match."""
    events = [
        RecordedEvent(
            admitted.record.offset, admitted.record.log_time, admitted.outcome, admitted.record.value or b""
        )
        for admitted in history
        if admitted.counts
        and admitted.event is not None
        and is_selected(admitted.record.offset, admitted.event, selection)
    ]
    newest = events if selection.newest is None else events[max(0, len(events) - selection.newest) :]
    return newest[: selection.limit]


def _values_of(folded: SharedFold, scopes: Sequence[str]) -> dict[str, Any]:
    return {key: value.value for (scope, key), value in folded.values.items() if scope in scopes}
