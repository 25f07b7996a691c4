"""Sessions read from the log alone, without MongoDB. Each answer is current, and takes longer the
more there is in the log.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from runfold.client.connection import LogConnection
from runfold.client.pages import ListPlace, page_of
from runfold.client.prefixes import read_prefix
from runfold.client.session import (
    NOW,
    EventSelection,
    RecordedEvent,
    Session,
    has_expired,
    is_selected,
    shared_scopes,
    user_of_scopes,
)
from runfold.encryption.hiding import hide_session, hide_values
from runfold.encryption.subjects import user_subject
from runfold.log.catalog import partition_of
from runfold.log.fetch_answer import SkippedAt
from runfold.log.leaders import Leaders
from runfold.log.reader import LogGoneError
from runfold.log.settings import LogSettings
from runfold.log.shared import read_counting
from runfold_projections.admission import Admitted
from runfold_projections.as_of import AsOf
from runfold_projections.session import SessionRecord, SharedFold, life_of
from runfold_schemas.errors import InvalidIdError, SessionNotFoundError
from runfold_schemas.sessions import session_key
from runfold_schemas.topics import Partition


class LogSessionReader:
    """A `SessionReader` that reads whole partitions of `{prefix}.sessions` for each answer."""

    def __init__(self, connection: LogConnection) -> None:
        self._connection = connection

    async def find(self, session_id: str) -> SessionRecord | None:
        folded = await self._folded(self._numbers([session_key(session_id)]))
        return await self._revealed(folded.sessions.get(session_id))

    async def view(
        self, record: SessionRecord, selection: EventSelection | None, moment: AsOf = NOW
    ) -> Session:
        shared = await self.values(shared_scopes(record)) if moment == NOW else {}
        try:
            return await self._session(record, shared, selection, moment)
        except LogGoneError:
            found = await self.find(record.session_id)
            if found is None or found.log_id != record.log_id:  # it was deleted meanwhile
                raise SessionNotFoundError(record.session_id) from None
            raise

    async def values(self, scopes: Sequence[str]) -> dict[str, Any]:
        return await self._values_of(await self._folded(self._numbers(scopes)), scopes)

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
        folded = await self._folded(range(self._connection.entered().topics.partitions))
        now = datetime.now(UTC)
        revealed = [await self._revealed(record) for record in folded.sessions.values()]
        placed = [
            (ListPlace(record.created_at, record.session_id), record)
            for record in revealed
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
                shared = await self._values_of(folded, shared_scopes(record)) if with_state else {}
                session = await self._session(record, shared, None)
                page.append(session if with_state else replace(session, state={}))
            except (LogGoneError, InvalidIdError):
                continue  # it was deleted meanwhile, or a foreign producer has invented it
        return page, following

    def _numbers(self, keys: Iterable[str]) -> set[int]:
        topics = self._connection.entered().topics
        return {partition_of(topics, key) for key in keys}

    async def _folded(self, partitions: Iterable[int]) -> SharedFold:
        connection = self._connection.entered()
        at = [Partition(connection.topics.sessions, number) for number in partitions]
        return await fold_shared(connection.settings, at, await connection.skipped_in(at))

    async def _revealed(self, record: SessionRecord | None) -> SessionRecord | None:
        sealing = self._connection.sealing
        if record is None:
            return None
        return hide_session(record) if sealing is None else await sealing.reveal_session(record)

    async def _values_of(self, folded: SharedFold, scopes: Sequence[str]) -> dict[str, Any]:
        values = {key: value.value for (scope, key), value in folded.values.items() if scope in scopes}
        sealing = self._connection.sealing
        if sealing is None:
            return hide_values(values)
        return await sealing.reveal_state(values, user_subject(user_of_scopes(scopes)))

    async def _session(
        self,
        record: SessionRecord,
        shared: Mapping[str, Any],
        selection: EventSelection | None,
        moment: AsOf = NOW,
    ) -> Session:
        log = self._connection.entered().log_of(life_of(record))
        prefix = await read_prefix(log, moment)
        run, own, _ = prefix.view(record.run_id)
        offsets = (admitted.record.offset for admitted in prefix.records if admitted.counts)
        return Session(
            record,
            run,
            next_offset=prefix.end,
            last_offset=max(offsets, default=-1),
            state={**own, **shared},
            events=events_of(prefix.records, selection) if selection is not None else (),
        )


async def fold_shared(
    settings: LogSettings, partitions: Iterable[Partition], skipped: SkippedAt
) -> SharedFold:
    """The fold of these partitions of `{prefix}.sessions`, from their beginning to their end as it
    is now.
    """
    folded = SharedFold({})
    async with Leaders.connect(settings) as leaders:
        for at in partitions:
            async for keyed in read_counting(settings, at, skipped(at), leaders=leaders):
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
