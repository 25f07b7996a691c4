"""What every test may ask for: the servers' addresses, and names of its own on them."""

import gc
import logging
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from .servers import Servers, servers, source

logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it tells of every retry, and tests make it retry


def pytest_report_header() -> str:
    return f"servers: {source()}"


def pytest_collection_finish() -> None:
    """What the imported clients of a dozen providers consist of is walked over once, not again and
    again.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", name="servers")
async def started_servers() -> AsyncIterator[Servers]:
    """One Kafka and one MongoDB for the session, started when the first test asks for one of
    them.
    """
    async with servers() as addresses:
        yield addresses


@pytest.fixture(scope="session")
def kafka(servers: Servers) -> str:
    """Kafka's bootstrap address."""
    return servers.kafka


@pytest.fixture(scope="session")
def mongo(servers: Servers) -> str:
    """MongoDB's address."""
    return servers.mongo


@pytest.fixture
def prefix() -> str:
    """A topic prefix that no other test has. Topics stay until the servers go."""
    return f"t{uuid4().hex[:8]}"


@pytest.fixture
def database() -> str:
    """A database name that no other test has. Databases stay until the servers go."""
    return f"t{uuid4().hex[:8]}"
