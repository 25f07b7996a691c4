"""The log of a run that was sealed, archived and reopened is read as one log."""

from collections.abc import AsyncIterator

import pytest
from tests.processes import until
from tests.segmenting import GAP, HandArchive, append, seal, topic_of
from tests.servers import OwnSettings

from runfold import Run, Runfold, UserMessage
from runfold.client.records import outgoing
from runfold.log import reader, sealed_logs
from runfold.log.catalog_view import CatalogView
from runfold.log.leaders import Leaders
from runfold.log.publisher import Publisher
from runfold.log.reader import LogGoneError, end_offset, offset_range, read, read_fetches
from runfold.log.seal_marks import SEAL_MARK, SEAL_PROBE
from runfold.log.settings import LogSettings
from runfold.log.tail import Tail
from runfold_schemas.codec import Record, decode
from runfold_schemas.errors import ConfigurationError, UnavailableError
from runfold_schemas.topics import Partition


@pytest.fixture
async def runfold(own_settings: OwnSettings) -> AsyncIterator[Runfold]:
    async with Runfold.of(own_settings(publish_timeout_seconds=120).log()) as connected:
        yield connected


@pytest.fixture
def log(runfold: Runfold) -> LogSettings:
    return runfold.connection.settings


async def said(run: Run, *words: str) -> None:
    await run.publish_batch([UserMessage(message=word) for word in words])


async def say_in(runfold: Runfold, run: Run, base: int, *words: str) -> None:
    """What a producer of another language writes to the topic of this base."""
    for word in words:
        record = outgoing(run.event(UserMessage(message=word)), source="tests")
        await append(runfold, topic_of(runfold, run.life, base), record)


async def reopen(runfold: Runfold, run: Run, base: int, *words: str) -> None:
    await runfold.connection.admin.create_run_topic(topic_of(runfold, run.life, base))
    await say_in(runfold, run, base, *words)


async def records_of(log: LogSettings, topic: str, **options: object) -> list[Record]:
    return [record async for records in read(log, topic, **options) for record in records]


def words_of(records: list[Record]) -> list[str]:
    events = [decode(record.value) for record in records]
    return [event.data.message for event in events if event.type == "user_message"]


async def test_a_sealed_topic_takes_the_mark_and_no_event(runfold: Runfold):
    run = await runfold.open_run(agent_id="a")
    await said(run, "one")
    topic = topic_of(runfold, run.life)
    probed = await append(runfold, topic, SEAL_PROBE)
    entry = await seal(runfold, run.life)

    assert (probed, entry.end) == (2, 4)
    # A publisher that knows no catalog is told so.
    async with Publisher.connect(runfold.connection.settings) as publisher:
        for refused in (SEAL_PROBE, outgoing(run.event(UserMessage(message="two")), source="tests")):
            with pytest.raises(UnavailableError, match="TooLarge"):
                await publisher.wait(await publisher.send(topic, refused))
    assert await append(runfold, topic, SEAL_MARK) == 4
    # Nobody is handed a probe or a mark.
    records = await records_of(runfold.connection.settings, topic)
    assert [record.offset for record in records] == [0, 1]


