"""What every test may ask for: the servers' addresses, and names of its own on them."""

import functools
import gc
import logging
import os
import random
import ssl
import tempfile
from collections.abc import AsyncIterator, Generator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import certifi
import hypothesis
import pytest

from runfold.settings import Settings
from runfold.telemetry import outages

from . import conversations
from .leftovers import OwnFolder
from .seeds import VARIABLE, is_random, random_of, session_seed, shuffled
from .servers import OwnSettings, Servers, servers, source

_FILE = pytest.StashKey[Path]()
"""The file whose tests run."""

# aiokafka logs every retry, and tests make it retry.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)

# Hypothesis's profile for CI draws the same examples every time, whatever the seed is. No example
# has a deadline, because the machine may be busy. Health checks measure the machine and the luck of
# the first examples; a strategy without examples fails without them.
hypothesis.settings.register_profile(
    "runfold",
    hypothesis.settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.filter_too_much,
        hypothesis.HealthCheck.data_too_large,
    ],
)
hypothesis.settings.load_profile("runfold")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", action="store_true", help="files, and the tests of each, in a random order")


# Before pytest puts tests together that share a fixture with parameters.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("shuffle"):
        items[:] = shuffled(items, session_seed())


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Gives Hypothesis the seed of the session, and the session a folder for all temporary files,
    unless the command line gives others.
    """
    if config.getoption("hypothesis_seed") is None:
        config.option.hypothesis_seed = str(session_seed())
    is_worker = hasattr(config, "workerinput")
    if not is_worker and config.option.basetemp is None:
        config.pluginmanager.register(_Temporary(config))


class _Temporary:
    """The folder of a session. It goes when the process has ended, because libraries remove their
    own temporary files then, and it stays if a test fails.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._failed = False
        self._folder = OwnFolder(prefix="runfold-")
        config.option.basetemp = str(self._folder.path / "pytest")
        # For workers, services, and libraries.
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._folder.path)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if self._failed:
            self._folder.keep()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self._failed = bool(terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"))
        if self._failed:
            terminalreporter.write_line(f"temporary files: {self._folder.path}")


@pytest.fixture(scope="session", autouse=True)
def _public_authorities() -> Generator[None]:
    """Reads the certificates of the public authorities once. Each HTTP client reads them when it is
    made, which takes 30 ms of a processor, and the tests make thousands.
    """
    create = ssl.create_default_context
    create_once = functools.cache(create)
    public = {certifi.where(), os.environ.get("SSL_CERT_FILE") or certifi.where()}

    def context(*arguments: Any, **options: Any) -> ssl.SSLContext:
        is_public = options.get("cafile") in public
        return (create_once if is_public else create)(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", context)
        yield


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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports the tests' modules without garbage collections, which find nothing and took a third
    of the time; later ones are rare.
    """
    gc.disable()
    gc.set_threshold(10_000, 10, 10)
    try:
        return (yield)
    finally:
        _keep_out_of_collections()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the first test of a file. At the end of the last one pytest still holds its fixtures,
    and what they leave in cycles would never be collected.
    """
    if item.session.stash.get(_FILE, None) != item.path:
        item.session.stash[_FILE] = item.path
        _keep_out_of_collections()


def _keep_out_of_collections() -> None:
    """What the imported clients of a dozen providers consist of is walked over once, not again and
    again: with 2 GB of it, every full collection would stop the event loop for seconds.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _without_outages() -> None:
    """No test sees the servers that another test of its process has let die."""
    outages.forget()


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
    """Makes settings of a Runfold that no other test has, from what differs from the defaults.
    Reads wait longer for a fold than by default, because the machine may be busy.
    """
    names = {"prefix": prefix, "database": database}
    return partial(Settings, kafka=kafka, mongo=mongo, wait_timeout_seconds=20, **names)


@pytest.fixture
def database() -> str:
    """A database name that no other test has. Databases stay until the servers go."""
    return f"t{uuid4().hex[:8]}"
