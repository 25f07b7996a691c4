"""What differs from aiokafka's own behaviour: its errors become ours, its log is quieter, and its
clients stop cleanly.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from aiokafka.errors import KafkaError

from runfold_schemas.errors import UnavailableError


@contextmanager
def kafka_errors() -> Iterator[None]:
    """Raises `UnavailableError` for errors of the driver and of the network, and for deadlines that
    pass inside.
    """
    try:
        yield
    except (KafkaError, TimeoutError, OSError) as error:
        raise UnavailableError("Kafka", reason=str(error) or type(error).__name__) from error


@cache
def quieten_aiokafka() -> None:
    """Changes aiokafka's loggers, once. Call it before the first client of aiokafka is made.

    Python prints warnings to standard error if the program has not configured logging. A restart of
    Kafka causes hundreds of warnings about attempts that aiokafka repeats by itself, and what fails
    in the end is raised as an error. A handler that does nothing keeps them off standard error, and
    a program that configures logging sees them as before.
    """
    for name in ("aiokafka.cluster", "aiokafka.producer.sender"):
        logging.getLogger(name).addFilter(_NewTopics())
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())


class _NewTopics(logging.Filter):
    """Lowers two warnings about topics of runs to DEBUG. A run's topic is written to right after
    its creation, when a broker may not know the topic or its leader yet. aiokafka then tries again
    by itself.
    """

    _EXPECTED = (
        "Topic %s not found in cluster metadata",
        "Got error produce response on topic-partition %s, retrying. Error: %s",
    )

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg not in self._EXPECTED or not isinstance(record.args, tuple):
            return True
        if ".run." not in str(record.args[0]):
            return True
        record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


async def stop(client: Any) -> None:
    """Stops a consumer or producer.

    While Kafka is away, a consumer's `stop` waits for a task that it has cancelled itself and
    raises that cancellation, which would look like a cancellation of the caller.
    """
    await asyncio.gather(client.stop(), return_exceptions=True)
