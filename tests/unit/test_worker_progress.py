"""What a worker knows of its partitions of the catalog."""

from types import SimpleNamespace
from typing import Any

from runfold.projector.fold_lag import Waiting
from runfold.projector.progress import WorkerProgress
from runfold_schemas.topics import Partition

CATALOG = "t.runs"


def test_an_own_partition_waits_until_it_is_read():
    others: Any = SimpleNamespace(reached={})
    progress = WorkerProgress({}, others, others, others, "edition")
    first, second = Partition(CATALOG, 0), Partition(CATALOG, 1)

    progress.expect(CATALOG, {0, 1})
    progress.note_catalog(first, 7, 7)
    assert list(progress.unread) == [second]
    assert progress.waiting({0, 1}) == {second: Waiting(0, None)}

    progress.note_catalog(second, 3, 5)
    assert not progress.unread
    assert progress.waiting({0, 1}) == {second: Waiting(3, 5)}

    progress.expect(CATALOG, {0})
    assert progress.waiting({0}) == {first: Waiting(0, None)}
