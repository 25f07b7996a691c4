"""A compacted topic is followed by its fold, from before it exists until after it was made anew."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest
from tests.processes import soonest, until
from tests.tails import delete_topics

from runfold.log.compacted import CompactedTopic, Followed, append, create, read_all
from runfold.log.publisher import Publisher
from runfold.log.reader import LogGoneError
from runfold.log.settings import LogSettings
from runfold_schemas.codec import Record
from runfold_schemas.errors import RunfoldError

Words = dict[str, int]


def take(words: Words, record: Record) -> None:
    """A record has a number, or removes its word."""
    word = (record.key or b"").decode()
    if record.value is None:
        words.pop(word, None)
    else:
        words[word] = int(record.value)


@pytest.fixture
def settings(kafka: str, prefix: str) -> LogSettings:
    return LogSettings(kafka=kafka, prefix=prefix)


@pytest.fixture
def topic(prefix: str) -> CompactedTopic[Words]:
    return CompactedTopic(f"{prefix}.words", "words", dict, take)


@pytest.fixture
async def publisher(settings: LogSettings) -> AsyncIterator[Publisher]:
    async with Publisher.connect(settings) as publisher:
        yield publisher


async def reads(followed: Followed[Words], words: Words) -> bool:
    try:
        return followed.state == words
    except RunfoldError:
        return False


async def test_that_a_topic_is_missing_is_an_answer_of_kafka(settings, topic):
    began = time.monotonic()
    async with Followed(settings, topic, creates=False) as followed:

        async def has_answered() -> bool:
            return time.monotonic() - followed.silent_seconds > began + 1

        await until(has_answered, what="another answer")


async def test_a_missing_topic_is_empty_until_somebody_creates_it(settings, topic, publisher):
    async with Followed(settings, topic, creates=False) as followed:
        await until(lambda: reads(followed, {}))
        with pytest.raises(LogGoneError):
            await read_all(settings, topic)

        await create(settings, topic)
        await append(publisher, topic, b"one", b"1")

        await until(lambda: reads(followed, {"one": 1}))


async def test_a_topic_is_created_by_its_follower(settings, topic, publisher):
    async with Followed(settings, topic) as followed:
        await until(lambda: reads(followed, {}))

        values: list[int] = []

        async def arrives() -> float:
            values.append(len(values))
            await append(publisher, topic, b"one", b"%d" % values[-1])
            return await until(lambda: reads(followed, {"one": values[-1]}))

        assert await soonest(arrives, seconds=1) < 1
    assert await read_all(settings, topic) == ({"one": values[-1]}, len(values))


async def test_a_record_without_a_value_removes_and_a_broken_one_changes_nothing(settings, topic, publisher):
    await create(settings, topic)
    await append(publisher, topic, b"one", b"1")
    await append(publisher, topic, b"two", b"2")
    async with Followed(settings, topic) as followed:
        await append(publisher, topic, b"one", None)
        await append(publisher, topic, b"two", b"no number")
        await append(publisher, topic, b"\xff", b"3")
        offset = await append(publisher, topic, b"three", b"3")

        await followed.wait_for(offset, timeout_seconds=60)

        assert followed.state == {"two": 2, "three": 3}


async def test_each_change_is_told_and_changes_that_come_together_are_one(settings, topic, publisher):
    await create(settings, topic)
    told: list[Words] = []

    async def has_told(holds: Callable[[], bool]) -> bool:
        return holds()

    async def note(followed: Followed[Words]) -> None:
        async for words in followed.changes():
            told.append(dict(words))  # noqa: PERF401  # the loop is endless

    async with Followed(settings, topic) as followed, asyncio.TaskGroup() as group:
        noting = group.create_task(note(followed))
        await until(lambda: has_told(lambda: told == [{}]))
        await append(publisher, topic, b"one", b"1")
        await until(lambda: has_told(lambda: told == [{}, {"one": 1}]))
        await asyncio.gather(*(append(publisher, topic, b"%d" % n, b"7") for n in range(50)))
        await until(lambda: has_told(lambda: len(told[-1]) == 51))
        noting.cancel()

    assert len(told) < 50


async def is_gone(settings: LogSettings, topic: CompactedTopic[Words]) -> bool:
    """Whether the broker has heard of the deletion, and appends to the topic no more."""
    try:
        await read_all(settings, topic)
    except LogGoneError:
        return True
    return False


async def test_a_topic_that_was_made_anew_begins_anew(settings, topic, publisher):
    await create(settings, topic)
    for number in range(3):
        await append(publisher, topic, b"%d" % number, b"7")
    async with Followed(settings, topic) as followed:
        await until(lambda: reads(followed, {"0": 7, "1": 7, "2": 7}))
        await delete_topics(settings.kafka, topic.name)
        await until(lambda: is_gone(settings, topic), what="the deletion")
        await create(settings, topic)

        async with Publisher.connect(settings) as later:
            await append(later, topic, b"new", b"1")

            await until(lambda: reads(followed, {"new": 1}))
