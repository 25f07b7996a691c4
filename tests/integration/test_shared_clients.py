"""Kafka clients that several prefixes share: nobody waits for another's fault, and nobody ends the
others.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiokafka.errors import UnknownTopicOrPartitionError

from runfold.client.runfold import Runfold
from runfold.log import publisher as publishing
from runfold.log.clients import LogClients
from runfold.log.producer import Producer
from runfold.log.publisher import Outgoing, Publisher
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold_schemas.errors import UnavailableError
from runfold_schemas.events import UserMessage


@pytest.fixture
async def clients(kafka: str, prefix: str) -> AsyncIterator[LogClients]:
    async with LogClients.connect(LogSettings(kafka=kafka, prefix=prefix)) as connected:
        yield connected


def settings_of(kafka: str, prefix: str, number: int) -> LogSettings:
    return LogSettings(kafka=kafka, prefix=f"{prefix[:28]}-{number}")


async def test_connections_of_several_prefixes_stand_on_the_same_clients(
    kafka: str, prefix: str, clients: LogClients
):
    connections = [Runfold.of(settings_of(kafka, prefix, number), clients=clients) for number in range(3)]
    for runfold in connections:
        await runfold.__aenter__()
    opened = [await runfold.open_run(agent_id="a", run_id="one") for runfold in connections]
    for number, run in enumerate(opened):
        await run.publish(UserMessage(message=f"to {number}"))

    await connections[0].__aexit__()

    for runfold in connections[1:]:
        await (await runfold.get_run("one")).publish(UserMessage(message="further"))
        assert [run.run_id async for run in runfold.runs()] == ["one"]
        await runfold.__aexit__()
    assert clients.leaders.client is not None
    assert not [name for _, name in clients.leaders.client._conns if "tail" in str(name)]
    with pytest.raises(RuntimeError, match="not connected"):
        await connections[0].get_run("one")


async def test_a_topic_that_fails_lets_the_others_publish_in_order(
    kafka: str, prefix: str, clients: LogClients, monkeypatch: pytest.MonkeyPatch
):
    admin, settings = clients.admin(settings_of(kafka, prefix, 1)), settings_of(kafka, prefix, 1)
    good, bad = f"{settings.prefix}.run.good.1", f"{settings.prefix}.run.bad.1"
    await admin.create_run_topic(good)
    await admin.create_run_topic(bad)
    publisher = clients.publisher
    await publisher.wait(await publisher.send(good, numbered(0)))
    started, go_on = asyncio.Event(), asyncio.Event()
    start = publishing._start_producer

    async def start_late(own: LogSettings) -> Producer:
        started.set()
        await go_on.wait()
        return await start(own)

    monkeypatch.setattr(publishing, "_start_producer", start_late)
    failed = await publisher.send(bad, numbered(0))
    failed.set_exception(UnknownTopicOrPartitionError())
    with pytest.raises(UnavailableError):
        await publisher.wait(failed)
    again = asyncio.create_task(publisher.send(bad, numbered(1)))
    await started.wait()

    acks = [await publisher.send(good, numbered(number)) for number in range(1, 200)]
    go_on.set()
    await publisher.wait(await again)
    acks += [await publisher.send(good, numbered(number)) for number in range(200, 400)]
    for ack in acks:
        await publisher.wait(ack)

    values = [record.value async for records in read(settings, good) for record in records]
    assert values == [numbered(number).value for number in range(400)]


def numbered(number: int) -> Outgoing:
    return Outgoing(key=None, value=b"%d" % number)


async def test_records_on_their_way_arrive_before_those_of_the_next_producer(
    kafka: str, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    settings = settings_of(kafka, prefix, 1)
    async with LogClients.connect(settings) as clients:
        await clients.admin(settings).create_run_topic(f"{settings.prefix}.run.good.1")
        await clients.admin(settings).create_run_topic(f"{settings.prefix}.run.bad.1")
        good, bad = f"{settings.prefix}.run.good.1", f"{settings.prefix}.run.bad.1"
        publisher = clients.publisher
        await publisher.wait(await publisher.send(good, numbered(0)))
        held = await hold_back(publisher, good)
        failed = await publisher.send(bad, numbered(0))
        failed.set_exception(UnknownTopicOrPartitionError())
        await asyncio.sleep(0)
        first = await publisher.send(good, numbered(1))
        await publisher.wait(await publisher.send(bad, numbered(1)))

        second = asyncio.create_task(publisher.send(good, numbered(2)))
        await asyncio.sleep(0.2)
        assert not second.done()
        held.set()
        await publisher.wait(first)
        await publisher.wait(await second)

        values = [record.value async for records in read(settings, good) for record in records]
    assert values == [b"0", b"1", b"2"]


async def hold_back(publisher: Publisher, topic: str) -> asyncio.Event:
    """Has the current producer send nothing of this topic until the event is set."""
    release = asyncio.Event()
    sender = publisher._producer._sender
    send = sender._send_produce_req

    async def send_late(node_id: int, batches: dict) -> None:
        if any(at.topic == topic for at in batches):
            await release.wait()
        await send(node_id, batches)

    sender._send_produce_req = send_late
    return release
