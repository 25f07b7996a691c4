"""The consumer group on the catalog, which distributes runs over workers: the owner of a partition
owns the runs in it.

FastStream runs the subscription. An offset of the catalog is committed only after its entries are
stored in MongoDB. So a new owner finds all committed entries there.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

from aiokafka import ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import CommitFailedError, KafkaError
from faststream import AckPolicy
from faststream.kafka import KafkaBroker, KafkaMessage
from faststream.security import BaseSecurity, SASLOAuthBearer, SASLPlaintext, SASLScram256, SASLScram512

from runfold.log.catalog import entry_of, is_in_place
from runfold.log.consumer import Consumer
from runfold.log.driver import quieten_aiokafka, translated
from runfold.log.partition_counts import more_partitions
from runfold.log.settings import LogSettings
from runfold_schemas.catalog import Bell, Life, Segments, Skip
from runfold_schemas.codec import Headers, Record, UnreadableBatch
from runfold_schemas.errors import ConfigurationError
from runfold_schemas.topics import Partition, Topics

_BATCH_MAX = 500

_FETCH_WAIT_MS = 500
"""How long the broker waits for records before it answers a fetch. It answers new records at
once.
"""

_LEAVE_SECONDS: Final = 2.0
"""How long a member that leaves waits for what it takes at present. That may wait for the block
that was left, and what was not committed comes again.
"""

_MECHANISMS: Final = {"PLAIN": SASLPlaintext, "SCRAM-SHA-256": SASLScram256, "SCRAM-SHA-512": SASLScram512}

OnAssigned = Callable[[set[int]], Awaitable[None]]


class CatalogRecord(NamedTuple):
    """A record of the catalog. It is decoded when its entry is asked for."""

    topics: Topics
    at: Partition
    record: Record

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def entry(self) -> Life | Segments | Bell | Skip | None:
        """What the record says, None if it is none of these or a skip in a wrong partition."""
        entry = entry_of(self.record.key, self.record.value)
        return entry if is_in_place(self.topics, entry, self.at) else None


NoteProgress = Callable[[Partition, int, int], None]
"""Is told a partition of the catalog with the position behind the records that were taken from it,
and its end.
"""

OnRecords = Callable[[Sequence[CatalogRecord], Sequence[UnreadableBatch]], Awaitable[None]]


@asynccontextmanager
async def catalog_group(
    settings: LogSettings,
    group: str,
    *,
    member_id: str | None,
    session_timeout_seconds: float,
    on_assigned: OnAssigned,
    on_records: OnRecords,
    note_progress: NoteProgress = lambda *_: None,
) -> AsyncIterator[asyncio.Future[NoReturn]]:
    """Joins the consumer group `group` for the length of the block.

    A member that returns with the same `member_id` within `session_timeout_seconds` keeps its
    partitions. `on_assigned` gets all own partitions after a rebalance. `on_records` gets the
    records of these partitions in order, and the batches between them that cannot be read. The
    offsets of both are committed when it returns. During a rebalance they may not be, so records
    may come again.

    The future that the block gets ends with the first error of `on_records` or of Kafka. No further
    records are taken and no offsets are committed then.
    """
    topics = settings.topics
    failed: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
    failed.add_done_callback(_retrieve)
    broker = _broker(settings)

    @broker.subscriber(
        topics.catalog,
        group_id=f"{settings.prefix}.{group}",
        group_instance_id=member_id,
        batch=True,
        max_records=_BATCH_MAX,
        batch_timeout_ms=_FETCH_WAIT_MS,
        ack_policy=AckPolicy.MANUAL,
        auto_offset_reset="earliest",
        listener=_Listener(topics, on_assigned, failed),
        session_timeout_ms=int(session_timeout_seconds * 1000),
        heartbeat_interval_ms=int(session_timeout_seconds * 1000 / 5),
        fetch_max_wait_ms=_FETCH_WAIT_MS,
        decoder=_skip_decoding,
        no_reply=True,
    )
    async def on_catalog(message: KafkaMessage) -> None:
        records: Any = message.raw_message
        unreadable = [record.value for record in records if isinstance(record.value, UnreadableBatch)]
        readable = [
            CatalogRecord(
                topics,
                Partition(record.topic, record.partition),
                Record(record.offset, record.timestamp, record.key, (), record.value),
            )
            for record in records
            if not isinstance(record.value, UnreadableBatch)
        ]
        if failed.done():
            return
        try:
            await on_records(readable, unreadable)
            # Kafka takes no offsets of a member while it joins anew. Its records come again then,
            # here or to another member.
            with suppress(CommitFailedError):
                await message.ack()
        except Exception as error:  # noqa: BLE001  # FastStream would go on, and commit these later
            _fail(failed, error)

    await broker.connect()
    config = broker.config.broker_config
    options = config.builder.keywords  # type: ignore[attr-defined]  # FastStream makes a `partial`
    config.builder = partial(_GroupConsumer, failed, note_progress, **options)
    try:
        await broker.start()
        yield failed
    finally:
        await broker.stop()


def _fail(failed: asyncio.Future[NoReturn], error: Exception) -> None:
    if not failed.done():
        failed.set_exception(translated(error))


def _retrieve(failed: asyncio.Future[NoReturn]) -> None:
    """Marks the error as seen: a block that is left at the same time does not await it."""
    if not failed.cancelled():
        failed.exception()


class _GroupConsumer(Consumer):
    """The consumer of FastStream's subscription, with a place-holder record for each batch that
    cannot be read. Its value is the `UnreadableBatch`.
    """

    def __init__(
        self, failed: asyncio.Future[NoReturn], note_progress: NoteProgress, *topics: str, **options: Any
    ) -> None:
        self._failed = failed
        self._note_progress = note_progress
        super().__init__(*topics, **options)

    async def getmany(self, *partitions: Partition, **options: Any) -> dict[Partition, list[ConsumerRecord]]:
        """The next records, which may take any time. FastStream sleeps after an empty batch, and
        new records would wait for that.
        """
        while not (consumed := await self._consumed(*partitions, **options)):
            pass
        return consumed

    async def _consumed(
        self, *partitions: Partition, **options: Any
    ) -> dict[Partition, list[ConsumerRecord]]:
        try:
            fetched = await super().getmany(*partitions, **options)
        except KafkaError as error:
            # FastStream would try again every 5 s, and say nothing.
            _fail(self._failed, error)
            raise
        consumed = {at: [_consumer_record(at, *record) for record in fetched[at]] for at in fetched}
        for at, batches in self.take_unreadable().items():
            place_holders = [
                _consumer_record(at, batch.next_offset - 1, 0, None, (), batch) for batch in batches
            ]
            consumed.setdefault(at, []).extend(place_holders)
        self._note(consumed)
        return consumed

    def _note(self, consumed: Mapping[Partition, Sequence[ConsumerRecord]]) -> None:
        """Notes the positions of all own partitions. What was consumed just now is not taken yet,
        and is taken before the next call.
        """
        if (subscription := self._subscription.subscription) is None or subscription.assignment is None:
            return
        for at in subscription.assignment.tps:
            state = subscription.assignment.state_value(at)
            if state.has_valid_position:
                records = consumed.get(at)
                position = records[0].offset if records else state.position
                self._note_progress(Partition(*at), position, state.highwater or position)


def _consumer_record(
    at: Partition, offset: int, log_time: int, key: bytes | None, _: Headers, value: Any
) -> ConsumerRecord:
    """A record for FastStream, without headers: it fails for a header without a value."""
    return ConsumerRecord(at.topic, at.partition, offset, log_time, 1, key, value, None, -1, -1, ())


def _broker(settings: LogSettings) -> KafkaBroker:
    """FastStream's broker with the options of every other client. It needs the security options in
    a form of its own.
    """
    quieten_aiokafka()
    options = settings.client_options()
    security = security_of(options)
    plain = {
        name: value
        for name, value in options.items()
        if not name.startswith(("security_", "sasl_", "ssl_")) or name == "sasl_oauth_token_provider"
    }
    # FastStream takes a text for one address, whatever commas it has.
    plain["bootstrap_servers"] = [address.strip() for address in settings.kafka.split(",")]
    return KafkaBroker(
        logger=None, consumer_only=True, security=security, graceful_timeout=_LEAVE_SECONDS, **plain
    )


def security_of(options: Mapping[str, Any]) -> BaseSecurity | None:
    """FastStream's form of aiokafka's security options. It takes a token provider beside them.
    Raises `ConfigurationError` for an unknown mechanism.
    """
    protocol = options.get("security_protocol", "PLAINTEXT")
    channel = {"ssl_context": options.get("ssl_context"), "use_ssl": protocol.endswith("SSL")}
    if not protocol.startswith("SASL"):
        return BaseSecurity(**channel) if channel["use_ssl"] else None
    mechanism = options.get("sasl_mechanism", "PLAIN")
    if mechanism == "OAUTHBEARER":
        return SASLOAuthBearer(**channel)
    if mechanism not in _MECHANISMS:
        raise ConfigurationError(
            f"SASL mechanism {mechanism} is not supported; use one of {', '.join(_MECHANISMS)}, OAUTHBEARER"
        )
    return _MECHANISMS[mechanism](
        username=options["sasl_plain_username"], password=options["sasl_plain_password"], **channel
    )


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is untyped
    def __init__(self, topics: Topics, on_assigned: OnAssigned, failed: asyncio.Future[NoReturn]) -> None:
        self._topics = topics
        self._on_assigned = on_assigned
        self._failed = failed

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Does nothing: a worker keeps tailing during a rebalance, because its writes are right for
        any owner.
        """

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        partitions = {at.partition for at in assigned}
        own = {number for number in partitions if number < self._topics.partitions}
        if own != partitions:
            _fail(self._failed, more_partitions(self._topics, max(partitions) + 1))
        await self._on_assigned(own)


async def _skip_decoding(message: Any) -> None:
    """Decodes nothing: the handler reads the raw records, because a bell has no value."""
