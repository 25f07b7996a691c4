"""Banks. A deleted bank stays as the offset of its deletion, so that a late owner of its partition
cannot restore it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from pymongo import UpdateOne

from runfold.store.damage import read_record, seal
from runfold.store.database import Database
from runfold.store.lazy_indexes import LazyIndexes
from runfold.store.listing import (
    QUERY_MS,
    after_cursor,
    cursor_of,
    list_index,
    microseconds,
    newest_first,
)
from runfold.store.unavailable import mongo_errors
from runfold.store.writing import upsert_where
from runfold_projections.memory import BankRecord
from runfold_schemas.errors import DamagedError

_NOT_DELETED: dict[str, Any] = {"record": {"$ne": None}}


class BankStore:
    """The banks of one edition."""

    def __init__(self, database: Database, edition: str) -> None:
        self._banks = database[f"banks.{edition}"]
        self.indexes: Final = LazyIndexes(self._banks, [list_index("created_us")])

    async def create_indexes(self) -> None:
        await self.indexes.create()

    async def get(self, bank_ids: Sequence[str]) -> dict[str, BankRecord]:
        with mongo_errors():
            cursor = self._banks.find({"_id": {"$in": list(bank_ids)}, **_NOT_DELETED})
            return {document["_id"]: _record(document) async for document in cursor}

    async def save(self, banks: Mapping[str, tuple[BankRecord | None, int]]) -> None:
        """Saves each bank, or None for a deleted bank, with the offset of its last event."""
        operations = [
            UpdateOne(
                {"_id": bank_id, "offset": {"$lt": offset}},
                {"$set": _fields(record, offset)},
                upsert=True,
            )
            for bank_id, (record, offset) in banks.items()
        ]
        if operations:
            await self.indexes.before_insert()
        await upsert_where(self._banks, operations)

    async def delete(self, bank_id: str) -> None:
        """Removes what is stored of a bank, because its events are folded anew."""
        with mongo_errors():
            await self._banks.delete_one({"_id": bank_id})

    async def all(self) -> dict[str, BankRecord]:
        """All banks, for `verify`. Damaged ones are left out."""
        banks = {}
        with mongo_errors():
            async for document in self._banks.find(_NOT_DELETED):
                with suppress(DamagedError):
                    banks[document["_id"]] = _record(document)
        return banks

    async def list(self, *, limit: int, cursor: str | None = None) -> tuple[list[BankRecord], str | None]:
        """A page of banks, newest first, and the cursor of the next page. Raises
        `InvalidEventError` for a cursor that no list returned.
        """
        query = after_cursor(_NOT_DELETED, "created_us", cursor)
        with mongo_errors():
            found = self._banks.find(query).sort(newest_first("created_us")).limit(limit + 1)
            documents = found.max_time_ms(QUERY_MS)
            records = [_record(document) async for document in documents]
        if len(records) <= limit:
            return records, None
        last = records[limit - 1]
        return records[:limit], cursor_of((microseconds(last.created_at), last.bank_id))


def _fields(record: BankRecord | None, offset: int) -> dict[str, Any]:
    text = record.model_dump_json() if record else None
    return {
        "offset": offset,
        "record": text,
        "seal": seal(offset, text) if text else None,
        "created_us": microseconds(record.created_at) if record else 0,
    }


def _record(document: dict[str, Any]) -> BankRecord:
    return read_record(BankRecord, document, "banks")
