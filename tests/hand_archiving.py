"""Archives runs by hand, step by step, as an archiver does."""

from tests.processes import until
from tests.segmenting import announce, seal, topic_of

from runfold import Run, Runfold
from runfold.archive.opening import opened
from runfold.archive.segments import Segment
from runfold.archive.table import Fence
from runfold.log.leaders import Leaders
from runfold.log.reader import read
from runfold_schemas.catalog import Segments
from runfold_schemas.topics import Partition


async def archive_run(runfold: Runfold, run: Run, base: int = 0) -> Segments:
    """Seals the topic of this base, copies its records to the archive, and deletes it."""
    entry = await seal(runfold, run.life, base)
    await copy_to_archive(runfold, run, entry)
    return await delete_sealed(runfold, run, entry)


async def copy_to_archive(runfold: Runfold, run: Run, entry: Segments) -> None:
    assert entry.sealed_base is not None
    settings = runfold.connection.settings
    assert settings.archive_url is not None
    reading = read(settings, topic_of(runfold, run.life), first_offset=entry.sealed_base, end=entry.end)
    records = [record async for each in reading for record in each]
    segment = Segment(run.run_id, run.life.log_id, entry.sealed_base, entry.end, records)
    archive = opened(settings.archive_url, settings.prefix)
    assert await archive.append([segment], fences=[Fence("by-hand", 1)]) is not None


async def delete_sealed(runfold: Runfold, run: Run, entry: Segments) -> Segments:
    assert entry.sealed_base is not None
    settings = runfold.connection.settings
    assert settings.archive_url is not None
    segments = await opened(settings.archive_url, settings.prefix).segments([run.run_id])
    archived = entry.model_copy(
        update={
            "sealed_base": None,
            "archived_end": segments[-1].end,
            "archived_records": sum(each.record_count for each in segments),
        }
    )
    await announce(runfold, archived)
    topic = topic_of(runfold, run.life, entry.sealed_base)
    await runfold.connection.delete_topic(topic)

    async def is_gone() -> bool:
        async with Leaders.connect(runfold.connection.settings) as leaders:
            return not await leaders.ends([Partition(topic, 0)])

    await until(is_gone, what="the deletion of the topic")
    return archived
