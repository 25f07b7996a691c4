"""What differs from aiokafka's own behaviour: its errors become ours, its log is quieter, its
clients connect to several brokers at once, and they stop cleanly.
"""

import asyncio
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

import aiokafka.client
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import (
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)

from runfold.telemetry import outages
from runfold.telemetry.request_times import KAFKA, REQUEST_TIMES
from runfold_schemas.errors import ConfigurationError, UnavailableError

_REFUSED: Final = (SaslAuthenticationFailed, UnsupportedSaslMechanismError, IllegalSaslStateError)

_WORDS: Final = re.compile("[A-Z][a-z]*")
_ADDRESS_TUPLES: Final = re.compile(r"\[(\('[^\]]*>\))\]")
_ADDRESS_TUPLE: Final = re.compile(r"\('([^']*)', (\d+), <[^>]*>\)")


class _Attempts:
    """The attempts to connect within `kafka_errors`."""

    def __init__(self) -> None:
        self.refusal: KafkaError | None = None
        """The last login that a broker refused."""
        self.protocol: str | None = None
        """The `security_protocol` with which a listener was reached, if it ended the connection
        afterwards.
        """


_attempts: ContextVar[_Attempts | None] = ContextVar("attempts", default=None)


class TopicRefusedError(UnavailableError):
    """Kafka refuses a topic to this login. Other topics may be allowed."""

    def __init__(self, topic: str) -> None:
        super().__init__("Kafka", reason=f"it refuses the topic {topic}")
        self.args = (f"Kafka refuses the topic {topic} to this login: allow the login to read it",)
        self.topic = topic


@contextmanager
def kafka_errors() -> Iterator[None]:
    """Raises `UnavailableError` for errors of the driver and of the network, and for deadlines that
    pass inside. Raises `ConfigurationError` if a broker refused the login meanwhile: waiting does
    not help.
    """
    attempts, outside = _Attempts(), _attempts.get()
    _attempts.set(attempts)
    try:
        yield
    except (KafkaError, TimeoutError, OSError) as error:
        if attempts.refusal is None and attempts.protocol and "Unable to bootstrap" in str(error):
            hint = (
                f"; a listener was reached and ended the connection: it may expect another security_protocol"
                f" in the Kafka options than {attempts.protocol}"
            )
            raise UnavailableError("Kafka", reason=_reason_of(error) + hint) from error
        raise translated(attempts.refusal or error) from error
    finally:
        _attempts.set(outside)


def translated(error: Exception) -> Exception:
    """`ConfigurationError` for a refused login, `TopicRefusedError` for a refused topic,
    `UnavailableError` for other errors of the driver or of the network, and any other error as it
    is.
    """
    if isinstance(error, IllegalSaslStateError):
        return ConfigurationError(
            "Kafka's listener asks for no login, and security_protocol in the Kafka options is one with SASL:"
            " correct security_protocol, or the address"
        )
    if isinstance(error, _REFUSED):
        return ConfigurationError(
            f"Kafka refuses the login: {_reason(error)}. Check sasl_mechanism, the names and the secrets in"
            " the Kafka options"
        )
    if isinstance(error, TopicAuthorizationFailedError) and error.args:
        # aiokafka names a topic or a partition, or several topics.
        topic = getattr(error.args[0], "topic", error.args[0])
        if isinstance(topic, str):
            return TopicRefusedError(topic)
    if isinstance(error, (KafkaError, TimeoutError, OSError)):
        return UnavailableError("Kafka", reason=_reason_of(error))
    return error


def _reason_of(error: Exception) -> str:
    return _without_families(str(error)) or type(error).__name__


def _without_families(text: str) -> str:
    """aiokafka's message with addresses as host:port, instead of tuples."""
    return _ADDRESS_TUPLES.sub(lambda tuples: _ADDRESS_TUPLE.sub(r"\1:\2", tuples[1]), text)


def _reason(error: KafkaError) -> str:
    messages = [part for part in error.args if isinstance(part, str) and part]
    return messages[0].rstrip(".") if messages else str(error.description).rstrip(".")