@pytest.mark.parametrize("knows", [False, True], ids=["another process", "with a view of the catalog"])
async def test_a_reopened_log_is_read_across_its_segments(runfold: Runfold, log: LogSettings, knows: bool):
    run = await runfold.open_run(agent_id="a")
    await said(run, "one", "two")
    topic = topic_of(runfold, run.life)
    first = await seal(runfold, run.life)
    assert words_of(await records_of(log, topic)) == ["one", "two"]
    await reopen(runfold, run, first.base, "three")
    assert words_of(await records_of(log, topic, first_offset=first.end)) == ["three"]
    assert await end_offset(log, topic) == first.base + 1
    second = await seal(runfold, run.life, first.base)
    await reopen(runfold, run, second.base, "four", "five")
    known = {}
    if knows:
        assert await runfold.connection.catalog.look_up_segments(run.run_id) == second
        runfold.connection.catalog.segments.take(second)
        known = {"segments": runfold.connection.catalog.segments}

    with pytest.raises(ConfigurationError, match="archive"):
        await records_of(log, topic, **known)
    # Only the archive has what was before the sealed segment.
    records = await records_of(log, topic, first_offset=first.base, **known)

    assert words_of(records) == ["three", "four", "five"]
    assert [record.offset for record in records] == [first.base, second.base, second.base + 1]
    assert second.base == first.base + 2 + GAP
    assert await end_offset(log, topic, **known) == second.base + 2
    for begin, end, offsets in [
        (first.base, first.base + 1, [first.base]),
        (second.end, second.base, []),
        (second.end - 1, second.base + 9, [second.base, second.base + 1]),
        (second.base + 1, None, [second.base + 1]),
    ]:
        records = await records_of(log, topic, first_offset=begin, end=end, **known)
        assert [record.offset for record in records] == offsets, (begin, end)


async def test_archived_records_come_from_the_archive(runfold: Runfold, log: LogSettings):
    run = await runfold.open_run(agent_id="a")
    await said(run, "one", "two")
    topic, archive = topic_of(runfold, run.life), HandArchive()
    before = await records_of(log, topic)
    entry = await archive.archive(runfold, run.life, await seal(runfold, run.life))
    with_archive = log.with_archived(archive)

    async def is_gone() -> bool:
        async with Leaders.connect(log) as leaders:
            return not await leaders.ends([Partition(topic, 0)])

    await until(is_gone, what="the deletion of the topic")
    with pytest.raises(ConfigurationError, match="RUNFOLD_ARCHIVE_URL"):
        await records_of(log, topic)
    assert await end_offset(log, topic) == entry.end
    assert await offset_range(log, topic) == (0, entry.end)
    assert await records_of(with_archive, topic) == before
    assert await records_of(with_archive, topic, first_offset=1, end=2) == before[1:2]

    await reopen(runfold, run, entry.base, "three")
    records = await records_of(with_archive, topic)
    assert words_of(records) == ["one", "two", "three"]
    assert records[-1].offset == entry.base
    assert [fetched.next_offset async for fetched in read_fetches(with_archive, Partition(topic, 0))] == [
        entry.end,
        entry.base + 1,
    ]


async def test_a_topic_without_an_entry_is_gone_and_no_empty_log(runfold: Runfold, log: LogSettings):
    run = await runfold.open_run(agent_id="a")
    topic = topic_of(runfold, run.life)
    await runfold.connection.delete_topic(topic)

    for reading in (records_of(log, topic), end_offset(log, topic)):
        with pytest.raises(LogGoneError):
            await reading


async def test_a_log_that_was_never_sealed_is_looked_up_nowhere(
    runfold: Runfold, log: LogSettings, monkeypatch: pytest.MonkeyPatch
):
    looked_up: list[object] = []

    async def look_up(*asked: object) -> None:
        looked_up.append(asked)

    for module in (reader, sealed_logs):
        monkeypatch.setattr(module, "look_up_segments", look_up)
    monkeypatch.setattr(CatalogView, "look_up_segments", look_up)
    run = await runfold.open_run(agent_id="a")
    topic = topic_of(runfold, run.life)
    async with Tail.connect(log) as tail:
        tail.follow(Partition(topic, 0), 0)
        await said(run, "one", "two")
        await (await run.send(UserMessage(message="three")))
        records = await records_of(log, topic)
        followed: list[Record] = []
        async for fetch in tail.fetches():
            followed += [record for fetched in fetch for record in fetched.records]
            if len(followed) == len(records):
                break
    assert words_of(followed) == words_of(records) == ["one", "two", "three"]
    assert await end_offset(log, topic) == 4
    assert looked_up == []

    # The same asks where the log goes on as soon as it is sealed.
    await seal(runfold, run.life)
    await records_of(log, topic)
    assert looked_up
