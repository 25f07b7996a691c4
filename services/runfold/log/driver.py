"""aiokafka's ways, told as ours: its errors, and how its clients are stopped."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiokafka.errors import KafkaError

from runfold_schemas.errors import UnavailableError


@contextmanager
def kafka_errors() -> Iterator[None]:
    """Raises `UnavailableError` for whatever the driver or a deadline raises inside."""
    try:
        yield
    except (KafkaError, TimeoutError, OSError) as error:
        raise UnavailableError("Kafka", reason=str(error) or type(error).__name__) from error


async def stop(client: Any) -> None:
    """Stops a consumer or producer.

    While Kafka is away, a consumer's `stop` waits for a task that it has cancelled itself and raises that cancellation,
    which would look like one of ours.
    """
    await asyncio.gather(client.stop(), return_exceptions=True)
