"""The work of a worker that the stuck detector watches."""

from collections.abc import Callable

from runfold.log.tail import Tail
from runfold.projector.absent_shared_topics import AbsentSharedTopics
from runfold.projector.backlog import Backlog
from runfold.projector.progress import WorkerProgress
from runfold.projector.shared import SharedTopics
from runfold.projector.stuck import Marks, Steps, Watch
from runfold.projector.suspects import Suspects
from runfold.projector.writer import Writer
from runfold_schemas.topics import Partition

_SWEEP_SECONDS = 60.0
"""A sweep looks at all topics and all stored runs, so it may take a while."""

_REFOLD_SECONDS = 60.0
"""Whole logs may be read for a request, and for mending."""

_ABSENT_SECONDS = 3.0
"""A topic may be late by a second."""

_REWOUND = (
    "topics were created again after their records were stored, and new records do not count; restore"
    " them, or run `runfold rebuild`"
)


class WorkerSteps:
    """What a worker does step by step."""

    def __init__(self) -> None:
        self.taking = Steps()
        self.parking = Steps()
        self.clearing = Steps()
        self.sweeping = Steps()


def watches_of(
    steps: WorkerSteps,
    *,
    writing: Callable[[], Marks],
    tail: Tail,
    shared: SharedTopics,
    absent_topics: AbsentSharedTopics,
    writer: Writer,
    backlog: Backlog,
    suspects: Suspects,
    requests: Steps,
    mending: Steps,
    progress: WorkerProgress,
) -> list[Watch]:
    """The watches of one worker. `writing` has its writes on their way."""

    def taking() -> Marks:
        # Before entries are taken, the worker may have to load thousands of runs.
        return {name: (mark, progress.loaded_runs) for name, mark in steps.taking.waiting().items()}

    def unread() -> Marks:
        # While entries are taken, nobody reads.
        return {} if steps.taking.waiting() else {_name(at): None for at in progress.unread}

    def assignment() -> Marks:
        return {} if absent_topics.owned else {"": None}

    given_up = backlog.given_up
    return [
        Watch("kafka", lambda: _answers(tail, shared.tail), "brokers do not answer", server="Kafka"),
        Watch("run", lambda: _topics(tail), "logs go on and are not folded", given_up=given_up),
        Watch("transaction", lambda: _held(tail), "a producer's transaction holds logs back"),
        Watch("backlog", backlog.waiting, "runs do not catch up", given_up=given_up),
        Watch(
            "log",
            backlog.awaited.waiting,
            "logs do not exist or are too short",
            seconds=_ABSENT_SECONDS,
            given_up=given_up,
        ),
        Watch("shared", lambda: _partitions(shared.tail), "partitions go on and are not folded"),
        Watch("shared_topic", absent_topics.waiting, "topics do not exist", seconds=_ABSENT_SECONDS),
        Watch("shared_log", lambda: _rewound(shared.tail), _REWOUND),
        Watch("shared_write", shared.taking.waiting, "events of shared topics are not stored"),
        Watch("write", writing, "events of runs are not stored"),
        Watch("state", writer.saving.waiting, "states of runs are not saved"),
        Watch("forward", writer.forwarding, "changes of shared state are not forwarded"),
        Watch("merge", writer.merging.waiting, "pages are not merged"),
        Watch("catalog", taking, "entries of the catalog are not taken"),
        Watch("catalog_partition", unread, "partitions of the catalog are not read"),
        Watch("assignment", assignment, "the group gives this projector no partition of the catalog"),
        Watch("parking", steps.parking.waiting, "quiet runs are not parked"),
        Watch("deletion", steps.clearing.waiting, "data of deleted runs is not deleted"),
        Watch(
            "examination",
            suspects.waiting,
            "suspected runs are not examined to the end",
            given_up=suspects.given_up,
        ),
        Watch("request", requests.waiting, "requests of operators are not done", seconds=_REFOLD_SECONDS),
        Watch("mending", mending.waiting, "damaged runs are not folded anew", seconds=_REFOLD_SECONDS),
        Watch(
            "sweep",
            steps.sweeping.waiting,
            "the sweep does not end",
            seconds=_SWEEP_SECONDS,
            is_search=True,
        ),
    ]


def _answers(runs: Tail, shared: Tail) -> Marks:
    """The brokers, once for each of the two connections."""
    return {f"{name} for runs": mark for name, mark in runs.answers().items()} | {
        f"{name} for shared topics": mark for name, mark in shared.answers().items()
    }


def _topics(tail: Tail) -> Marks:
    return {at.topic: position for at, position in tail.behind.items()}


def _held(tail: Tail) -> Marks:
    return {at.topic: position for at, position in tail.held.items()}


def _partitions(tail: Tail) -> Marks:
    return {_name(at): position for at, position in tail.behind.items()}


def _rewound(tail: Tail) -> Marks:
    return {_name(at): position for at, position in tail.rewound.items()}


def _name(at: Partition) -> str:
    return f"{at.topic}-{at.partition}"
