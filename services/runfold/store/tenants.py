"""The databases of tenants as a whole."""

from runfold.store.database import Database
from runfold.store.editions import Editions
from runfold.store.runs import RunStore
from runfold.store.unavailable import mongo_errors


async def drop_database(database: Database) -> bool:
    """Deletes the database. Returns whether it had any data."""
    with mongo_errors():
        collections = await database.list_collection_names()
        if collections:
            await database.client.drop_database(database.name)
    return bool(collections)


async def has_data(database: Database) -> bool:
    """Whether the database has any collection."""
    with mongo_errors():
        return bool(await database.list_collection_names())


async def count_open_runs(database: Database, *, limit: int | None = None) -> int:
    """The number of runs that have not ended, up to `limit`."""
    edition = await Editions(database).current()
    return 0 if edition is None else await RunStore(database, edition).count_open(limit=limit)
