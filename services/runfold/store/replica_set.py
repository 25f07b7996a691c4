"""Makes a single mongod a replica set of one node: initiates the set once, and reconfigures it when
the node's address has changed.
"""

import asyncio
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure

REPLICA_SET = "rs0"
POLL_SECONDS = 0.02

NOT_YET_INITIALIZED = 94
ALREADY_INITIALIZED = 23


async def bring_up(address: str) -> None:
    """Returns when the mongod at `address` (host:port) is the primary of its replica set. Calling
    it again is harmless.
    """
    # A direct connection, because before the set exists the driver would find no primary.
    async with AsyncMongoClient[dict[str, Any]](f"mongodb://{address}/?directConnection=true") as client:
        await _configure(client.admin, address)
        while not (await client.admin.command("hello"))["isWritablePrimary"]:  # noqa: ASYNC110 - the server elects
            await asyncio.sleep(POLL_SECONDS)


async def _configure(admin: AsyncDatabase[dict[str, Any]], address: str) -> None:
    while (config := await _config(admin)) is None:
        await _initiate(admin, address)
    if config["members"][0]["host"] != address:
        # The node is not in its own configuration, so the set has no primary and the change must be
        # forced.
        config["members"][0]["host"] = address
        config["version"] += 1
        await admin.command("replSetReconfig", config, force=True)


async def _config(admin: AsyncDatabase[dict[str, Any]]) -> dict[str, Any] | None:
    try:
        config: dict[str, Any] = (await admin.command("replSetGetConfig"))["config"]
    except OperationFailure as error:
        if error.code == NOT_YET_INITIALIZED:
            return None
        raise
    return config


async def _initiate(admin: AsyncDatabase[dict[str, Any]], address: str) -> None:
    try:
        await admin.command("replSetInitiate", {"_id": REPLICA_SET, "members": [{"_id": 0, "host": address}]})
    except OperationFailure as error:
        if error.code != ALREADY_INITIALIZED:
            raise
        # A node that has just started answers "not yet initialized" until it has read its
        # configuration.
        await asyncio.sleep(POLL_SECONDS)
