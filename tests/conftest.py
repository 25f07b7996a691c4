"""What every test may ask for: the servers' addresses, and names of its own on them."""

import gc
import logging
import random
from collections.abc import AsyncIterator, Generator
from functools import partial
from uuid import uuid4

import hypothesis
import pytest

from runfold.settings import Settings

from . import conversations
from .seeds import VARIABLE, is_random, random_of, session_seed
from .servers import OwnSettings, Servers, servers, source

# aiokafka logs every retry, and tests make it retry.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)

# Hypothesis's profile for CI draws the same examples every time, whatever the seed is. How long an
# example takes, or drawing it, depends on how busy the machine is, and decides nothing.
hypothesis.settings.register_profile(
    "runfold",
    hypothesis.settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("runfold")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Gives Hypothesis the seed of the session, unless the command line gives it another one."""
    if config.getoption("hypothesis_seed") is None:
        config.option.hypothesis_seed = str(session_seed())


def pytest_report_header() -> list[str]:
    return [
        f"servers: {source()}",
        f"seed: {VARIABLE}={session_seed()}",
        f"conversations: {conversations.source()}",
    ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure of a test that leaves something to chance names the seed that repeats it."""
    report = yield
    if report.failed and is_random(item):
        report.sections.append(("Seed", f"{VARIABLE}={session_seed()} repeats what was left to chance"))
    return report


def pytest_collection_finish() -> None:
    """What the imported clients of a dozen providers consist of is walked over once, not again and
    again.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers that `RUNFOLD_TEST_SEED` repeats."""
    return random_of(request.node)


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
def own_settings(kafka: str, mongo: str, prefix: str, database: str) -> OwnSettings:
    """Makes settings of a Runfold that no other test has, from what differs from the defaults."""
    return partial(Settings, kafka=kafka, mongo=mongo, prefix=prefix, database=database)


@pytest.fixture
def database() -> str:
    """A database name that no other test has. Databases stay until the servers go."""
    return f"t{uuid4().hex[:8]}"
