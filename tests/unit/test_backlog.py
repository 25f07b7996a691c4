"""Places in the tail that become free are taken by runs that wait, without servers."""

from types import SimpleNamespace
from typing import Any

import pytest

from runfold.projector import backlog as module
from runfold.projector.awaited_logs import AwaitedLogs
from runfold.projector.backlog import Backlog
from runfold_schemas.topics import Partition


class Followed:
    """A tail that knows the end of every log."""

    def __init__(self) -> None:
        self.followed: dict[Partition, int] = {}
        self.behind: dict[Partition, int] = {}

    def follow(self, at: Partition, offset: int) -> None:
        self.followed[at] = offset

    def unfollow(self, at: Partition) -> None:
        self.followed.pop(at, None)

    def end(self, at: Partition) -> int | None:
        return self.followed.get(at)


def run(name: str) -> Any:
    return SimpleNamespace(run_id=name, topic=name, at=Partition(name, 0), next_offset=3)


@pytest.mark.parametrize("frees", [Backlog.remove, Backlog.release, Backlog.suspect])
def test_a_place_that_becomes_free_is_taken(monkeypatch: pytest.MonkeyPatch, frees: Any):
    monkeypatch.setattr(module, "_CATCHING_UP_MAX", 1)
    tail: Any = Followed()
    nothing: Any = None
    awaited = AwaitedLogs(nothing, nothing, found=nothing, rest=nothing, set_aside=nothing)
    backlog = Backlog(tail, awaited, set_aside=nothing, park_seconds=1)
    first, second = run("a"), run("b")
    backlog.add(first)
    backlog.add(second)
    assert list(tail.followed) == [first.at]

    frees(backlog, first)

    assert list(tail.followed) == [second.at]
