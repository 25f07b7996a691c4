"""aiokafka's ways, told as ours: its errors, how its clients are stopped, and what it says of topics that are new."""

import asyncio
import logging
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


class _NewTopics(logging.Filter):
    """A run's topic is written to the moment it is created, when a broker may not know it yet. aiokafka asks again by
    itself; that it had to is no error to show to who opens a run.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return not (
            record.msg == "Topic %s not found in cluster metadata"
            and isinstance(record.args, tuple)
            and ".run." in str(record.args[0])
        )


logging.getLogger("aiokafka.cluster").addFilter(_NewTopics())


async def stop(client: Any) -> None:
    """Stops a consumer or producer.

    While Kafka is away, a consumer's `stop` waits for a task that it has cancelled itself and raises that cancellation,
    which would look like one of ours.
    """
    await asyncio.gather(client.stop(), return_exceptions=True)
