"""Opens MongoDB. No other module imports the driver's client, so another driver means another
`CLIENT`.
"""

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bson.codec_options import CodecOptions
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import ReadPreference, WriteConcern
from pymongo.read_concern import ReadConcern

from runfold.secret_urls import SecretUrl, revealed
from runfold.store.command_spans import CommandSpans
from runfold.store.command_times import CommandTimes
from runfold.store.login import check_mechanism, connection_errors, login_errors
from runfold.store.outage_listener import OutageListener
from runfold.telemetry import spans

CLIENT: Any = AsyncIOMotorClient

Database = Any
"""The driver's database object: of Motor, or of PyMongo's async client, which has the same methods.
"""

_TIMEOUT_MS = 3_000


@asynccontextmanager
async def connect(url: SecretUrl | str, database: str, *, client: Any = None) -> AsyncIterator[Database]:
    """The database, open for the length of the block. `client` is the driver's client class,
    `CLIENT` by default. Raises `ConfigurationError` if `url` is not a connection string or MongoDB
    refuses its user, and `UnavailableError` if MongoDB does not answer.

    A majority acknowledges and journals every write. Every read goes to the primary and returns
    only data that a majority has, because a position that was read may decide where a writer goes
    on.
    """
    with connection_errors():
        check_mechanism(revealed(url))
        opened = (client or CLIENT)(
            revealed(url),
            serverSelectionTimeoutMS=_TIMEOUT_MS,
            connectTimeoutMS=_TIMEOUT_MS,
            socketTimeoutMS=30_000,
            tz_aware=True,
            event_listeners=[
                *([CommandSpans()] if spans.is_on() else []),
                OutageListener(),
                CommandTimes(),
            ],
        )
    try:
        with login_errors():
            await opened.admin.command("ping")
        yield _database(opened, database)
    finally:
        closed = opened.close()
        if inspect.isawaitable(closed):
            await closed


def sibling(database: Database, name: str) -> Database:
    """Another database, over the same connections and with the same guarantees."""
    return _database(database.client, name)


def _database(client: Any, name: str) -> Database:
    return client.get_database(
        name,
        codec_options=CodecOptions(tz_aware=True),
        read_preference=ReadPreference.PRIMARY,
        read_concern=ReadConcern("majority"),
        write_concern=WriteConcern(w="majority", j=True),
    )
