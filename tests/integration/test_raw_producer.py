"""A producer that knows the published contract and nothing of our library is as good as our client.

What it sends is made from `schemas/asyncapi.json` alone; only the test reads it back with
`Runfold`.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import MessageSizeTooLargeError
from tests.segmenting import seal

from runfold import RunEndedError, Runfold
from runfold_schemas.generate import FOLDER

CONTRACT = json.loads((FOLDER / "asyncapi.json").read_text(encoding="utf-8"))


class ForeignProducer:
    """Somebody else's code."""

    def __init__(
        self, kafka: str, prefix: str, admin: AIOKafkaAdminClient, producer: AIOKafkaProducer
    ) -> None:
        self.kafka = kafka
        self.prefix = prefix
        self.admin = admin
        self.producer = producer

    async def open(self, run_id: str, agent_id: str) -> str:
        log_id = uuid4().hex
        topic = self.address("run", run=escaped(run_id), log_id=log_id)
        await self.create(topic)
        opening = {"agent_id": agent_id, "log_id": log_id}
        assert await self.publish(topic, event(run_id, "run_opened", opening)) == 0
        life = {"run_id": run_id, "log_id": log_id, "agent_id": agent_id}
        await self.tell_catalog(run_id, b"life:" + run_id.encode(), json.dumps(life).encode())
        return topic

    async def create(self, topic: str) -> None:
        binding = CONTRACT["channels"]["run"]["bindings"]["kafka"]
        configuration = {
            name: ",".join(value) if isinstance(value, list) else str(value)
            for name, value in binding["topicConfiguration"].items()
        }
        answer = await self.admin.create_topics(
            [NewTopic(topic, binding["partitions"], 1, topic_configs=configuration)]
        )
        assert [code for _, code, *_ in answer.topic_errors] == [0]

    async def publish(self, topic: str, said: dict[str, Any]) -> int:
        headers = {
            "ce_specversion": "1.0",
            "ce_id": said["event_id"],
            "ce_type": said["type"],
            "ce_source": "somebody/else",
            "ce_time": said["timestamp"],
            "content-type": "application/json",
        }
        appended = await self.producer.send_and_wait(
            topic,
            json.dumps(said).encode(),
            key=said["run_id"].encode(),
            headers=[(name, value.encode()) for name, value in headers.items()],
        )
        return int(appended.offset)

    async def next_topic(self, topic: str, run_id: str) -> tuple[str, int]:
        """The topic after a sealed one and its base, which the catalog names."""
        at = TopicPartition(self.address("catalog"), await self.partition_of(run_id))
        consumer = AIOKafkaConsumer(bootstrap_servers=self.kafka)
        await consumer.start()
        try:
            consumer.assign([at])
            await consumer.seek_to_beginning(at)
            [end] = (await consumer.end_offsets([at])).values()
            segments: dict[str, Any] = {}
            while await consumer.position(at) < end:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    for record in records:
                        if record.key == b"log:" + run_id.encode():
                            segments = json.loads(record.value)
        finally:
            await consumer.stop()
        next_topic = following(topic, run_id, segments["base"])
        await self.create(next_topic)
        await self.ring(run_id)
        return next_topic, segments["base"]

    async def partition_of(self, run_id: str) -> int:
        partitions = len(await self.producer.partitions_for(self.address("catalog")))
        return (murmur2(run_id.encode()) & 0x7FFFFFFF) % partitions

    async def ring(self, run_id: str) -> None:
        await self.tell_catalog(run_id, b"bell:" + run_id.encode(), None)

    async def tell_catalog(self, run_id: str, key: bytes, value: bytes | None) -> None:
        partition = await self.partition_of(run_id)
        await self.producer.send_and_wait(self.address("catalog"), value, key=key, partition=partition)

    def address(self, channel: str, **parameters: str) -> str:
        address: str = CONTRACT["channels"][channel]["address"]
        return address.format(prefix=self.prefix, **parameters)


@pytest.fixture
async def runfold(kafka: str, prefix: str) -> AsyncIterator[Runfold]:
    async with Runfold(kafka, prefix=prefix, create_topics=True) as runfold:
        yield runfold


