"""Many runs that are opened at once share requests. A topic that Kafka refuses, or that it cannot
write to, concerns its own run alone.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from statistics import median
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.metadata import MetadataRequest
from tests.processes import soonest, until

from runfold.client.run import Run
from runfold.client.runfold import Runfold
from runfold.log.publisher import Outgoing
from runfold_schemas.errors import UnavailableError
from runfold_schemas.events import UserMessage
from runfold_schemas.topics import RECORD_BYTES_MAX

HELLO = UserMessage(message="hello")
RECORD = Outgoing(key=None, value=b"{}")

OF_THE_TOPIC = 1
"""The source of a setting, in Kafka's protocol, that is the topic's own and not the broker's."""


@pytest.fixture
async def runfold(kafka: str, prefix: str) -> AsyncIterator[Runfold]:
    async with Runfold(kafka, prefix=prefix, create_topics=True) as connected:
        yield connected


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many topics each request for metadata names, from now on."""
    sizes: list[int] = []
    send = AIOKafkaClient.send

    async def noted(self: AIOKafkaClient, node: int, request: Any, **options: Any) -> Any:
        if isinstance(request, MetadataRequest):
            sizes.append(len(request._topics or ()))
        return await send(self, node, request, **options)

    monkeypatch.setattr(AIOKafkaClient, "send", noted)
    return sizes


async def whole_life(runfold: Runfold) -> Run:
    run = await runfold.open_run(agent_id="a")
    await run.publish(HELLO)
    await run.complete()
    return run


async def test_two_hundred_openings_at_once_share_requests(runfold: Runfold, asked: list[int]):
    await whole_life(runfold)
    admin = runfold.connection.admin
    before = admin.create_calls

    runs = await asyncio.gather(*(whole_life(runfold) for _ in range(200)))

    # Groups of at most a hundred topics, one request each.
    assert admin.create_calls - before <= 8
    assert len({run.run_id for run in runs}) == 200
    for run in runs[::40]:
        assert [event.type async for event in run.events()] == ["run_opened", "user_message", "run_completed"]


async def test_a_later_opening_asks_for_its_own_topic_alone(runfold: Runfold, asked: list[int]):
    open_runs = await asyncio.gather(*(runfold.open_run(agent_id="a") for _ in range(50)))
    asked.clear()

    run = await runfold.open_run(agent_id="a")

    assert set(asked) == {1}
    await asyncio.gather(*(each.publish(HELLO) for each in [*open_runs, run]))


async def test_a_refused_topic_fails_its_own_opening_alone(runfold: Runfold):
    refused = runfold.connection.admin.create_run_topic("no topic has this name!")
    openings = [runfold.open_run(agent_id="a") for _ in range(20)]

    failed, *runs = await asyncio.gather(refused, *openings, return_exceptions=True)

    assert isinstance(failed, UnavailableError)
    assert "no topic has this name!" in str(failed)
    assert all(isinstance(run, Run) for run in runs)


async def test_a_new_topic_without_a_log_holds_up_no_other_topic(runfold: Runfold, kafka: str):
    run = await runfold.open_run(agent_id="a")
    topic = runfold.connection.topics.run(run.run_id, run.life.log_id)
    publisher, admin = runfold.connection.publisher, runfold.connection.admin
    missing = f"{topic}.missing"
    await admin.create_run_topic(missing)
    await publisher.prime(missing)
    await admin.delete_topics([missing])
    # Kafka deletes a topic some time after it says so.
    await until(partial(has_no_topic, kafka, missing), what="the topic's deletion")
    alone = await seconds_of_publishes(runfold, topic)
    waiting = await publisher.send(missing, RECORD)

    async def beside() -> float:
        return median(await seconds_of_publishes(runfold, topic))

    # aiokafka's own producer sends nothing for 0.1 s after each refusal.
    longest = median(alone) + 0.05
    assert await soonest(beside, seconds=longest) < longest
    assert not waiting.done()
    await admin.create_run_topic(missing)
    assert (await publisher.wait(waiting)).offset == 0


async def test_a_record_for_a_known_topic_is_handed_over_without_a_timer(
    runfold: Runfold, monkeypatch: pytest.MonkeyPatch
):
    run = await runfold.open_run(agent_id="a")
    topic = runfold.connection.topics.run(run.run_id, run.life.log_id)
    publisher, loop, timers = runfold.connection.publisher, asyncio.get_running_loop(), []
    call_at = loop.call_at

    def noted(*arguments: Any, **options: Any) -> Any:
        timers.append(arguments)
        return call_at(*arguments, **options)

    with monkeypatch.context() as noting:
        noting.setattr(loop, "call_at", noted)
        ack = await publisher.send(topic, RECORD)

    assert timers == []
    assert (await publisher.wait(ack)).offset == 1


async def test_a_record_waits_while_the_buffer_is_full(runfold: Runfold):
    run = await runfold.open_run(agent_id="a")
    topic = runfold.connection.topics.run(run.run_id, run.life.log_id)
    publisher, large = runfold.connection.publisher, Outgoing(key=None, value=bytes(RECORD_BYTES_MAX // 3))
    acks = [publisher.put(topic, large) for _ in range(4)]
    buffered = [ack for ack in acks if ack is not None]

    last = await publisher.send(topic, large)

    assert len(buffered) == 2
    offsets = [(await publisher.wait(ack)).offset for ack in [*buffered, last]]
    assert offsets == [1, 2, 3]


async def has_no_topic(kafka: str, topic: str) -> bool:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        return topic not in await admin.list_topics()
    finally:
        await admin.close()


async def seconds_of_publishes(runfold: Runfold, topic: str) -> list[float]:
    seconds = []
    for _ in range(40):
        began = time.monotonic()
        await runfold.connection.publisher.wait(await runfold.connection.publisher.send(topic, RECORD))
        seconds.append(time.monotonic() - began)
    return seconds


async def test_a_runs_topic_is_kept_for_ever_whatever_the_brokers_settings_are(runfold: Runfold, kafka: str):
    run = await runfold.open_run(agent_id="a")
    topic = runfold.connection.topics.run(run.run_id, run.life.log_id)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    finally:
        await admin.close()

    settings = {
        name: value for name, value, _, source, *_ in answer.resources[0][4] if source == OF_THE_TOPIC
    }
    assert settings == {
        "cleanup.policy": "delete",
        "compression.type": "uncompressed",
        "max.message.bytes": str(RECORD_BYTES_MAX),
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": "1",
        "retention.bytes": "-1",
        "retention.ms": "-1",
    }


async def test_a_run_is_not_opened_behind_a_record_of_another_program(
    runfold: Runfold, monkeypatch: pytest.MonkeyPatch
):
    admin, publisher = runfold.connection.admin, runfold.connection.publisher
    create, created = admin.create_run_topic, list[str]()

    async def create_and_forge(name: str) -> None:
        await create(name)
        created.append(name)
        await publisher.wait(await publisher.send(name, RECORD))

    monkeypatch.setattr(admin, "create_run_topic", create_and_forge)
    with pytest.raises(UnavailableError, match="another program wrote"):
        await runfold.open_run(agent_id="a", run_id="r")

    assert await runfold.connection.catalog.lookup("r") is None

    async def is_deleted() -> bool:
        return created[0] not in await admin.list_run_topics()

    await until(is_deleted, what="the deletion of the topic")
    monkeypatch.undo()
    assert (await runfold.open_run(agent_id="a", run_id="r")).run_id == "r"
