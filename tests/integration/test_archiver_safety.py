"""What an archiver does with entries that are forged, and with seals that others left half done."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.archiving import (
    archive_settings,
    archived_records,
    archiving,
    check_archived,
    end,
    entry_of_run,
    gone,
    note_end,
    opened_run,
    records_of,
    run_topics,
)
from tests.processes import until
from tests.servers import OwnSettings

from runfold import Run, Runfold, UserMessage
from runfold.archiver import rounds
from runfold.archiver.known_runs import ListedTopics, PartitionRuns
from runfold.archiver.rounds import Rounds
from runfold.archiver.steps import GAP
from runfold.ids import new_log_id
from runfold.log.admin import LogAdmin
from runfold.log.catalog import partition_of, segments_key, segments_record
from runfold.log.leaders import Leaders
from runfold.log.publisher import Outgoing
from runfold.log.reader import read
from runfold.log.sealing import seal
from runfold.settings import Settings
from runfold_schemas.catalog import Segments


@pytest.fixture
def settings(own_settings: OwnSettings, tmp_path: Path) -> Settings:
    return archive_settings(own_settings, tmp_path / "archive", publish_timeout_seconds=120)


@pytest.fixture
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


async def write_entry(runfold: Runfold, run: Run, record: Outgoing) -> None:
    topics, publisher = runfold.connection.topics, runfold.connection.publisher
    number = partition_of(topics, run.run_id)
    await publisher.wait(await publisher.send(topics.catalog, record, partition=number))


async def seal_and_die(settings: Settings, run: Run) -> None:
    """What an archiver does before it dies without an entry."""
    log = settings.log()
    topic = log.topics.run(run.run_id, run.life.log_id)
    async with LogAdmin.connect(log) as admin, Leaders.connect(log) as leaders:
        sealed = await seal(admin.client._client, leaders, [topic], timeout_seconds=60)
    assert sealed.ends.keys() == {topic}


async def test_a_live_topic_with_a_forged_entry_is_deleted_with_nothing_lost(
    settings: Settings, runfold: Runfold
) -> None:
    run = await opened_run(runfold, "live", "one", "two")
    topic = runfold.connection.topics.run(run.run_id, run.life.log_id)
    forged = Segments(run_id="live", log_id=run.life.log_id, base=10**15 + GAP, end=10**15)
    acknowledged: list[int] = []

    async with archiving(settings):
        await write_entry(runfold, run, segments_record(forged))
        # The publisher goes on in the live topic until that is sealed, and then in the next one.
        while not acknowledged or acknowledged[-1] < forged.base:
            published = await run.publish(UserMessage(message=str(len(acknowledged))))
            acknowledged.append(published.offset)
        await gone(settings, [run])
        first = [each async for batch in read(settings.log(), topic) for each in batch]
    assert len(acknowledged) > 1
    assert set(acknowledged) <= {each.offset for each in first}
    later = await records_of(settings, run, forged.base)
    await check_archived(settings, [(run, [each for each in first if each not in later])])


async def test_an_entry_with_a_gap_that_no_archiver_leaves_does_not_count(
    settings: Settings, runfold: Runfold
) -> None:
    run = await opened_run(runfold, "live", "one")
    other = await opened_run(runfold, "other", "one")
    value = f'{{"run_id": "live", "log_id": "{run.life.log_id}", "base": {10**15}, "end": {10**14}}}'
    await write_entry(runfold, run, Outgoing(segments_key("live"), value.encode()))
    await end(runfold, other)

    async with archiving(settings):
        await gone(settings, [other])

    assert await entry_of_run(runfold, run) is None
    assert await run_topics(settings) == {runfold.connection.topics.run("live", run.life.log_id)}


async def test_publishers_of_a_quiet_run_get_through_after_an_archiver_died_behind_its_seal(
    settings: Settings, runfold: Runfold
) -> None:
    run = await opened_run(runfold, "quiet", "one")
    before = await records_of(settings, run)
    await seal_and_die(settings, run)
    assert await entry_of_run(runfold, run) is None

    # Only a run that is quiet for a week would be sealed.
    async with archiving(settings):
        published = await run.publish(UserMessage(message="two"))
        await gone(settings, [run])
    entry = await entry_of_run(runfold, run)
    assert entry is not None
    assert published.offset == entry.base
    await check_archived(settings, [(run, before)])


async def test_an_archiver_at_work_finds_a_seal_of_one_that_died(
    settings: Settings, runfold: Runfold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "_LIST_SECONDS", 0.5)
    run = await opened_run(runfold, "quiet", "one")
    async with archiving(settings):
        await seal_and_die(settings, run)
        published = await run.publish(UserMessage(message="two"))
    entry = await entry_of_run(runfold, run)
    assert entry is not None
    assert published.offset == entry.base


async def test_what_comes_while_a_partition_is_read_again_is_not_forgotten(
    settings: Settings, runfold: Runfold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "_LIST_SECONDS", 0.5)
    run = await opened_run(runfold, "r", "one")
    before = await records_of(settings, run)
    read_to_end = Rounds._read_to_end
    late: list[str] = []

    async def read_and_dawdle(work: Rounds, again: PartitionRuns, listed: ListedTopics) -> None:
        await read_to_end(work, again, listed)
        group = work._read.get(again.number)
        if group is not None and not late:
            late.append(run.run_id)
            await end(runfold, run)
            with suppress(TimeoutError):  # The group waits for this reading.
                async with asyncio.timeout(3):
                    while group.position <= again.position:
                        await asyncio.sleep(0.05)

    monkeypatch.setattr(Rounds, "_read_to_end", read_and_dawdle)
    async with archiving(settings):
        unknown = runfold.connection.topics.run("unknown", new_log_id())
        await runfold.connection.admin.create_run_topic(unknown)
        await gone(settings, [run])
    assert late
    assert (await archived_records(settings, run))[: len(before)] == before


async def test_an_ended_run_that_still_gets_events_is_not_sealed(
    settings: Settings, runfold: Runfold
) -> None:
    slow = settings.model_copy(update={"archive_after_seconds": 4.0})
    since = time.monotonic()
    run = await opened_run(runfold, "busy", "one")
    await note_end(runfold, run)
    is_over = asyncio.Event()

    async def write() -> None:
        last, was_quiet = since, False
        while not is_over.is_set():
            now = time.monotonic()
            published = await run.publish(UserMessage(message="still here"))
            # The machine may stand still for as long.
            was_quiet |= time.monotonic() - last > slow.archive_after_seconds / 2
            assert published.offset < GAP or was_quiet
            last = now
            await asyncio.sleep(0.2)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        async with archiving(slow):
            await asyncio.sleep(2 * slow.archive_after_seconds)
            is_over.set()
            await gone(settings, [run])


async def test_the_owner_writes_an_entry_again_that_another_record_would_replace(
    settings: Settings, runfold: Runfold
) -> None:
    values = [b"{}", None, b"no entry"]
    runs = [await opened_run(runfold, f"r{number}", "one") for number in range(len(values))]
    other = await opened_run(runfold, "other", "one")
    # The runs have topics: they went on after they were archived.
    quick = settings.model_copy(update={"archive_quiet_seconds": 1.0})
    async with archiving(quick):
        await gone(settings, [*runs, other])
    for run in runs:
        await run.publish(UserMessage(message="two"))
    async with archiving(settings):
        for run, value in zip(runs, values, strict=True):
            entry = await entry_of_run(runfold, run)
            assert entry is not None
            await write_entry(runfold, run, Outgoing(segments_key(run.run_id), value))

            async def is_restated(
                run: Run = run, entry: Segments = entry, value: bytes | None = value
            ) -> bool:
                values = await entries_of(runfold, run)
                return value in values and values[-1] == segments_record(entry).value

            await until(is_restated, what=f"the entry that {value!r} would replace")


async def entries_of(runfold: Runfold, run: Run) -> list[bytes | None]:
    """The values of all records under the key of the run's entry."""
    connection, key = runfold.connection, segments_key(run.run_id)
    reading = read(
        connection.settings,
        connection.topics.catalog,
        partition=partition_of(connection.topics, run.run_id),
    )
    return [each.value async for batch in reading for each in batch if each.key == key]


async def test_a_topic_that_no_broker_answers_for_keeps_no_other_from_being_sealed(
    settings: Settings, runfold: Runfold
) -> None:
    run = await opened_run(runfold, "r", "one")
    topic = runfold.connection.topics.run(run.run_id, run.life.log_id)
    # Kafka answers neither with a leader nor that there is no such topic.
    strange = "no name of a topic!"
    async with Leaders.connect(settings.log()) as leaders:
        sealed = await seal(
            runfold.connection.admin.client._client, leaders, [strange, topic], timeout_seconds=60
        )
    assert sealed.ends.keys() == {topic}
    assert sealed.unanswered == {strange}
