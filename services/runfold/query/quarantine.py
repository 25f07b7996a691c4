"""The quarantine of the current edition: listing it, and asking projectors to act."""

from typing import Final

from pydantic import TypeAdapter

from runfold.documents.quarantine import QuarantineEntry
from runfold.query.stored_runs import StoredRuns
from runfold.store.edition import Edition
from runfold.store.quarantine import Action, Quarantined, remedy_of
from runfold_schemas.catalog import Skip
from runfold_schemas.cursors import decode_cursor, encode_cursor
from runfold_schemas.errors import InvalidEventError, NotQuarantinedError
from runfold_schemas.lists import QuarantineKind

_CURSOR: Final = TypeAdapter(tuple[str])


class QuarantineReader:
    """Every method may raise `UnavailableError`."""

    def __init__(self, stored_runs: StoredRuns) -> None:
        self._stored_runs = stored_runs

    async def list(
        self, kind: QuarantineKind | None, *, limit: int, cursor: str | None
    ) -> tuple[list[Quarantined], str | None]:
        """A page of entries in the order of their ids, and the cursor of the next page."""
        after = decode_cursor(cursor, _CURSOR)[0] if cursor is not None else ""
        edition = await self._stored_runs.current()
        if edition is None:
            return [], None
        entries = await edition.quarantine.all(kind=kind, after=after, limit=limit + 1)
        page = entries[:limit]
        return page, encode_cursor(page[-1].id) if len(entries) > limit else None

    async def get(self, entry_id: str) -> Quarantined:
        """Raises `NotQuarantinedError`."""
        return (await self._found(entry_id))[1]

    async def request(self, entry_id: str, action: Action) -> Quarantined:
        """Asks the projector that owns the entry to act. Raises `NotQuarantinedError`."""
        edition, entry = await self._found(entry_id)
        await edition.quarantine.request(entry.id, action, owner=entry.owner)
        return entry

    async def _found(self, entry_id: str) -> tuple[Edition, Quarantined]:
        edition = await self._stored_runs.current()
        entry = await edition.quarantine.get(entry_id) if edition is not None else None
        if edition is None or entry is None:
            raise NotQuarantinedError(entry_id)
        return edition, entry


def entry_of(entry: Quarantined) -> QuarantineEntry:
    return QuarantineEntry(
        id=entry.id,
        kind=entry.kind,
        topic=entry.topic,
        partition=entry.partition,
        offset=entry.offset,
        next_offset=entry.next_offset,
        reason=entry.reason,
        since=entry.since,
        attempts=entry.attempts,
    )


def skip_of(entry: Quarantined) -> Skip:
    """The skip of exactly the records that cannot be folded. Raises `InvalidEventError` if the
    entry has none.
    """
    if entry.next_offset == entry.offset:
        remedy = remedy_of(entry)
        raise InvalidEventError(
            f"{entry.id} has no record that could be skipped ({entry.reason}): retry when its log is back"
            + (f", or {remedy}" if remedy else "")
        )
    return Skip(
        topic=entry.topic, partition=entry.partition, offset=entry.offset, next_offset=entry.next_offset
    )
