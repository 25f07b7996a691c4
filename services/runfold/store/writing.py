"""Upserts with a condition: a document that does not meet it stays as it is."""

from collections.abc import Sequence
from typing import Any

from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from runfold.store.unavailable import duplicates_of, mongo_errors


async def upsert_where(collection: Any, operations: Sequence[UpdateOne]) -> None:
    """Upserts, each by an `_id` and a condition beside it, that what stands is older for example.

    Where two find no document both insert, and the later one is refused though its condition may be
    met now. So what was refused is tried once more, when there is a document to compare it with.
    """
    if operations and (refused := await _refused(collection, operations)):
        await _refused(collection, refused)


async def upsert_in_order(collection: Any, operations: Sequence[UpdateOne]) -> None:
    """As `upsert_where`, but whatever ends in between, none is done before those that stand before
    it.
    """
    begin, refused = 0, -1
    while begin < len(operations):
        try:
            with mongo_errors():
                await collection.bulk_write(operations[begin:], ordered=True)
        except BulkWriteError as error:
            begin += duplicates_of(error)[0]
            if begin == refused:
                begin += 1
            refused = begin
        else:
            return


async def _refused(collection: Any, operations: Sequence[UpdateOne]) -> list[UpdateOne]:
    try:
        with mongo_errors():
            await collection.bulk_write(operations, ordered=False)
    except BulkWriteError as error:
        return [operations[index] for index in duplicates_of(error)]
    return []
