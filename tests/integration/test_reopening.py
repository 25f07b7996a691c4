"""A publisher goes on in the next topic of a log that was sealed, and callers notice nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka.errors import RequestTimedOutError
from aiokafka.protocol.produce import ProduceRequest
from tests.processes import until
from tests.segmenting import HandArchive, announce, seal, seal_topic, topic_of
from tests.servers import OwnSettings

from runfold import RejectedError, Run, Runfold, UserMessage
from runfold.log.archived_logs import NoArchiveError
from runfold.log.leaders import Leaders
from runfold.log.reader import read
from runfold.settings import Settings
from runfold_schemas.catalog import Segments
from runfold_schemas.errors import UnavailableError
from runfold_schemas.topics import Partition


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings(publish_timeout_seconds=120)


@pytest.fixture
def archive() -> HandArchive:
    return HandArchive()


@pytest.fixture
async def runfold(settings: Settings, archive: HandArchive) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log().with_archived(archive)) as connected:
        yield connected


@pytest.fixture
async def other(settings: Settings, archive: HandArchive) -> AsyncIterator[Runfold]:
    """Another process."""
    async with Runfold.of(settings.log().with_archived(archive)) as connected:
        yield connected


async def history_of(run: Run) -> list[tuple[int, str, str]]:
    return [
        (one.record.offset, one.outcome, one.event.data.message)
        async for one in run.history()
        if one.event is not None and isinstance(one.event.data, UserMessage)
    ]


def message(word: str) -> UserMessage:
    return UserMessage(message=word)


async def test_records_whose_first_answer_was_lost_are_not_stored_again(
    runfold: Runfold, other: Runfold, archive: HandArchive
):
    run = await runfold.open_run(agent_id="a")
    await run.publish(message("zero"))
    client = runfold.connection.publisher._producer.client
    send = client.send

    async def lose_the_answer(node: Any, request: Any, **options: Any) -> Any:
        answer = await send(node, request, **options)
        if not isinstance(request, ProduceRequest):
            return answer
        client.send = send
        sealed.append(await seal(other, run.life, sealed[-1].base if sealed else 0))
        raise RequestTimedOutError

    sealed: list[Segments] = []
    client.send = lose_the_answer
    one = await run.publish(message("one"))
    two = await run.publish(message("two"))
    assert [one.offset, two.offset] == [2, sealed[0].base]
    await archive.archive(other, run.life, sealed[0])
    client.send = lose_the_answer
    batch = await run.publish_batch([message("three"), message("four")])
    five = await run.publish(message("five"))
    assert [each.offset for each in batch] == [sealed[0].base + 1, sealed[0].base + 2]
    assert five.offset == sealed[1].base

    offsets = [1, one.offset, two.offset, *(each.offset for each in batch), five.offset]
    words = ("zero", "one", "two", "three", "four", "five")
    expected = [(offset, "accepted", word) for offset, word in zip(offsets, words, strict=True)]
    assert await history_of(run) == expected
    assert await history_of(await other.get_run(run.run_id)) == expected


@pytest.mark.parametrize("verb", ["publish", "send", "publish_batch"])
async def test_every_verb_goes_on_in_the_next_topic(runfold: Runfold, other: Runfold, verb: str):
    run = await runfold.open_run(agent_id="a")
    await run.publish(message("zero"))
    entry = await seal(other, run.life)

    if verb == "publish":
        offsets = [(await run.publish(message(word))).offset for word in ("one", "two")]
    elif verb == "send":
        tasks = [await run.send(message(word)) for word in ("one", "two")]
        offsets = [(await task).offset for task in tasks]
    else:
        offsets = [each.offset for each in await run.publish_batch([message("one"), message("two")])]

    assert offsets == [entry.base, entry.base + 1]
    expected = [
        (1, "accepted", "zero"),
        (entry.base, "accepted", "one"),
        (entry.base + 1, "accepted", "two"),
    ]
    assert await history_of(run) == expected
    assert await history_of(await other.get_run(run.run_id)) == expected


async def test_a_publisher_waits_for_the_base_of_a_sealed_topic(runfold: Runfold, other: Runfold):
    run = await runfold.open_run(agent_id="a")
    entry = await seal_topic(other, run.life)

    sent = [await run.send(message(word)) for word in ("one", "two")]
    publishing = asyncio.create_task(run.publish(message("three")))
    await until(lambda: _is_waiting(runfold), what="the refusal")
    await announce(other, entry)

    assert [(await each).offset for each in sent] == [entry.base, entry.base + 1]
    assert (await publishing).offset == entry.base + 2
    assert [word for _, _, word in await history_of(run)] == ["one", "two", "three"]


async def test_a_record_that_is_too_large_for_its_topic_fails_at_once(runfold: Runfold):
    run = await runfold.open_run(agent_id="a")
    await runfold.connection.admin.alter(topic_of(runfold, run.life), {"max.message.bytes": "2000"})
    large = message("x" * 5000)

    async def is_in_force() -> bool:
        """The broker answers the change of a setting before the topic follows it."""
        try:
            await run.publish(large)
        except UnavailableError:
            return True
        return False

    await until(is_in_force, what="the limit of the topic")
    async with asyncio.timeout(60):
        with pytest.raises(UnavailableError, match="MessageSizeTooLarge"):
            await run.publish(large)
        first = (await run.publish(message("one"))).offset
        refused = await run.send(large)
        following = asyncio.create_task(run.publish(message("two")))
        with pytest.raises(UnavailableError, match="MessageSizeTooLarge"):
            await refused
        await asyncio.wait([following])

    assert (await run.publish(message("three"))).offset in (first + 1, first + 2)


async def _is_waiting(runfold: Runfold) -> bool:
    return bool(runfold.connection.publisher._moves._moving)


@pytest.mark.parametrize("knows", [False, True], ids=["a new process", "a process with the old topic"])
async def test_a_run_whose_topic_is_archived_is_reopened(
    runfold: Runfold, other: Runfold, settings: Settings, archive: HandArchive, knows: bool
):
    run = await runfold.open_run(agent_id="a")
    await run.publish(message("zero"))
    publishing = run
    entry = await archive.archive(other, run.life, await seal(other, run.life))
    topic = topic_of(runfold, run.life)

    async def is_gone() -> bool:
        async with Leaders.connect(other.connection.settings) as leaders:
            return not await leaders.ends([Partition(topic, 0)])

    await until(is_gone, what="the deletion of the topic")
    if not knows:
        publishing = await other.get_run(run.run_id)
    began = asyncio.get_running_loop().time()
    sent = [await publishing.send(message(word)) for word in ("one", "two")]

    assert [(await each).offset for each in sent] == [entry.base, entry.base + 1]
    assert asyncio.get_running_loop().time() - began < settings.publish_timeout_seconds
    history = await history_of(await other.get_run(run.run_id))
    assert [word for _, _, word in history] == ["zero", "one", "two"]


async def test_duplicates_and_expectations_hold_across_segments(
    runfold: Runfold, other: Runfold, archive: HandArchive
):
    run = await runfold.open_run(agent_id="a")
    first = run.event(message("one"))
    position = await run.publish(first)
    entry = await archive.archive(other, run.life, await seal(other, run.life))

    assert (await run.publish(message("two"), expected_offset=position.offset)).offset == entry.base
    with pytest.raises(RejectedError):
        await run.publish(message("lost"), expected_offset=position.offset)
    again = await run.publish(first)
    second = await seal(other, run.life, entry.base)
    with pytest.raises(RejectedError):
        await run.publish(message("lost"), expected_offset=position.offset)
    third = await run.publish(message("three"), expected_offset=entry.base)

    assert again.offset == entry.base + 2
    assert third.offset == second.base + 1
    assert [(outcome, word) for _, outcome, word in await history_of(await other.get_run(run.run_id))] == [
        ("accepted", "one"),
        ("accepted", "two"),
        ("rejected", "lost"),
        ("duplicate", "one"),
        ("rejected", "lost"),
        ("accepted", "three"),
    ]


async def test_a_client_without_the_archive_writes_nothing_whose_outcome_it_cannot_read(
    settings: Settings, runfold: Runfold, archive: HandArchive
):
    run = await runfold.open_run(agent_id="a")
    await run.publish(message("zero"))
    entry = await archive.archive(runfold, run.life, await seal(runfold, run.life))
    async with Runfold.of(settings.log()) as without:
        elsewhere = await without.get_run(run.run_id)
        with pytest.raises(NoArchiveError):
            await elsewhere.complete()
        with pytest.raises(NoArchiveError):
            await elsewhere.publish(message("one"), expected_offset=1)
        assert (await elsewhere.publish(message("two"))).offset == entry.base

    assert [word for _, _, word in await history_of(run)] == ["zero", "two"]


@pytest.mark.parametrize("first_offset", [0, 1])
async def test_an_archive_without_the_run_is_not_an_empty_log(
    settings: Settings, runfold: Runfold, archive: HandArchive, first_offset: int
):
    run = await runfold.open_run(agent_id="a")
    await run.publish(message("zero"))
    await archive.archive(runfold, run.life, await seal(runfold, run.life))
    archive.logs[run.run_id] = []

    log = read(runfold.connection.settings, topic_of(runfold, run.life), first_offset=first_offset)
    with pytest.raises(NoArchiveError):
        [records async for records in log]


async def test_a_run_that_ended_before_it_was_sealed_has_ended(runfold: Runfold, other: Runfold):
    run = await runfold.open_run(agent_id="a")
    await run.complete()
    entry = await seal(other, run.life)

    elsewhere = await other.get_run(run.run_id)
    assert (await elsewhere.publish(message("late"), late=True)).offset == entry.base
    assert await history_of(run) == [(entry.base, "late", "late")]
