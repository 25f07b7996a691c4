"""The number of partitions of the catalog and of the topics that runs share. It is fixed when they
are created, and every program reads it before it hashes a key: a key in another partition than its
own counts for nothing.
"""

import random
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from runfold.log.driver import kafka_errors
from runfold.log.leaders import Leaders
from runfold.log.settings import LogSettings
from runfold_schemas.errors import ConfigurationError, UnavailableError
from runfold_schemas.topics import Topics

_REFUSED_TOPIC: Final = 29


async def counted(settings: LogSettings, *, leaders: Leaders | None = None) -> LogSettings:
    """The settings with the number of partitions, which is read from Kafka if it is unknown: over
    the client of `leaders` if given. Raises `UnavailableError`, also if somebody has to create the
    topics, and `ConfigurationError`, also if the settings say to create none.
    """
    if settings.partitions is not None:
        return settings
    if leaders is None:
        async with Leaders.connect(settings) as own:
            return await counted(settings, leaders=own)
    settled = await read_partitions(settings, leaders.client)
    if settled.partitions is None:
        if not settings.create_topics:
            raise ConfigurationError(unused_prefix(settings.topics))
        raise UnavailableError("Kafka", reason=unused_prefix(settings.topics))
    return settled


async def read_partitions(settings: LogSettings, client: AIOKafkaClient) -> LogSettings:
    """The settings with the number of partitions that the topics have. It stays unknown if they do
    not exist. Raises `UnavailableError`, and `ConfigurationError` if a topic has another number.
    """
    topics = settings.topics
    with kafka_errors():
        return settle(settings, await partition_counts(client, (topics.catalog, *topics.shared)))


async def partition_counts(client: AIOKafkaClient, topics: Collection[str]) -> dict[str, int]:
    """The number of partitions of each of these topics that exists and that this login may see.
    Raises `KafkaError`.
    """
    request = MetadataRequest(sorted(topics), allow_auto_topic_creation=False)
    brokers = [broker.nodeId for broker in client.cluster.brokers()]
    random.shuffle(brokers)
    for broker in brokers:
        with suppress(KafkaError, TimeoutError, OSError):
            answer: Any = await client.send(broker, request)
            return {topic: len(entries) for _, topic, _, entries in answer.topics if entries}
    raise KafkaConnectionError("no broker answered the request for topics")


def settle(settings: LogSettings, counts: Mapping[str, int]) -> LogSettings:
    """The settings with the number of partitions that these existing topics have. Raises
    `ConfigurationError` if two have different numbers, or if another number is expected.
    """
    topics = settings.topics
    shared = {name: counts[name] for name in (topics.catalog, *topics.shared) if name in counts}
    expected = settings.partitions or next(iter(shared.values()), None)
    for name, count in shared.items():
        if count != expected:
            reason = (
                f"{settings.partitions} are configured"
                if settings.partitions
                else f"{settings.topics.catalog} has {expected}"
            )
            raise ConfigurationError(_refusal(name, count, reason))
    return settings.model_copy(update={"partitions": expected})


def unused_prefix(topics: Topics) -> str:
    """Says that nobody has used the prefix yet, and how to go on."""
    return (
        f"there is no topic {topics.catalog}, or this login may not see it: is the prefix {topics.prefix!r}"
        f" right? A projector with RUNFOLD_PREFIX={topics.prefix} creates the topics, and so does `runfold"
        f" tenants add {topics.prefix}`"
    )


def check_folded(topics: Topics, folded: int | None) -> None:
    """Raises `ConfigurationError` if MongoDB was folded from topics with another number."""
    if folded not in (None, topics.partitions):
        reason = f"MongoDB was folded from topics with {folded}"
        raise ConfigurationError(_refusal(topics.catalog, topics.partitions, reason))


def more_partitions(topics: Topics, count: int) -> ConfigurationError:
    """The error of a running service if the catalog has got more partitions."""
    return ConfigurationError(_refusal(topics.catalog, count, f"it had {topics.partitions}"))


def _refusal(name: str, count: int, reason: str) -> str:
    return (
        f"topic {name} has {count} partitions, and {reason}. All shared topics of a prefix keep the number of"
        " partitions with which they were created: with another number, what is stored under a key is not"
        " found. Restore the topics from a backup, or use another prefix"
    )
