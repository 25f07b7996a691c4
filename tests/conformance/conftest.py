"""The store with each driver: what is written for one holds for the other."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient

from runfold.store.database import Database, connect

DRIVERS = {"motor": AsyncIOMotorClient, "pymongo": AsyncMongoClient}


@pytest.fixture(scope="session", params=DRIVERS)
def driver(request) -> Any:
    """The client class of a driver."""
    return DRIVERS[request.param]


@pytest.fixture(scope="module")
async def store(driver: Any, mongo: str) -> AsyncIterator[Database]:
    """A database of this driver's, dropped afterwards; its tests keep apart by edition."""
    async with connect(mongo, f"t{uuid4().hex[:8]}", client=driver) as opened:
        yield opened
        await opened.client.drop_database(opened.name)


@pytest.fixture
def edition() -> str:
    """An edition that no other test has."""
    return uuid4().hex
