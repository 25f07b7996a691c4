"""Runs that go from topics into the archive, on a real Kafka."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from tests.archiving import (
    archive_of,
    archive_settings,
    archived_records,
    archiving,
    check_archived,
    end,
    entry_of_run,
    gone,
    opened_run,
    records_of,
    run_topics,
)
from tests.processes import until
from tests.raw_batches import Raw, compressed, sender
from tests.servers import OwnSettings

from runfold import Run, Runfold, UserMessage
from runfold.archive.checking import damaged_runs
from runfold.archiver import rounds, segment_reading, steps
from runfold.archiver.service import Archiver
from runfold.archiver.steps import GAP
from runfold.log.compression import UNPACKED_BYTES_MAX
from runfold.log.publisher import Outgoing
from runfold.settings import Settings
from runfold_schemas.catalog import Skip
from runfold_schemas.codec import Record, decode
from runfold_schemas.errors import ConfigurationError, UnavailableError
from runfold_schemas.topics import Partition

MARK = 1
"""The last record of a sealed topic."""


@pytest.fixture
def settings(own_settings: OwnSettings, tmp_path: Path) -> Settings:
    return archive_settings(
        own_settings,
        tmp_path / "archive",
        publish_timeout_seconds=120,
        publisher_park_seconds=1,
        park_seconds=2,
        partitions=3,
    )


@pytest.fixture
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


async def test_ended_runs_are_archived_byte_for_byte_and_their_topics_are_deleted(
    settings: Settings, runfold: Runfold
) -> None:
    runs = [await opened_run(runfold, f"r{number}", *["Hello"] * number) for number in range(12)]
    publisher, topics = runfold.connection.publisher, runfold.connection.topics
    strange = topics.run(runs[0].run_id, runs[0].life.log_id)
    for record in (
        Outgoing(None, None),
        Outgoing(b"\xff", b"no event", (("a", b""), ("a", b"\xff"))),
        Outgoing(b"", b""),
    ):
        await publisher.wait(await publisher.send(strange, record))
    for run in runs:
        await end(runfold, run)
    still_open = await opened_run(runfold, "open", "Hello")
    expected = [(run, await records_of(settings, run)) for run in runs]
    assert [len(records) for _, records in expected] == [5, *range(3, 14)]

    async with archiving(settings) as archiver:
        await gone(settings, runs)
        await until(lambda: is_content(archiver), what="nothing in readiness")

    await check_archived(settings, expected)
    for run, records in expected:
        entry = await entry_of_run(runfold, run)
        assert entry is not None
        last = len(records) + MARK
        assert (entry.base, entry.end, entry.sealed_base) == (last + GAP, last, None)
    assert await run_topics(settings) == {topics.run(still_open.run_id, still_open.life.log_id)}
    assert await archived_records(settings, still_open) == []


async def test_a_quiet_run_is_archived_and_goes_on_in_another_topic_again_and_again(
    settings: Settings, runfold: Runfold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "_LIST_SECONDS", 0.5)
    quick = settings.model_copy(update={"archive_quiet_seconds": 1.0})
    # The second one's later topics have a hash in the place of the run.
    runs = [await opened_run(runfold, run_id, "Hello") for run_id in ("r", "ü" * 32 + "abcdef")]
    said = [[(1, "Hello")] for _ in runs]

    async with archiving(quick):
        await gone(settings, runs)
        for _ in range(2):
            for run, messages in zip(runs, said, strict=True):
                entry = await entry_of_run(runfold, run)
                assert entry is not None
                # In one batch, so that the archiver seals after both, however slow this process is.
                await run.publish_batch([UserMessage(message="Still there?"), UserMessage(message="Yes.")])
                messages += [(entry.base, "Still there?"), (entry.base + 1, "Yes.")]
            await no_topics(settings)

    for run, messages in zip(runs, said, strict=True):
        assert messages_of(await archived_records(settings, run)) == messages
        segments = await archive_of(settings).segments([run.run_id])
        assert [segment.record_count for segment in segments] == [2, 2, 2]
    assert await damaged_runs(archive_of(settings)) == []


async def is_content(archiver: Archiver) -> bool:
    return await archiver.check_ready() == []


async def no_topics(settings: Settings) -> None:
    async def are_gone() -> bool:
        return await run_topics(settings) == set()

    await until(are_gone, what="the deletion of all topics")


async def is_archived(settings: Settings, run: Run) -> None:
    """Returns when a first part of the run is in the archive."""

    async def has_segments() -> bool:
        return bool(await archive_of(settings).segments([run.run_id]))

    await until(has_segments, what="the archive's first segment of the run")


async def test_nothing_that_is_acknowledged_while_runs_are_sealed_is_lost_or_out_of_order(
    settings: Settings, runfold: Runfold
) -> None:
    quick = settings.model_copy(update={"archive_quiet_seconds": 0.3})
    runs = [await opened_run(runfold, f"r{number}") for number in range(4)]
    sent: list[list[int]] = [[] for _ in runs]

    async def write(run: Run, offsets: list[int], pause: float) -> None:
        for number in range(41):
            if number == 40:
                await is_archived(settings, run)
            offsets.append((await run.publish(UserMessage(message=str(number)))).offset)
            await asyncio.sleep(pause if number % 4 == 3 else 0)

    async with archiving(quick), asyncio.TaskGroup() as tasks:
        for index, run in enumerate(runs):
            tasks.create_task(write(run, sent[index], 0.25 + 0.1 * index))
    async with archiving(quick):
        await no_topics(settings)

    for run, offsets in zip(runs, sent, strict=True):
        records = await archived_records(settings, run)
        assert [message for _, message in messages_of(records)] == [str(number) for number in range(41)]
        assert [record.offset for record in records][1:] == offsets == sorted(set(offsets))
        assert len(await archive_of(settings).segments([run.run_id])) > 1
    assert await damaged_runs(archive_of(settings)) == []


def messages_of(records: Iterable[Record]) -> list[tuple[int, str]]:
    events = [(record.offset, decode(record.value).data) for record in records]
    return [(offset, data.message) for offset, data in events if isinstance(data, UserMessage)]


async def test_a_log_that_is_larger_than_a_part_becomes_several_segments(
    settings: Settings, runfold: Runfold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_reading, "PART_RECORDS", 7)
    runs = [await opened_run(runfold, f"r{number}", *map(str, range(number))) for number in (0, 5, 20)]
    for run in runs:
        await end(runfold, run)
    expected = [(run, await records_of(settings, run)) for run in runs]

    async with archiving(settings):
        await gone(settings, runs)

    await check_archived(settings, expected)
    segments = await archive_of(settings).segments([runs[-1].run_id])
    assert len(segments) >= 4
    assert sum(segment.record_count for segment in segments) == 22
    assert all(before.end == after.base for before, after in pairwise(segments))


async def test_a_run_that_cannot_be_unpacked_is_set_aside_until_an_operator_skips_it(
    settings: Settings, runfold: Runfold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "_FAILURE_SECONDS", 0.5)
    bad, good = [await opened_run(runfold, run_id, "Hello") for run_id in ("bad", "good")]
    topics = settings.log().topics
    topic = topics.run(bad.run_id, bad.life.log_id)
    async with sender(settings.kafka) as raw:
        await raw.set_compression(topic)
        await raw.send(Partition(topic, 0), compressed([Raw(bytes(UNPACKED_BYTES_MAX))], "gzip"))
    for run in (bad, good):
        await end(runfold, run)
    expected = [(run, await records_of(settings, run)) for run in (bad, good)]

    async with archiving(settings) as archiver:
        await gone(settings, [good])

        async def is_named() -> bool:
            return any("'bad'" in reason for reason in await archiver.check_ready())

        await until(is_named, what="the run in readiness")
        assert await run_topics(settings) == {topic}
        assert await archived_records(settings, bad) == []

        await runfold.connection.skip(Skip(topic=topic, offset=2, next_offset=3))
        await gone(settings, [bad])
        await until(lambda: is_content(archiver), what="nothing in readiness")
    await check_archived(settings, expected)


async def test_an_archive_that_is_away_is_named_and_nothing_is_deleted_meanwhile(
    settings: Settings, runfold: Runfold, tmp_path: Path
) -> None:
    run = await opened_run(runfold, "r", "Hello")
    await end(runfold, run)
    expected = [(run, await records_of(settings, run))]
    topic = settings.log().topics.run(run.run_id, run.life.log_id)
    in_the_way = tmp_path / "archive"
    in_the_way.write_text("a file, and no directory")

    async with Archiver(settings) as archiver:

        async def is_named() -> bool:
            try:
                await archiver.check_ready()
            except UnavailableError as error:
                return error.server == "the archive"
            return False

        await until(is_named, what="the archive in readiness")
        assert await run_topics(settings) == {topic}
        in_the_way.unlink()
        await gone(settings, [run])
        await until(lambda: is_content(archiver), what="nothing in readiness")
    await check_archived(settings, expected)


async def test_a_deleted_run_is_left_to_its_deletion(settings: Settings, runfold: Runfold) -> None:
    deleted, other = [await opened_run(runfold, run_id, "Hello") for run_id in ("deleted", "other")]
    await end(runfold, deleted)
    await runfold.connection.announce(deleted.life.model_copy(update={"ended": True, "deleted": True}))
    await end(runfold, other)

    async with archiving(settings):
        await gone(settings, [other])

    assert await run_topics(settings) == {settings.log().topics.run("deleted", deleted.life.log_id)}
    assert await archived_records(settings, deleted) == []


async def test_the_archiver_needs_an_archive(settings: Settings) -> None:
    with pytest.raises(ConfigurationError, match="set RUNFOLD_ARCHIVE_URL"):
        Archiver(settings.model_copy(update={"archive_url": None}))