@pytest.fixture
async def foreign(kafka: str, prefix: str, runfold: Runfold) -> AsyncIterator[ForeignProducer]:
    """Starts after `runfold`, whose deployment made the catalog."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    producer = AIOKafkaProducer(bootstrap_servers=kafka, enable_idempotence=True, acks="all")
    await asyncio.gather(admin.start(), producer.start())
    try:
        yield ForeignProducer(kafka, prefix, admin, producer)
    finally:
        await asyncio.gather(admin.close(), producer.stop())


@pytest.mark.parametrize("run_id", [vector["run_id"] for vector in CONTRACT["x-runfold-vectors"]])
def test_the_vectors_tell_whether_ones_own_code_is_right(run_id: str):
    [vector] = [vector for vector in CONTRACT["x-runfold-vectors"] if vector["run_id"] == run_id]

    assert vector["topic"] == f"runfold.run.{escaped(run_id)}.{vector['log_id']}"
    assert vector["catalog_partition"] == (murmur2(run_id.encode()) & 0x7FFFFFFF) % 12
    assert vector["next_topic"] == following(vector["topic"], run_id, vector["base"])


async def test_a_run_published_by_the_contract_alone_is_read_back(foreign: ForeignProducer, runfold: Runfold):
    run_id = "order/17 ü"
    said = [
        event(run_id, "user_message", {"message": "Where is my parcel?"}, turn_id="t-1"),
        event(run_id, "tool_call", {"tool_call_id": "c", "tool_name": "track", "payload": {"n": 2**70}}),
        event(run_id, "tool_result", {"tool_call_id": "c", "result": [], "duration_ms": 1.5}),
        event(run_id, "assistant_message", {"message": "On its way."}),
    ]

    topic = await foreign.open(run_id, "shop")
    for each in said:
        await foreign.publish(topic, each)
    await foreign.publish(topic, said[0])
    await foreign.ring(run_id)
    run = await runfold.get_run(run_id)
    history = [admitted async for admitted in run.history()]

    assert run.life.agent_id == "shop"
    assert [admitted.outcome for admitted in history] == ["accepted"] * 5 + ["duplicate"]
    assert [json.loads(admitted.record.value or b"") for admitted in history[1:5]] == said
    assert [message.role for message in await run.ledger()] == ["user", "assistant", "user", "assistant"]


async def test_our_client_and_a_foreign_producer_share_a_run(foreign: ForeignProducer, runfold: Runfold):
    topic = await foreign.open("shared", "shop")
    run = await runfold.open_run(agent_id="shop", run_id="shared")
    await foreign.publish(topic, event("shared", "planner_note", {"note": "theirs"}))
    position = await run.complete()

    types = [admitted.event.type async for admitted in run.history() if admitted.event]

    assert not run.is_new
    assert position.offset == 2
    assert types == ["run_opened", "planner_note", "run_completed"]
    with pytest.raises(RunEndedError):
        await run.pause()


async def test_what_breaks_the_contract_is_undecodable_and_the_run_goes_on(
    foreign: ForeignProducer, runfold: Runfold
):
    topic = await foreign.open("broken", "shop")
    await foreign.producer.send_and_wait(topic, b'{"type": "user_mess')
    await foreign.publish(topic, event("broken", "telepathy", {}))
    await foreign.publish(topic, event("another", "planner_note", {"note": "misplaced"}))
    await foreign.publish(topic, event("broken", "planner_note", {"note": "well"}))

    history = [admitted async for admitted in (await runfold.get_run("broken")).history()]

    assert [one.outcome for one in history] == ["accepted", *["undecodable"] * 3, "accepted"]
    assert all(one.reason for one in history[1:4])


async def test_a_foreign_producer_goes_on_where_its_topic_was_sealed(
    foreign: ForeignProducer, runfold: Runfold
):
    topic = await foreign.open("sealed", "shop")
    await foreign.publish(topic, event("sealed", "planner_note", {"note": "before"}))
    run = await runfold.get_run("sealed")
    entry = await seal(runfold, run.life)

    refused = event("sealed", "planner_note", {"note": "after"}, expected_offset=1)
    with pytest.raises(MessageSizeTooLargeError):
        await foreign.publish(topic, refused)
    next_topic, base = await foreign.next_topic(topic, "sealed")
    offset = await foreign.publish(next_topic, refused)
    position = await run.complete()

    assert base + offset == entry.base
    assert position.offset == entry.base + 1
    history = [admitted async for admitted in run.history()]
    assert [admitted.outcome for admitted in history] == ["accepted"] * 4
    assert [admitted.record.offset for admitted in history] == [0, 1, entry.base, entry.base + 1]


def following(topic: str, run_id: str, base: int) -> str:
    name = f"{topic}.{base}"
    if len(name) <= 249:
        return name
    hashed = "__" + hashlib.sha256(run_id.encode()).hexdigest()[:32]
    return name.replace(escaped(run_id), hashed)


def event(run_id: str, kind: str, data: dict[str, Any], **envelope: Any) -> dict[str, Any]:
    timestamp = datetime.now(UTC).isoformat()
    return {
        "event_id": str(uuid4()),
        "run_id": run_id,
        "timestamp": timestamp,
        "type": kind,
        "data": data,
        **envelope,
    }


def escaped(run_id: str) -> str:
    return re.sub(rb"[^A-Za-z0-9-]", lambda match: b"_%02x" % match[0][0], run_id.encode()).decode()


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    whole = len(data) // 4 * 4
    digest = 0x9747B28C ^ len(data)
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        digest = digest * multiplier & mask ^ word
    if data[whole:]:
        digest = (digest ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    digest = (digest ^ digest >> 13) * multiplier & mask
    return digest ^ digest >> 15
