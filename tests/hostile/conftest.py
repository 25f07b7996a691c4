"""A stack under attack for each module (see `tests.attacks`), and what tests of faults share."""

from collections.abc import AsyncIterator
from functools import partial
from uuid import uuid4

import pytest
from tests.attacks import Stack, stack
from tests.processes import Projections, projections
from tests.servers import OwnSettings

from runfold import Runfold
from runfold.settings import Settings


@pytest.fixture(scope="module")
def module_settings(kafka: str, mongo: str) -> OwnSettings:
    """Makes the settings of a module's stack from what differs from the others. A projector that
    stands still for seconds keeps its membership, because a worker that loses it begins anew.
    """
    name = f"t{uuid4().hex[:8]}"
    seconds = {"session_timeout_seconds": 20, "wait_timeout_seconds": 30, "keep_alive_seconds": 5}
    return partial(Settings, kafka=kafka, mongo=mongo, prefix=name, database=name, **seconds)


@pytest.fixture(scope="module")
def settings(module_settings: OwnSettings) -> Settings:
    """Those of the module's stack."""
    return module_settings()


@pytest.fixture(scope="module")
async def under_attack(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """An API and a projector in processes of their own, with limits of memory."""
    async with stack(settings, tmp_path_factory.mktemp("stack")) as attacked:
        yield attacked


@pytest.fixture
def settings_of_one_test(own_settings: OwnSettings) -> Settings:
    """For a module whose tests each have a projector that fails."""
    return own_settings(session_timeout_seconds=6, sweep_seconds=2.0, retire_seconds=2.0)


@pytest.fixture
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    """An agent's client."""
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


@pytest.fixture
async def stored(settings: Settings) -> AsyncIterator[Projections]:
    """What the projectors have stored."""
    async with projections(settings) as stored:
        yield stored
