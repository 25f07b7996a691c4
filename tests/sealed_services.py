"""Services that seal what agents say, on real servers."""

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import httpx
from tests.ingesting import is_ready
from tests.processes import until
from tests.querying import projected, served

from runfold.api.app import build_app
from runfold.encryption.cipher import new_key
from runfold.settings import Settings


def sealed_settings(kafka: str, mongo: str, folder: Path) -> Settings:
    """Settings with a new key, which is in the folder. Labels of the key `team` stay clear."""
    name, path = f"t{uuid4().hex[:8]}", folder / "key"
    path.write_text(b64encode(new_key()).decode())
    return Settings(
        kafka=kafka,
        mongo=mongo,
        prefix=name,
        database=name,
        partitions=2,
        wait_timeout_seconds=20,
        encryption_key=f"file:{path}",
        encryption_clear_labels=("team",),
    )


@asynccontextmanager
async def sealed_api(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API, with a projector behind it that has no key."""
    async with (
        projected(settings.model_copy(update={"encryption_key": None})),
        served(build_app(settings)) as client,
    ):
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        yield client
