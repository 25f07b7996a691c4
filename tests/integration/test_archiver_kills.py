"""Archivers that die, or work at the same time, and servers that go: nothing is lost, changed or
doubled.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests import dying_archiver
from tests.archiving import (
    SECONDS,
    archive_of,
    archive_settings,
    archiving,
    check_archived,
    entry_of_run,
    gone,
    note_end,
    opened_run,
    records_of,
    run_topics,
)
from tests.dying_archiver import COMPACTION, STEPS
from tests.forking import Forked, ForkedService, forked
from tests.killing import ROUNDS
from tests.object_store import object_store
from tests.processes import START_SECONDS, until
from tests.servers import OwnSettings

from runfold import Run, Runfold
from runfold.archiver import service
from runfold.archiver.steps import GAP
from runfold.local import LocalStack, free_port, ready_url
from runfold.log.publisher import Outgoing
from runfold.secret_urls import SecretUrl
from runfold.settings import Settings
from runfold_schemas.codec import Record
from runfold_schemas.errors import UnavailableError

RUNS = 4
MARK = 1


@pytest.fixture
def settings(own_settings: OwnSettings, tmp_path: Path) -> Settings:
    return archive_settings(own_settings, tmp_path / "archive")


@pytest.fixture
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


async def ended_runs(
    settings: Settings, runfold: Runfold, count: int = RUNS, *, name: str = "r"
) -> list[tuple[Run, list[Record]]]:
    """Ended runs of four records each, and these records."""

    async def completed(number: int) -> tuple[Run, list[Record]]:
        run = await opened_run(runfold, f"{name}{number}", "Hello", "World")
        await run.complete()
        return run, await records_of(settings, run)

    expected = await asyncio.gather(*map(completed, range(count)))
    await asyncio.gather(*(note_end(runfold, run) for run, _ in expected))
    return expected


def environment(settings: Settings) -> dict[str, str]:
    """The settings of an archiver in another process."""
    names = (
        *("kafka", "prefix", "session_timeout_seconds"),
        *("archive_after_seconds", "archive_delete_seconds", "archive_compact_files"),
    )
    assert settings.archive_url is not None
    return {
        "RUNFOLD_ARCHIVE_URL": settings.archive_url.get_secret_value(),
        **{f"RUNFOLD_{name.upper()}": str(getattr(settings, name)) for name in names},
    }


@asynccontextmanager
async def archiver_process(settings: Settings, step: str) -> AsyncIterator[Forked]:
    """An archiver that dies at a step."""
    program = [str(dying_archiver.__file__), step]
    process = await forked(
        program, env={**os.environ, **environment(settings)}, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def at_each(
    steps: Iterable[str], settings: Settings, proof: Callable[[Settings, Runfold, str], Awaitable[None]]
) -> None:
    """The proof for all steps at the same time, each with an installation of its own: it takes
    seconds until Kafka's group gives up an archiver that was killed.
    """

    async def at(step: str, own: Settings) -> None:
        try:
            async with Runfold.of(own.log()) as runfold:
                await proof(own, runfold, step)
        except Exception as error:
            error.add_note(step)
            raise

    async with asyncio.TaskGroup() as proofs:
        for number, step in enumerate(steps):
            own = settings.model_copy(update={"prefix": f"{settings.prefix}-{number}"})
            proofs.create_task(at(step, own))


async def state_of(settings: Settings, runfold: Runfold, run: Run) -> tuple[str, bool, bool]:
    """What the servers have of a run: its entry, whether rows are archived, whether the topic is
    left.
    """
    entry = await entry_of_run(runfold, run)
    name = "none" if entry is None else "sealed" if entry.sealed_base is not None else "archived"
    rows = await archive_of(settings).segments([run.run_id])
    topic = settings.log().topics.run(run.run_id, run.life.log_id)
    return name, bool(rows), topic in await run_topics(settings)


STATES = {
    "before the seal": ("none", False, True),
    "after the seal": ("none", False, True),
    "after the entry": ("sealed", False, True),
    "before the commit": ("sealed", False, True),
    "after the commit": ("sealed", True, True),
    "after the comparison": ("sealed", True, True),
    "after the announcement": ("archived", True, True),
    "before the deletion": ("archived", True, True),
    "after the deletion": ("archived", True, False),
}


async def test_an_archiver_that_is_killed_at_any_step_is_followed_by_one_that_goes_on(
    settings: Settings,
) -> None:
    await at_each(STEPS, settings, check_follower)


async def check_follower(settings: Settings, runfold: Runfold, step: str) -> None:
    expected = await ended_runs(settings, runfold)

    async with archiver_process(settings, step) as process:
        assert await asyncio.wait_for(process.wait(), SECONDS) == -signal.SIGKILL

    async def are_left() -> bool:
        states = {await state_of(settings, runfold, run) for run, _ in expected}
        return states == {STATES[step]}

    # Kafka answers the deletion of topics before it lists them no more.
    await until(are_left, what=f"runs that are {STATES[step]}")

    async with archiving(settings):
        await gone(settings, [run for run, _ in expected])
    await check(settings, runfold, expected)


async def check(settings: Settings, runfold: Runfold, expected: Sequence[tuple[Run, list[Record]]]) -> None:
    await check_archived(settings, expected)
    for run, records in expected:
        [segment] = await archive_of(settings).segments([run.run_id])
        entry = await entry_of_run(runfold, run)
        assert entry is not None
        assert entry.sealed_base is None
        assert entry.base > entry.end >= segment.end >= len(records) + MARK
        assert (entry.archived_end, entry.archived_records) == (segment.end, len(records))
        assert (segment.base, segment.record_count) == (0, len(records))
        assert entry.base <= len(records) + 2 * MARK + GAP


async def test_an_archiver_that_is_killed_while_it_compacts_leaves_every_record(settings: Settings) -> None:
    await at_each(COMPACTION, settings, check_compaction)


async def check_compaction(settings: Settings, runfold: Runfold, step: str) -> None:
    async with archiving(settings):
        expected = await ended_runs(settings, runfold, 2)
        await gone(settings, [run for run, _ in expected])
    expected += await ended_runs(settings, runfold, 2, name="later")
    compacting = settings.model_copy(update={"archive_compact_files": 2})

    async with archiver_process(compacting, step) as process:
        assert await asyncio.wait_for(process.wait(), SECONDS) == -signal.SIGKILL
    async with archiving(compacting):
        await gone(settings, [run for run, _ in expected])

        async def is_compacted() -> bool:
            snapshot = await asyncio.to_thread(archive_of(settings).events.latest)
            return snapshot is not None and len(snapshot.files()) == 1

        await until(is_compacted, what="the compaction", seconds=SECONDS)
    await check(settings, runfold, expected)


async def test_two_archivers_on_an_object_store_store_nothing_twice(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with object_store() as (_, variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        there = settings.model_copy(
            update={"archive_url": SecretUrl("s3://bucket/archive"), "archive_compact_files": 2}
        )
        async with Runfold.of(there.log()) as runfold:
            async with archiving(there):
                expected = await ended_runs(there, runfold, 6)
                # A group of its own gives the second one the same partitions.
                monkeypatch.setattr(service, "_GROUP", "archiver-beside")
                async with archiving(there):
                    expected += await ended_runs(there, runfold, 6, name="later")
                    await gone(there, [run for run, _ in expected])
            await check(there, runfold, expected)


async def test_two_archivers_that_both_believe_to_be_the_owner_store_nothing_twice(
    settings: Settings, runfold: Runfold, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await ended_runs(settings, runfold, 8 * ROUNDS)

    async with archiving(settings):
        # A group of its own gives the second one the same partitions.
        monkeypatch.setattr(service, "_GROUP", "archiver-beside")
        async with archiving(settings):
            expected += await ended_runs(settings, runfold, 8 * ROUNDS, name="later")
            await gone(settings, [run for run, _ in expected])
    await check(settings, runfold, expected)


async def test_several_archivers_share_the_partitions(
    own_settings: OwnSettings, settings: Settings, runfold: Runfold
) -> None:
    async with archiving(settings), archiving(settings):
        expected = await ended_runs(settings, runfold, 20)
        await gone(settings, [run for run, _ in expected])
    await check(settings, runfold, expected)


async def test_a_record_that_comes_after_the_seal_is_archived_before_the_topic_goes(
    settings: Settings,
) -> None:
    await at_each(["after the entry", "after the commit", "before the deletion"], settings, check_late_record)


async def check_late_record(settings: Settings, runfold: Runfold, step: str) -> None:
    [(run, _)] = await ended_runs(settings, runfold, 1)
    async with archiver_process(settings, step) as process:
        assert await asyncio.wait_for(process.wait(), SECONDS) == -signal.SIGKILL
    before = await entry_of_run(runfold, run)
    assert before is not None

    topic = settings.log().topics.run(run.run_id, run.life.log_id)
    publisher = runfold.connection.publisher
    # A sealed topic takes only records that are smaller than any event.
    late = await publisher.wait(await publisher.send(topic, Outgoing(b"late", None)))
    assert late.offset == before.end
    records = await records_of(settings, run)
    assert records[-1].key == b"late"

    async with archiving(settings):
        await gone(settings, [run])
    await check_archived(settings, [(run, records)])
    after = await entry_of_run(runfold, run)
    assert after is not None
    assert (after.base, after.sealed_base) == (before.base, None)
    assert after.archived_records == len(records)
    assert late.offset < after.end < after.base


async def test_a_kafka_that_is_killed_at_work_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    async with LocalStack(data_dir=tmp_path / "stack") as stack:
        own = partial(Settings, kafka=stack.kafka, mongo=stack.mongo)
        settings = archive_settings(own, tmp_path / "archive")
        # An archiver that names Kafka soon.
        impatient = settings.model_copy(update={"publish_timeout_seconds": 5.0})
        async with Runfold.of(settings.log()) as runfold, archiving(impatient) as archiver:
            expected = await ended_runs(settings, runfold, 10)
            await stack.kafka_server.kill()

            async def is_named() -> bool:
                try:
                    await archiver.check_ready()
                except UnavailableError as error:
                    return error.server == "Kafka"
                return False

            await until(is_named, what="Kafka in readiness", seconds=SECONDS)
            await stack.kafka_server.start()
            await gone(settings, [run for run, _ in expected])
            await check(settings, runfold, expected)


async def test_the_service_says_what_it_did_and_ends_by_sigterm(
    settings: Settings, runfold: Runfold, tmp_path: Path
) -> None:
    expected = await ended_runs(settings, runfold)
    port = free_port()
    service_process = ForkedService(
        "archiver",
        [sys.executable, "-m", "runfold.cli", "serve", "archiver", "--port", str(port)],
        ready=ready_url(f"http://127.0.0.1:{port}/health/ready"),
        log=tmp_path / "archiver.log",
        env=environment(settings),
        start_seconds=START_SECONDS,
        grace_seconds=SECONDS,
    )
    await service_process.start()
    try:
        await gone(settings, [run for run, _ in expected])
        async with httpx.AsyncClient(timeout=SECONDS) as client:
            metrics = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    finally:
        process = service_process._process
        await service_process.stop()
    assert process is not None
    assert process.returncode == 128 + signal.SIGTERM
    assert f"runfold_archived_runs_total {RUNS:.1f}" in metrics
    assert f"runfold_archived_records_total {4 * RUNS:.1f}" in metrics
    assert "runfold_archiver_failures_total 0.0" in metrics
    await check(settings, runfold, expected)
