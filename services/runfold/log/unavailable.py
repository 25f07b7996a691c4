"""Kafka's own errors, told as ours."""

from collections.abc import Iterator
from contextlib import contextmanager

from aiokafka.errors import KafkaError

from runfold_schemas.errors import UnavailableError


@contextmanager
def kafka_errors() -> Iterator[None]:
    """Raises `UnavailableError` for whatever the driver or a deadline raises inside."""
    try:
        yield
    except (KafkaError, TimeoutError, OSError) as error:
        raise UnavailableError("Kafka", reason=str(error) or type(error).__name__) from error
