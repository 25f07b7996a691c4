"""aiokafka's ways, told as ours: its errors, how its clients are stopped, and what of its log is
shown.
"""

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
    """A run's topic is written to the moment it is created, when a broker may not know it yet, or
    who leads it. aiokafka asks again by itself; that it had to is nothing to show to who opens a
    run, unless they ask for DEBUG.
    """

    _TOLD = (
        "Topic %s not found in cluster metadata",
        "Got error produce response on topic-partition %s, retrying. Error: %s",
    )

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg not in self._TOLD or not isinstance(record.args, tuple):
            return True
        if ".run." not in str(record.args[0]):
            return True
        record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


for _name in ("aiokafka.cluster", "aiokafka.producer.sender"):
    logging.getLogger(_name).addFilter(_NewTopics())

# Python prints the warnings of a library to standard error where nobody has configured logging, and
# a restart of Kafka is hundreds of them, each of an attempt that is made again; what fails in the
# end is an error of ours. The usual remedy for a library is a handler that does nothing: whoever
# configures logging is told all of it as before.
logging.getLogger("aiokafka").addHandler(logging.NullHandler())


async def stop(client: Any) -> None:
    """Stops a consumer or producer.

    While Kafka is away, a consumer's `stop` waits for a task that it has cancelled itself and
    raises that cancellation, which would look like one of ours.
    """
    await asyncio.gather(client.stop(), return_exceptions=True)
