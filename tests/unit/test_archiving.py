"""What counts as archived."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from tests.archived import FENCE, LOG_ID, archive_in, read, segment_of

from runfold.archive.segments import Segment
from runfold.archiver.archiving import Archiving
from runfold.archiver.known_runs import KnownRun
from runfold.archiver.segment_reading import SealedLog, SegmentReader
from runfold_schemas.catalog import Life


class _Topics:
    """A reader of topics that have one message each."""

    async def parts(self, logs: Sequence[SealedLog]) -> list[Segment]:
        return [segment_of(log.run.run_id, "a") for log in logs]

    async def again(self, segments: Sequence[tuple[Segment, str]]) -> list[Segment]:
        return [segment for segment, _ in segments]


def sealed_log(run_id: str) -> SealedLog:
    run = KnownRun(0, Life(run_id=run_id, log_id=LOG_ID, agent_id="desk"), 0)
    return SealedLog(run, FENCE, f"topic of {run_id}", 0, position=0, end=1)


async def test_a_run_that_the_archive_alone_has_as_deleted_does_not_count_as_archived(tmp_path: Path):
    archive, logs = archive_in(tmp_path), [sealed_log("run-1"), sealed_log("run-2")]
    await archive.delete(["run-1"])
    topics = cast(SegmentReader, _Topics())

    done = await Archiving(archive, first=topics, second=topics).archive(logs, compares=True)

    assert [log.run.run_id for log in done] == ["run-2"]
    assert logs[0].run.failure is not None
    assert logs[1].run.failure is None
    assert len(await read(archive, "run-2")) == 1
