"""Runs for an archiver, and what the servers have of them."""

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from tests.processes import until
from tests.servers import OwnSettings

from runfold import Run, Runfold, UserMessage
from runfold.archive.archive import Archive
from runfold.archive.checking import damaged_runs
from runfold.archive.opening import opened
from runfold.archiver.service import Archiver
from runfold.log.catalog import folded_segments, partition_of, segments_key
from runfold.log.leaders import Leaders
from runfold.log.reader import read, read_segment
from runfold.log.sealing import settled_ends
from runfold.log.topic_list import topic_leaders
from runfold.settings import Settings
from runfold_schemas.catalog import Segments
from runfold_schemas.codec import Record

SECONDS = 180.0
"""How long the work of an archiver may take: another one may have to notice first that the one
before has died.
"""


def archive_settings(own_settings: OwnSettings, folder: Path, **changes: Any) -> Settings:
    """Settings of an installation with an archive in a folder, of which an archiver is fast."""
    return own_settings(
        **{
            "archive_url": f"file://{folder}",
            "archive_after_seconds": 0.1,
            "archive_delete_seconds": 0.1,
            "session_timeout_seconds": 6,
            "partitions": 1,
            **changes,
        }
    )


def archive_of(settings: Settings) -> Archive:
    assert settings.archive_url is not None
    return opened(settings.archive_url, settings.prefix)


@asynccontextmanager
async def archiving(settings: Settings) -> AsyncIterator[Archiver]:
    """An archiver at work."""
    async with Archiver(settings) as archiver:
        await until(partial(works, archiver), what="the archiver", seconds=SECONDS)
        yield archiver


async def works(archiver: Archiver) -> bool:
    try:
        await archiver.check_ready()
    except Exception:  # noqa: BLE001  # not yet
        return False
    return True


async def opened_run(runfold: Runfold, run_id: str, *messages: str) -> Run:
    run = await runfold.open_run(agent_id="desk", run_id=run_id)
    for message in messages:
        await run.publish(UserMessage(message=message))
    return run


async def end(runfold: Runfold, run: Run) -> None:
    """Ends a run, and says so in the catalog as its projector does."""
    await run.complete()
    await note_end(runfold, run)


async def note_end(runfold: Runfold, run: Run) -> None:
    await runfold.connection.announce(run.life.model_copy(update={"ended": True}))


async def records_of(settings: Settings, run: Run, base: int = 0) -> list[Record]:
    """What the topic of a run has."""
    log = settings.log()
    topic = log.topics.segment(run.run_id, run.life.log_id, base)
    async with Leaders.connect(log) as leaders:
        end = (await settled_ends(leaders, [topic], timeout_seconds=SECONDS)).ends[topic]
        reading = read_segment(log, topic, first_offset=base, end=end, leaders=leaders)
        return [record async for fetched in reading for record in fetched.records]


async def archived_records(settings: Settings, run: Run) -> list[Record]:
    """What the archive has of a run."""
    return [record async for record in archive_of(settings).records(run.run_id, run.life.log_id)]


async def entry_of_run(runfold: Runfold, run: Run) -> Segments | None:
    """Where the run's log lies, by the catalog."""
    topics, key = runfold.connection.topics, segments_key(run.run_id)
    entry: Segments | None = None
    async for records in read(
        runfold.connection.settings, topics.catalog, partition=partition_of(topics, run.run_id)
    ):
        for record in records:
            if record.key == key:
                entry = folded_segments(entry, key, record.value)
    return entry


async def run_topics(settings: Settings) -> set[str]:
    """The topics of runs that Kafka has."""
    log = settings.log()
    async with Leaders.connect(log) as leaders:
        return {
            name async for name, _ in topic_leaders(leaders.client) if name.startswith(log.topics.run_prefix)
        }


async def gone(settings: Settings, runs: Iterable[Run], base: int = 0) -> None:
    """Returns when no topics of this base are left."""
    topics = settings.log().topics
    names = {topics.segment(run.run_id, run.life.log_id, base) for run in runs}

    async def all_gone() -> bool:
        return not names & await run_topics(settings)

    await until(all_gone, what="the deletion of the topics", seconds=SECONDS)


async def check_archived(settings: Settings, expected: Sequence[tuple[Run, list[Record]]]) -> None:
    """Compares the archive with what was in topics: nothing is lost, changed or doubled."""
    for run, records in expected:
        assert await archived_records(settings, run) == records
    assert await damaged_runs(archive_of(settings)) == []


async def answers(client: httpx.AsyncClient, run: Run) -> dict[str, bytes]:
    """What the API says of a run, in every way of reading, without its position, which counts a
    seal's mark too, and without where its log lies.
    """
    path = f"/v1/runs/{run.run_id}"
    texts = {}
    for each in (
        path,
        f"{path}/ledger",
        f"{path}/ledger?format=openai-chat",
        f"{path}/ledger?source=log",
        f"{path}/ledger?as_of_offset=3",
        f"{path}/events",
        "/v1/runs?agent_id=agent",
    ):
        answer = await client.get(each)
        assert answer.status_code == 200, (each, answer.text)
        texts[each] = re.sub(rb'"(next|end)_offset": ?[0-9]+|,"archive":{[^}]*}', b"", answer.content)
    return texts
