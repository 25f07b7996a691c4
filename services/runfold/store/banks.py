"""Banks. A deleted one stays as the offset of its deletion, so that a late owner of its partition
does not bring it back.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import UpdateOne

from runfold.store.database import Database
from runfold.store.listing import after_cursor, cursor_of, list_index, microseconds, newest_first
from runfold.store.unavailable import mongo_errors
from runfold.store.writing import upsert_where
from runfold_projections.memory import BankRecord

_STANDING: dict[str, Any] = {"record": {"$ne": None}}


class BankStore:
    """The banks of one edition."""

    def __init__(self, database: Database, edition: str) -> None:
        self._banks = database[f"banks.{edition}"]

    async def create_indexes(self) -> None:
        with mongo_errors():
            await self._banks.create_indexes([list_index("created_us")])

    async def get(self, bank_ids: Sequence[str]) -> dict[str, BankRecord]:
        with mongo_errors():
            cursor = self._banks.find({"_id": {"$in": list(bank_ids)}, **_STANDING})
            return {found["_id"]: _record(found) async for found in cursor}

    async def save(self, banks: Mapping[str, tuple[BankRecord | None, int]]) -> None:
        """Saves banks as they are after the event at the offset; None says that one was deleted."""
        operations = [
            UpdateOne(
                {"_id": bank_id, "offset": {"$lt": offset}},
                {
                    "$set": {
                        "offset": offset,
                        "record": record.model_dump_json() if record else None,
                        "created_us": microseconds(record.created_at) if record else 0,
                    }
                },
                upsert=True,
            )
            for bank_id, (record, offset) in banks.items()
        ]
        await upsert_where(self._banks, operations)

    async def all(self) -> dict[str, BankRecord]:
        """Every bank there is: for `verify`."""
        with mongo_errors():
            return {found["_id"]: _record(found) async for found in self._banks.find(_STANDING)}

    async def list(self, *, limit: int, cursor: str | None = None) -> tuple[list[BankRecord], str | None]:
        """A page of banks, the newest first, and the cursor of the next page. Raises
        `InvalidEventError` for a foreign one.
        """
        query = after_cursor(_STANDING, "created_us", cursor)
        with mongo_errors():
            found = self._banks.find(query).sort(newest_first("created_us")).limit(limit + 1)
            records = [_record(document) async for document in found]
        if len(records) <= limit:
            return records, None
        last = records[limit - 1]
        return records[:limit], cursor_of((microseconds(last.created_at), last.bank_id))


def _record(found: dict[str, Any]) -> BankRecord:
    return BankRecord.model_validate_json(found["record"])
