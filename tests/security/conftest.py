"""An API with keys, and a projector behind it."""

from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import pytest
from tests.ingesting import is_ready
from tests.principals import As, authenticated
from tests.processes import until
from tests.querying import projected, served
from tests.remembering import ScriptedModel

from runfold import Runfold
from runfold.api.app import build_app
from runfold.generation.model import Found
from runfold.log.publisher import Publisher
from runfold.settings import Settings


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str) -> Settings:
    name = f"t{uuid4().hex[:8]}"
    return Settings(kafka=kafka, mongo=mongo, prefix=name, database=name, wait_timeout_seconds=20)


@pytest.fixture(scope="module")
async def publisher(settings: Settings) -> AsyncIterator[Publisher]:
    async with Publisher.connect(settings.log()) as publisher:
        yield publisher


@pytest.fixture(scope="module")
async def client(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a credential. The model finds in every conversation that it had a secret."""
    model = ScriptedModel(found=[Found(fact="The secret is out", topics=["USER_PREFERENCES"])])
    app = authenticated(build_app(settings, model=model))
    async with projected(settings), served(app) as client:
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        yield client


@pytest.fixture(scope="module")
def everything(client: httpx.AsyncClient) -> As:
    return As(client, "everything")


@pytest.fixture(scope="module")
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as runfold:
        yield runfold
