"""A tail follows a log from segment to segment."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.processes import until
from tests.segmenting import HandArchive, seal, topic_of
from tests.servers import OwnSettings

from runfold import Run, Runfold, UnavailableError, UserMessage
from runfold.log import sealed_logs
from runfold.log.ends import LogEnds
from runfold.log.newest import newest
from runfold.log.settings import LogSettings
from runfold.log.tail import Tail
from runfold_schemas.codec import decode
from runfold_schemas.topics import Partition


@pytest.fixture
def archive() -> HandArchive:
    return HandArchive()


@pytest.fixture
async def runfold(own_settings: OwnSettings, archive: HandArchive) -> AsyncIterator[Runfold]:
    log = own_settings(publish_timeout_seconds=120).log().with_archived(archive)
    async with Runfold.of(log) as connected:
        yield connected


@pytest.fixture
def log(runfold: Runfold) -> LogSettings:
    return runfold.connection.settings


class Words:
    """The messages of one log that a tail has returned, each with its offset."""

    def __init__(self, tail: Tail, at: Partition) -> None:
        self.tail = tail
        self.at = at
        self.said: list[tuple[int, str]] = []
        self.position = 0
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for fetch in self.tail.fetches():
            for fetched in fetch:
                assert fetched.partition == self.at
                assert fetched.next_offset >= self.position
                self.position = fetched.next_offset
                for record in fetched.records:
                    event = decode(record.value)
                    if event.type == "user_message":
                        self.said.append((record.offset, event.data.message))

    async def wait_for(self, *said: tuple[int, str]) -> None:
        async def has_come() -> bool:
            if self._task.done():
                self._task.result()
            return len(self.said) >= len(said)

        await until(has_come, what=f"{said}, not only {self.said}")
        assert self.said == [*said]

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        assert not self.tail.rewound


async def say(run: Run, word: str) -> tuple[int, str]:
    return (await run.publish(UserMessage(message=word))).offset, word


async def is_unknown(tail: Tail, at: Partition) -> bool:
    return tail.is_unknown(at)


async def test_a_tail_goes_on_in_each_next_segment(runfold: Runfold, log: LogSettings, archive: HandArchive):
    run = await runfold.open_run(agent_id="a")
    at = Partition(topic_of(runfold, run.life), 0)
    async with Tail.connect(log) as tail:
        tail.follow(at, 0)
        words = Words(tail, at)
        said = [await say(run, "one")]
        await words.wait_for(*said)
        first = await seal(runfold, run.life)
        said.append(await say(run, "two"))
        await words.wait_for(*said)
        await archive.archive(runfold, run.life, first)
        second = await archive.archive(runfold, run.life, await seal(runfold, run.life, first.base))
        # Its last topic does not exist, and it is not unknown.
        await until(lambda: _has_end(tail, at, second.end), what="the end of the archived log")
        assert not tail.is_unknown(at)
        assert not tail.unknown()
        said.append(await say(run, "three"))
        await words.wait_for(*said)
        assert [offset for offset, _ in said] == [1, first.base, second.base]
        assert at in tail
        assert tail.end(at) == words.position == second.base + 1
        await words.close()


async def test_a_tail_says_once_that_the_archive_is_away_and_once_that_it_is_back(
    runfold: Runfold,
    log: LogSettings,
    archive: HandArchive,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("_LOOK_UP_SECONDS", "_PAUSE_MAX_SECONDS"):
        monkeypatch.setattr(sealed_logs, name, 0.1)
    run = await runfold.open_run(agent_id="a")
    at = Partition(topic_of(runfold, run.life), 0)
    said = [await say(run, "one")]
    await archive.archive(runfold, run.life, await seal(runfold, run.life))
    said.append(await say(run, "two"))

    async def is_told() -> bool:
        return archive.failures > 20 and "The archive does not answer" in caplog.text

    archive.failure = UnavailableError("the archive", reason="away")
    async with Tail.connect(log) as tail:
        tail.follow(at, 0)
        words = Words(tail, at)
        await until(is_told, what="the outage in the log")
        archive.failure = None
        await words.wait_for(*said)
        await words.close()
    assert caplog.text.count("The archive does not answer: away") == 1
    assert caplog.text.count("The archive answers again") == 1


async def _has_end(tail: Tail, at: Partition, end: int) -> bool:
    return tail.end(at) == end


@pytest.mark.parametrize("begins_at", ["the beginning", "the sealed end", "the next segment"])
@pytest.mark.parametrize("is_deleted", [False, True], ids=["sealed", "archived"])
async def test_a_tail_begins_anywhere_in_a_log_with_segments(
    runfold: Runfold, log: LogSettings, archive: HandArchive, begins_at: str, is_deleted: bool
):
    run = await runfold.open_run(agent_id="a")
    at = Partition(topic_of(runfold, run.life), 0)
    said = [await say(run, "one")]
    entry = await seal(runfold, run.life)
    said.append(await say(run, "two"))
    if is_deleted:
        await archive.archive(runfold, run.life, entry)
    begin = {"the beginning": 0, "the sealed end": entry.end, "the next segment": entry.base}[begins_at]
    segments = runfold.connection.catalog.segments if begins_at == "the sealed end" else None

    async with Tail.connect(log, segments=segments) as tail:
        tail.follow(at, begin)
        words = Words(tail, at)
        said.append(await say(run, "three"))
        await words.wait_for(*(each for each in said if each[0] >= begin))
        await words.close()


async def test_ends_and_newest_records_are_those_of_the_whole_log(
    runfold: Runfold, log: LogSettings, archive: HandArchive
):
    run = await runfold.open_run(agent_id="a")
    at = Partition(topic_of(runfold, run.life), 0)
    missing = Partition(topic_of(runfold, run.life) + "x", 0)
    await say(run, "one")
    segments = runfold.connection.catalog.segments
    async with LogEnds.connect(log, segments=segments) as ends:
        assert await ends.ends_of([at, missing]) == {at: 2}
        sealed = await seal(runfold, run.life)
        assert (await newest(ends.leaders, at, first_offset=0)) is None
        entry = await archive.archive(runfold, run.life, sealed)
        await runfold.connection.catalog.look_up_segments(run.run_id)
        segments.take(entry)

        assert await ends.ends([at.topic, missing.topic]) == {at.topic: entry.end, missing.topic: 0}
        assert await ends.look([at, missing]) == ({at: entry.end}, set())
        assert await ends.count(at) == entry.end
        await say(run, "two")
        assert await ends.ends_of([at]) == {at: entry.base + 1}
        assert await ends.look([at]) == ({at: entry.base + 1}, set())
        read = await newest(ends.leaders, at, first_offset=entry.end)
        assert read is not None
        assert ([record.offset for record in read.records], read.next_offset) == (
            [entry.base],
            entry.base + 1,
        )
