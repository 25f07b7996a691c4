"""Upserts with a condition: a document that does not meet the condition stays unchanged."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from runfold.store.unavailable import duplicates_of, mongo_errors

FORGOTTEN: Final = timedelta(hours=1)
"""How long the offset of a deletion is kept at the place of the deleted data. After that time no
owner is left that could write older data there.
"""


async def upsert_where(collection: Any, operations: Sequence[UpdateOne]) -> None:
    """Upserts, each by an `_id` and a further condition, for example that the stored document is
    older.

    If two upserts find no document, both insert, and the second fails with a duplicate key although
    its condition may hold now. So failed upserts are tried once more, when there is a document to
    compare with.
    """
    if operations and (failed := await _failed(collection, operations)):
        await _failed(collection, failed)


async def upsert_in_order(collection: Any, operations: Sequence[UpdateOne]) -> None:
    """The same as `upsert_where`, but in order: even if the process dies in between, no operation
    is done before those in front of it.
    """
    begin, failed = 0, -1
    while begin < len(operations):
        try:
            with mongo_errors():
                await collection.bulk_write(operations[begin:], ordered=True)
        except BulkWriteError as error:
            begin += duplicates_of(error)[0]
            if begin == failed:
                begin += 1
            failed = begin
        else:
            return


async def _failed(collection: Any, operations: Sequence[UpdateOne]) -> list[UpdateOne]:
    try:
        with mongo_errors():
            await collection.bulk_write(operations, ordered=False)
    except BulkWriteError as error:
        return [operations[index] for index in duplicates_of(error)]
    return []
