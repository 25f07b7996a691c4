"""Which runs are ours: the consumer group on the catalog. Owning a partition means owning the runs
that are keyed to it.

FastStream runs the subscription. The acknowledgement is manual and comes last: a catalog offset is
committed only when what it says is in MongoDB, so a new owner finds there all that was committed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from aiokafka import ConsumerRebalanceListener, TopicPartition
from faststream import AckPolicy
from faststream.kafka import KafkaBroker, KafkaMessage
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256, SASLScram512

from runfold.log.catalog import entry_of
from runfold.log.driver import quieten_aiokafka
from runfold.log.settings import LogSettings
from runfold_schemas.catalog import Bell, Life
from runfold_schemas.errors import ConfigurationError
from runfold_schemas.topics import Topics

_BATCH_MAX = 500

_BATCH_TIMEOUT_MS = 50
"""FastStream waits so long for a batch, and after an empty one sleeps as long: with its 200 ms a
new run waited for 92 (p50).
"""

_MECHANISMS: Final = {"PLAIN": SASLPlaintext, "SCRAM-SHA-256": SASLScram256, "SCRAM-SHA-512": SASLScram512}

OnAssigned = Callable[[set[int]], Awaitable[None]]
Entry = tuple[Life | Bell, int]
"""With the time at which the broker appended it, in milliseconds since 1970."""

OnEntries = Callable[[Sequence[Entry]], Awaitable[None]]


@asynccontextmanager
async def catalog_group(
    settings: LogSettings,
    group: str,
    *,
    member_id: str | None,
    session_timeout_seconds: float,
    on_assigned: OnAssigned,
    on_entries: OnEntries,
) -> AsyncIterator[None]:
    """Takes part in the group of this name for the length of the block, as the projectors of an
    edition do.

    A member that returns under its `member_id` within `session_timeout_seconds` keeps its
    partitions. `on_assigned` gets all partitions that are ours after a rebalance; `on_entries` what
    the catalog says, in order.
    """
    topic = Topics(settings.prefix).catalog
    broker = _broker(settings)

    @broker.subscriber(
        topic,
        group_id=f"{settings.prefix}.{group}",
        group_instance_id=member_id,
        batch=True,
        max_records=_BATCH_MAX,
        batch_timeout_ms=_BATCH_TIMEOUT_MS,
        ack_policy=AckPolicy.MANUAL,
        auto_offset_reset="earliest",
        listener=_Listener(on_assigned),
        session_timeout_ms=int(session_timeout_seconds * 1000),
        heartbeat_interval_ms=int(session_timeout_seconds * 1000 / 5),
        fetch_max_wait_ms=100,
        decoder=_undecoded,
        no_reply=True,
    )
    async def on_catalog(message: KafkaMessage) -> None:
        records: Any = message.raw_message
        entries = [
            (entry, record.timestamp)
            for record in records
            if (entry := entry_of(record.key, record.value)) is not None
        ]
        await on_entries(entries)
        await message.ack()

    try:
        await broker.start()
        yield
    finally:
        await broker.stop()


def _broker(settings: LogSettings) -> KafkaBroker:
    """FastStream's broker with the options of every other client; it wants those of security in a
    form of its own.
    """
    quieten_aiokafka()
    options = settings.client_options()
    security = security_of(options)
    plain = {
        name: value for name, value in options.items() if not name.startswith(("security_", "sasl_", "ssl_"))
    }
    return KafkaBroker(logger=None, consumer_only=True, security=security, **plain)


def security_of(options: Mapping[str, Any]) -> BaseSecurity | None:
    """aiokafka's security options as FastStream's. Raises `ConfigurationError` for a mechanism that
    needs more than a name and a password.
    """
    protocol = options.get("security_protocol", "PLAINTEXT")
    channel = {"ssl_context": options.get("ssl_context"), "use_ssl": protocol.endswith("SSL")}
    if not protocol.startswith("SASL"):
        return BaseSecurity(**channel) if channel["use_ssl"] else None
    mechanism = options.get("sasl_mechanism", "PLAIN")
    if mechanism not in _MECHANISMS:
        raise ConfigurationError(
            f"SASL mechanism {mechanism} is not supported; use one of {', '.join(_MECHANISMS)}"
        )
    return _MECHANISMS[mechanism](
        username=options["sasl_plain_username"], password=options["sasl_plain_password"], **channel
    )


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is untyped
    def __init__(self, on_assigned: OnAssigned) -> None:
        self._on_assigned = on_assigned

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """A worker keeps tailing through a rebalance: what it writes meanwhile is right whoever
        owns the run next.
        """

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        await self._on_assigned({at.partition for at in assigned})


async def _undecoded(message: Any) -> None:
    """The raw records are what we want; a bell has no value at all."""
