"""Opens MongoDB. No other module imports the driver's client, so another driver means another
`CLIENT`.
"""

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bson.codec_options import CodecOptions
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import ReadPreference, WriteConcern, errors
from pymongo.read_concern import ReadConcern

from runfold.store.unavailable import mongo_errors
from runfold_schemas.errors import ConfigurationError

CLIENT: Any = AsyncIOMotorClient

Database = Any
"""The driver's database object: of Motor, or of PyMongo's async client, which has the same methods.
"""

_TIMEOUT_MS = 3_000

_REFUSED = {13, 18, 8000}
"""The codes of Unauthorized and AuthenticationFailed, and Atlas' code for both."""


@asynccontextmanager
async def connect(url: str, database: str, *, client: Any = None) -> AsyncIterator[Database]:
    """The database, open for the length of the block. `client` is the driver's client class,
    `CLIENT` by default. Raises `ConfigurationError` if `url` is not a connection string or MongoDB
    refuses its user, and `UnavailableError` if MongoDB does not answer.

    A majority acknowledges and journals every write. Every read goes to the primary and returns
    only data that a majority has, because a position that was read may decide where a writer goes
    on.
    """
    try:
        opened = (client or CLIENT)(
            url,
            serverSelectionTimeoutMS=_TIMEOUT_MS,
            connectTimeoutMS=_TIMEOUT_MS,
            socketTimeoutMS=30_000,
            tz_aware=True,
        )
    except (errors.ConfigurationError, errors.InvalidName, ValueError) as error:
        raise ConfigurationError(f"RUNFOLD_MONGO is not a connection string: {error}") from error
    try:
        await _check_access(opened)
        yield opened.get_database(
            database,
            codec_options=CodecOptions(tz_aware=True),
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("majority"),
            write_concern=WriteConcern(w="majority", j=True),
        )
    finally:
        closed = opened.close()
        if inspect.isawaitable(closed):
            await closed


async def _check_access(opened: Any) -> None:
    try:
        with mongo_errors():
            await opened.admin.command("ping")
    except errors.OperationFailure as error:
        if error.code not in _REFUSED:
            raise
        reason = error.details.get("errmsg") if error.details else None
        raise ConfigurationError(
            f"RUNFOLD_MONGO: MongoDB refuses the user or the password in it ({reason or error.code}):"
            " correct them, or authSource"
        ) from error
