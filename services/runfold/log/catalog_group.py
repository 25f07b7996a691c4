"""The consumer group on the catalog, which distributes runs over workers: the owner of a partition
owns the runs in it.

FastStream runs the subscription. An offset of the catalog is committed only after its entries are
stored in MongoDB. So a new owner finds all committed entries there.
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
"""How long FastStream waits for a batch, and how long it sleeps after an empty batch. With its
default of 200 ms a new run waited for 92 ms (p50).
"""

_MECHANISMS: Final = {"PLAIN": SASLPlaintext, "SCRAM-SHA-256": SASLScram256, "SCRAM-SHA-512": SASLScram512}

OnAssigned = Callable[[set[int]], Awaitable[None]]
Entry = tuple[Life | Bell, int]
"""An entry of the catalog with the broker's append time, in milliseconds since 1970."""

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
    """Joins the consumer group `group` for the length of the block.

    A member that returns with the same `member_id` within `session_timeout_seconds` keeps its
    partitions. `on_assigned` gets all own partitions after a rebalance. `on_entries` gets the
    entries of these partitions in order.
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
        decoder=_skip_decoding,
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
    """FastStream's broker with the options of every other client. It needs the security options in
    a form of its own.
    """
    quieten_aiokafka()
    options = settings.client_options()
    security = security_of(options)
    plain = {
        name: value for name, value in options.items() if not name.startswith(("security_", "sasl_", "ssl_"))
    }
    return KafkaBroker(logger=None, consumer_only=True, security=security, **plain)


def security_of(options: Mapping[str, Any]) -> BaseSecurity | None:
    """FastStream's form of aiokafka's security options. Raises `ConfigurationError` for a mechanism
    that needs more than a name and a password.
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
        """Does nothing: a worker keeps tailing during a rebalance, because its writes are right for
        any owner.
        """

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        await self._on_assigned({at.partition for at in assigned})


async def _skip_decoding(message: Any) -> None:
    """Decodes nothing: the handler reads the raw records, because a bell has no value."""