@cache
def quieten_aiokafka() -> None:
    """Changes aiokafka's loggers and the way in which it connects, and notes the outcomes of its
    connections, once. Call it before the first client of aiokafka is made.

    Python prints warnings to standard error if the program has not configured logging. A restart of
    Kafka causes hundreds of warnings about attempts that aiokafka repeats by itself, and what fails
    in the end is raised as an error. A handler that does nothing keeps them off standard error, and
    a program that configures logging sees them as before.
    """
    for name in ("aiokafka.cluster", "aiokafka.producer.sender"):
        logging.getLogger(name).addFilter(_NewTopics())
    AIOKafkaClient._get_conn = _connecting_apart(AIOKafkaClient._get_conn)  # noqa: SLF001
    AIOKafkaClient._get_conn_lock = nullcontext()  # noqa: SLF001
    aiokafka.client.create_conn = _noting_outcomes(aiokafka.client.create_conn)
    AIOKafkaConnection.send = _measuring(AIOKafkaConnection.send)
    for name in ("aiokafka", outages.__name__):
        logging.getLogger(name).addHandler(logging.NullHandler())


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


def _connecting_apart(get_conn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`AIOKafkaClient._get_conn` with a lock for each connection. aiokafka has one lock for all of
    a client, so a broker that hangs would delay new connections to others, by up to 15 s.
    """
    locks: WeakKeyDictionary[Any, WeakValueDictionary[object, asyncio.Lock]] = WeakKeyDictionary()

    @wraps(get_conn)
    async def connect(
        client: Any, node_id: int, *, group: ConnectionGroup = ConnectionGroup.DEFAULT, **options: Any
    ) -> Any:
        connection = client._conns.get((node_id, group))  # noqa: SLF001
        if connection is not None and connection.connected():
            return connection
        own = locks.setdefault(client, WeakValueDictionary())
        async with own.setdefault((node_id, group), asyncio.Lock()):
            return await get_conn(client, node_id, group=group, **options)

    return connect


def _noting_outcomes(create_conn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`create_conn`, which notes outages, a refused login, and a listener that was reached.
    aiokafka logs them, and then raises an error that no broker could be reached.
    """

    @wraps(create_conn)
    async def connect(host: str, port: int, **options: Any) -> Any:
        attempts = _attempts.get() or _Attempts()
        protocol = options.get("security_protocol", "PLAINTEXT")
        server = f"Kafka at {host}:{port}"
        options["on_close"] = _noting_silence(server, options.get("on_close"))
        try:
            connection = await _noting_outages(server, create_conn(host, port, **options))
        except _REFUSED as error:
            attempts.refusal = error
            raise
        except (ConnectionResetError, ssl.SSLError) as error:
            if not isinstance(error, ssl.SSLCertVerificationError):
                attempts.protocol = protocol
            raise
        attempts.protocol = protocol
        return connection

    return connect


async def _noting_outages(server: str, connecting: Awaitable[Any]) -> Any:
    try:
        connection = await connecting
    except (OSError, KafkaError, TimeoutError) as error:
        outages.failed(server, str(error) or type(error).__name__)
        raise
    outages.answered(server)
    return connection


def _noting_silence(server: str, on_close: Callable[..., None] | None) -> Callable[..., None]:
    """`on_close` of a connection, which notes a server that accepts requests and answers none."""

    def note(connection: Any, reason: Any = None) -> None:
        if reason is CloseReason.CONNECTION_TIMEOUT:
            outages.failed(server, "it does not answer requests")
        if on_close is not None:
            on_close(connection, reason)

    return note


def _measuring(send: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """`AIOKafkaConnection.send`, which notes the time of the answer if somebody wants to know."""

    @wraps(send)
    def measure(connection: Any, request: Any, expect_response: bool = True) -> Awaitable[Any]:
        answer = send(connection, request, expect_response)
        if not expect_response or REQUEST_TIMES.observe is None:
            return answer
        return REQUEST_TIMES.awaited(KAFKA, _operation(type(request).__name__), answer)

    return measure


@cache
def _operation(request: str) -> str:
    """`list_offsets` for the class `ListOffsetsRequest`."""
    return "_".join(_WORDS.findall(request.partition("Request")[0])).lower()


async def stop(client: Any) -> None:
    """Stops a consumer or producer.

    While Kafka is away, a consumer's `stop` waits for a task that it has cancelled itself and
    raises that cancellation, which would look like a cancellation of the caller.
    """
    await asyncio.gather(client.stop(), return_exceptions=True)


async def close(client: Any) -> None:
    """Closes a client that is neither a consumer nor a producer, whatever its connections do."""
    await asyncio.gather(client.close(), return_exceptions=True)
