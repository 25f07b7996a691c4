"""Seals topics of runs: afterwards a topic takes no events, and its end stays.

    open transactions? --> max.message.bytes=78 --> probes until one is refused --> mark --> end

A broker answers the change before all brokers follow it, so a refused probe is the seal. The probe
is a batch with a wrong checksum. Kafka compares the size of a batch before its checksum, so it
refuses the probe by its size if the topic is sealed, and by its checksum if it is not. No probe is
ever stored. The mark is the last record of a sealed topic: see `runfold.log.seal_marks`.

All offsets here are the run's.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from runfold.log.driver import TopicRefusedError, kafka_errors
from runfold.log.leaders import LATEST, Leaders, OffsetSearch
from runfold.log.moving import Outgoing
from runfold.log.seal_marks import SEAL_MARK, SEAL_PROBE, SEALED_BYTES
from runfold.log.uncompressed import new_alter_request
from runfold_schemas.topics import Partition, base_of

SEALED_CONFIG: Final = {"max.message.bytes": str(SEALED_BYTES)}

_TOPICS_MAX: Final = 250
"""The number of topics in one request."""

_PROBE_SECONDS: Final = 0.02
_PROBE_MAX_SECONDS: Final = 0.5
"""The pauses between the probes of a topic."""

_ACKNOWLEDGED_SECONDS: Final = 10.0

_UNANSWERED_SECONDS: Final = 5.0
"""How long a broker that does not answer for a topic is asked. Other topics wait meanwhile."""

_AGAIN_SECONDS: Final = 0.05

_SETTLE_SECONDS: Final = 2.0
"""The pause before the ends are read. A broker may have compared the size of a batch just before
the change, and append the batch just after it. A broker may stand still for seconds.
"""

_TOO_LARGE: Final = frozenset({10, 18})
_NOT_SEALED: Final = frozenset({2, 87})
_REFUSED: Final = 29
"""Errors of Kafka's protocol: of the size of a batch, of its checksum, and of a topic that this
login may not use.
"""

_CONSUMER, _LOG_END = -1, -2
"""The `replica_id` of a consumer, and the one that gets the end of the leader's log, which may be
ahead of the other replicas.
"""

_COMMITTED: Final = 1
_ALL_REPLICAS, _LEADER_ONLY = -1, 1
_CRC_AT: Final = 17


@dataclass(slots=True)
class SealedTopics:
    """The result of sealing some topics. Each of them is in one of the five."""

    ends: dict[str, int] = field(default_factory=dict)
    """The ends of the sealed topics."""
    unsettled: set[str] = field(default_factory=set)
    """The topics with an open transaction, or with records that not all replicas have yet. They may
    be sealed already. A later attempt goes on.
    """
    missing: set[str] = field(default_factory=set)
    unanswered: set[str] = field(default_factory=set)
    """The topics without a leader that answers. They may be sealed already."""
    refused: dict[str, str] = field(default_factory=dict)
    """The topics that Kafka does not let this login seal, and why."""

    @property
    def left(self) -> set[str]:
        """The topics that are left out for now."""
        return self.missing | self.unanswered | self.refused.keys()


async def seal(
    admin: AIOKafkaClient,
    leaders: Leaders,
    topics: Collection[str],
    *,
    timeout_seconds: float,
    marks: bool = True,
) -> SealedTopics:
    """Seals the topics of one partition each. With `marks`, a topic that is sealed again gets
    another mark. No topic keeps the others from being sealed. Raises `UnavailableError`.
    """
    result = SealedTopics()
    with kafka_errors():
        async with asyncio.timeout(timeout_seconds):
            ready = await _settled(leaders, topics, result)
            await _alter(admin, ready, result)
            await _probe(leaders, ready.keys() - result.left, result, seconds=timeout_seconds / 2)
            await asyncio.sleep(_SETTLE_SECONDS)
            settled = await _settled(leaders, ready.keys() - result.left, result)
            if not marks:
                result.ends = settled
                return result
            marked = await _mark(leaders, settled, result)
            result.unsettled |= settled.keys() - marked.keys() - result.left
            result.ends = await _settled(leaders, marked, result)
    return result


async def settled_ends(leaders: Leaders, topics: Collection[str], *, timeout_seconds: float) -> SealedTopics:
    """The ends of these topics, as they are now."""
    result = SealedTopics()
    with kafka_errors():
        async with asyncio.timeout(timeout_seconds):
            result.ends = await _settled(leaders, topics, result)
    return result


async def sealed_among(admin: AIOKafkaAdminClient, topics: Collection[str]) -> set[str]:
    """Those of the topics whose `max.message.bytes` is that of a sealed one. Raises
    `UnavailableError`.
    """
    sealed: set[str] = set()
    ordered = sorted(topics)
    with kafka_errors():
        for first in range(0, len(ordered), _TOPICS_MAX):
            portion = ordered[first : first + _TOPICS_MAX]
            resources = [ConfigResource(ConfigResourceType.TOPIC, name, SEALED_CONFIG) for name in portion]
            (answer,) = await admin.describe_configs(resources)
            for code, _, _, name, entries in answer.resources:
                if not code and SEALED_CONFIG.items() <= {each[0]: each[1] for each in entries}.items():
                    sealed.add(name)
    return sealed


async def _settled(leaders: Leaders, topics: Iterable[str], result: SealedTopics) -> dict[str, int]:
    """The ends of the topics without an open transaction. Notes the others in `result`."""
    found = await _existing(leaders, {Partition(topic, 0) for topic in topics}, result)
    ends = await _offsets(leaders, found, _LOG_END, 0)
    # Records may come between the two requests, so the stable end is the later one.
    stable = await _offsets(leaders, found, _CONSUMER, _COMMITTED)
    settled: dict[str, int] = {}
    for at in found:
        if at in ends and stable.get(at, -1) >= ends[at]:
            settled[at.topic] = ends[at]
        elif at.topic not in result.left:
            result.unsettled.add(at.topic)
    return settled


async def _existing(leaders: Leaders, wanted: set[Partition], result: SealedTopics) -> set[Partition]:
    """Those of the partitions whose leaders answer. Notes the others in `result`."""
    found, missing_before, deadline = (
        set[Partition](),
        set[Partition](),
        time.monotonic() + _UNANSWERED_SECONDS,
    )
    while wanted:
        search, is_answered = OffsetSearch(), False
        with contextlib.suppress(KafkaError):
            search, is_answered = await leaders.look(wanted, LATEST), True
        found |= search.offsets.keys()
        # Not every broker knows a new topic at once, so two requests must miss it.
        missing = search.missing & missing_before
        missing_before |= search.missing
        result.missing |= {at.topic for at in missing}
        result.refused |= {at.topic: str(TopicRefusedError(at.topic)) for at in search.refused}
        wanted = wanted - found - missing - search.refused
        if wanted and is_answered and time.monotonic() > deadline:
            result.unanswered |= {at.topic for at in wanted}
            break
        if wanted:
            await asyncio.sleep(_AGAIN_SECONDS)
    return found


async def _alter(admin: AIOKafkaClient, topics: Collection[str], result: SealedTopics) -> None:
    ordered = sorted(topics)
    for first in range(0, len(ordered), _TOPICS_MAX):
        request = new_alter_request(dict.fromkeys(ordered[first : first + _TOPICS_MAX], SEALED_CONFIG))
        answer: Any = await admin.send(admin.get_random_node(), request)
        for code, message, _, name in answer.resources:
            error = for_code(code)
            if error is UnknownTopicOrPartitionError:
                result.missing.add(name)
            elif code:
                result.refused[name] = f"the topic {name} cannot be sealed: {message or error.__name__}"


async def _probe(leaders: Leaders, topics: Iterable[str], result: SealedTopics, *, seconds: float) -> None:
    """Returns when the brokers refuse every topic's probe by its size. Notes the topics without an
    answer, and those that stay unsealed, in `result`.
    """
    unsealed = {Partition(topic, 0) for topic in topics}
    deadline, pause = time.monotonic() + seconds, _PROBE_SECONDS
    while unsealed:
        by_leader = await _by_leader(leaders, unsealed, result)
        unsealed -= {at for at in unsealed if at.topic in result.left}
        for leader, led in by_leader.items():
            for first in range(0, len(led), _TOPICS_MAX):
                unsealed -= await _refused(leaders, leader, led[first : first + _TOPICS_MAX], result)
        if unsealed:
            if time.monotonic() + pause > deadline:
                result.unanswered |= {at.topic for at in unsealed}
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PROBE_MAX_SECONDS)


async def _refused(
    leaders: Leaders, leader: int, led: Collection[Partition], result: SealedTopics
) -> set[Partition]:
    """Sends each partition a probe. Returns those of which it was refused by its size."""
    answers = await _send(leaders, leader, led, result, batch=_PROBE, acks=_LEADER_ONLY)
    for at, code in answers.items():
        if code not in _TOO_LARGE | _NOT_SEALED:
            leaders.forget(at)
    return {at for at, code in answers.items() if code in _TOO_LARGE}


async def _mark(leaders: Leaders, topics: Iterable[str], result: SealedTopics) -> dict[str, bool]:
    """Appends the mark to sealed topics. Returns those that have it."""
    marked: dict[str, bool] = {}
    for leader, led in (await _by_leader(leaders, {Partition(topic, 0) for topic in topics})).items():
        for first in range(0, len(led), _TOPICS_MAX):
            portion = led[first : first + _TOPICS_MAX]
            answers = await _send(leaders, leader, portion, result, batch=_MARK, acks=_ALL_REPLICAS)
            marked |= {at.topic: True for at, code in answers.items() if not code}
    return marked


async def _send(
    leaders: Leaders,
    leader: int,
    led: Collection[Partition],
    result: SealedTopics,
    *,
    batch: bytes,
    acks: int,
) -> dict[Partition, int]:
    """Sends each partition a batch. Returns the codes of errors of those that the broker names, 0
    for none. Notes refused topics in `result`.
    """
    timeout_ms = int(1000 * _ACKNOWLEDGED_SECONDS)
    request = ProduceRequest(None, acks, timeout_ms, [(at.topic, [(at.partition, batch)]) for at in led])
    codes: dict[Partition, int] = {}
    try:
        answer: Any = await leaders.client.send(leader, request)
    except KafkaError:
        _forget(leaders, led)
        return codes
    for topic, entries in answer.topics:
        for number, code, *_ in entries:
            if code == _REFUSED:
                result.refused[topic] = str(TopicRefusedError(topic))
            codes[Partition(topic, number)] = code
    return codes


async def _by_leader(
    leaders: Leaders, partitions: Collection[Partition], result: SealedTopics | None = None
) -> dict[int, list[Partition]]:
    """The partitions by the brokers that lead them, as far as leaders are known."""
    if unknown := [at for at in partitions if leaders.leader(at) is None]:
        search = await leaders.find(unknown)
        if result is not None:
            result.refused |= {at.topic: str(TopicRefusedError(at.topic)) for at in search.refused}
            result.missing |= {at.topic for at in search.missing}
    by_leader: dict[int, list[Partition]] = defaultdict(list)
    for at in sorted(partitions):
        if (leader := leaders.leader(at)) is not None:
            by_leader[leader].append(at)
    return by_leader


async def _offsets(
    leaders: Leaders, partitions: Collection[Partition], replica: int, isolation: int
) -> dict[Partition, int]:
    """The ends of partitions, as far as their leaders answer."""
    offsets: dict[Partition, int] = {}
    for leader, led in (await _by_leader(leaders, partitions)).items():
        for first in range(0, len(led), _TOPICS_MAX):
            topics = [(at.topic, [(at.partition, LATEST)]) for at in led[first : first + _TOPICS_MAX]]
            try:
                answer: Any = await leaders.client.send(leader, OffsetRequest(replica, isolation, topics))
            except KafkaError:
                _forget(leaders, led)
                break
            for topic, entries in answer.topics:
                for number, code, _, offset, *_ in entries:
                    if code:
                        leaders.forget(Partition(topic, number))
                    else:
                        offsets[Partition(topic, number)] = offset + base_of(topic)
    return offsets


async def takes_events(leaders: Leaders, topic: str) -> bool:
    """Whether the topic is not sealed: its leader refuses a probe for another reason than its size.
    False also if the leader does not answer. Raises errors of Kafka.
    """
    at = Partition(topic, 0)
    if leaders.leader(at) is None:
        await leaders.find([at])
    if (leader := leaders.leader(at)) is None:
        return False
    timeout_ms = int(1000 * _ACKNOWLEDGED_SECONDS)
    request = ProduceRequest(None, _LEADER_ONLY, timeout_ms, [(topic, [(at.partition, _PROBE)])])
    answer: Any = await leaders.client.send(leader, request)
    return any(entry[1] in _NOT_SEALED for _, entries in answer.topics for entry in entries)


def _forget(leaders: Leaders, partitions: Iterable[Partition]) -> None:
    for at in partitions:
        leaders.forget(at)


def _batch_of(record: Outgoing) -> bytearray:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1024,
    )
    now = int(time.time() * 1000)
    builder.append(0, timestamp=now, key=record.key, value=record.value, headers=list(record.headers))
    return bytearray(builder.build())


def _make_probe() -> bytes:
    batch = _batch_of(SEAL_PROBE)
    batch[_CRC_AT] ^= 0xFF
    return bytes(batch)


_PROBE: Final = _make_probe()
_MARK: Final = bytes(_batch_of(SEAL_MARK))
