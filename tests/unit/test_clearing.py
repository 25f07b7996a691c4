"""Which runs an archiver removes because they are deleted."""

from pathlib import Path

from tests.archived import FENCE, LOG_ID, archive_in, read, segment_of

from runfold.archiver.clearing import Clearing
from runfold.archiver.deleted_runs import DeletedRuns
from runfold.log.catalog import segments_key


async def test_a_deleted_second_life_leaves_the_archived_run_with_its_id_alone(tmp_path: Path):
    archive, kept, published = archive_in(tmp_path), segment_of("run-1", "a"), []
    await archive.append([kept, segment_of("run-2", "b")], fences=[FENCE])

    async def publish(records) -> None:
        published.extend(record for _, record in records)

    deleted = DeletedRuns()
    deleted.note_life("run-1", "1" * 32, offset=7)
    deleted.note_life("run-2", LOG_ID, offset=8)
    assert await Clearing(archive, publish).clear(0, deleted)

    assert await read(archive, "run-1") == kept.records
    # Without its entry, readers would not find the run's log in the archive.
    assert [(record.key, record.value) for record in published] == [(segments_key("run-2"), None)]
    assert await archive.known(["run-2"]) == {"run-2"}
    assert not deleted.runs
