"""For people who know Goa-AI: its memory store and its run store, with Runfold behind them.

    stores = RunfoldStores(runfold)
    await stores.append_events("support", "r-1", UserMessage(message="Where is my parcel?"))
    snapshot = await stores.load_run("support", "r-1")

The verbs have the names and the meaning of Goa-AI's: appending opens the run, and a run that does
not exist loads empty. `load_run` and `load_run_record` read the log, so they include everything
that was written before. Docstrings say where a log differs from a table.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from pydantic import AwareDatetime, BaseModel, ConfigDict

from runfold.client.envelope import event_of
from runfold.client.run import Run
from runfold.client.run_cache import Runs
from runfold.client.runfold import Runfold
from runfold.ids import new_event_id
from runfold_projections.admission import Admitted
from runfold_projections.run import RunRecord, fold
from runfold_schemas.codec import new_data, parse_event
from runfold_schemas.data import Data
from runfold_schemas.errors import InvalidEventError, RunEndedError, RunNotFoundError
from runfold_schemas.events import AnyEvent
from runfold_schemas.runs import (
    ABOUT_THE_RUN,
    ENDINGS,
    RunCanceled,
    RunCompleted,
    RunFailed,
    RunLabeled,
    RunPaused,
    RunResumed,
    RunStarted,
    Status,
)


class MemoryEvent(NamedTuple):
    """An entry of a run's memory: the type of an event, and the fields of its data."""

    type: str
    data: Mapping[str, Any]
    timestamp: datetime | None = None
    labels: Mapping[str, str] = {}


class Snapshot(NamedTuple):
    """The events of a run, in the order of its log. Status, phase and labels of the run are not
    among them: these are in its record.

    `meta` holds `log_id`, and `next_offset`, the offset after the last event of the snapshot. It is
    empty for an unknown run.
    """

    agent_id: str
    run_id: str
    events: tuple[AnyEvent, ...] = ()
    meta: Mapping[str, Any] = {}

    def filter_by_type(self, type_: str) -> list[AnyEvent]:
        """The events of one kind, oldest first."""
        return [event for event in self.events if event.type == type_]

    def latest(self, type_: str) -> AnyEvent | None:
        """The last event of one kind."""
        return next((event for event in reversed(self.events) if event.type == type_), None)


class Record(BaseModel):
    """The record of a run. `upsert_run` writes only the fields that are set; times that it returns
    are read from the log.
    """

    model_config = ConfigDict(frozen=True)

    agent_id: str
    run_id: str
    session_id: str | None = None
    turn_id: str | None = None
    status: Status = "pending"
    started_at: AwareDatetime | None = None
    updated_at: AwareDatetime | None = None
    labels: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    """Any JSON. A failed run's `error`, if it is a string, is also the run's error."""


class MemoryStore(Protocol):
    """The history of runs."""

    async def append_events(
        self, agent_id: str, run_id: str, *events: MemoryEvent | Data | AnyEvent
    ) -> None: ...

    async def load_run(self, agent_id: str, run_id: str) -> Snapshot: ...


class RunStore(Protocol):
    """The records of runs."""

    async def upsert_run(self, record: Record) -> None: ...

    async def load_run_record(self, run_id: str) -> Record | None: ...


class RunfoldStores:
    """Both stores over one connection. Every verb may raise `UnavailableError`."""

    def __init__(self, runfold: Runfold) -> None:
        self._runfold = runfold
        self._runs = Runs()

    async def append_events(self, agent_id: str, run_id: str, *events: MemoryEvent | Data | AnyEvent) -> None:
        """Appends `events` next to each other, all or none. Opens the run if it does not exist.

        An `event_id` that is appended again counts once. Events of a run that has ended are marked
        late. Raises `InvalidEventError`, `EventTooLargeError`, `RunConflictError` if the run
        belongs to another agent, and `RunEndedError` for an event that would change the status or
        phase of an ended run.
        """
        run, _ = await self._runs.open(self._runfold, agent_id=agent_id, run_id=run_id)
        appended = [_event_of(run, event) for event in events]
        changes_run = any(event.type in ABOUT_THE_RUN for event in appended)
        await run.publish_batch(appended, late=run.ended and not changes_run)

    async def load_run(self, agent_id: str, run_id: str) -> Snapshot:
        """The events that were appended to the run. Empty if this agent has no such run."""
        run = await self._find(run_id)
        if run is None or run.life.agent_id != agent_id:
            return Snapshot(agent_id, run_id)
        history = [admitted async for admitted in run.history()]
        events = tuple(event for event in _counting(history) if event.type not in ABOUT_THE_RUN)
        next_offset = history[-1].record.offset + 1
        return Snapshot(agent_id, run_id, events, {"log_id": run.life.log_id, "next_offset": next_offset})

    async def upsert_run(self, record: Record) -> None:
        """Opens the run, or publishes the changes of `record`: status, turn, labels, metadata.

        Labels and metadata are merged with those of the run, because a log forgets nothing. A new
        run starts at `started_at`. Changes have the timestamp `updated_at`. Raises `RunEndedError`
        for a change of the status after the end, `InvalidEventError` for a return to pending, and
        `RunConflictError` if the run belongs to another agent or session.
        """
        run, _ = await self._runs.open(
            self._runfold,
            agent_id=record.agent_id,
            run_id=record.run_id,
            session_id=record.session_id,
            turn_id=record.turn_id,
            labels=record.labels,
            pending=record.status == "pending",
            started_at=record.started_at,
        )
        current = await _record_of(run)
        changes = [
            run.event(data, turn_id=record.turn_id, timestamp=record.updated_at)
            for data in _changes(current, record)
        ]
        await run.publish_batch(changes, late=run.ended)

    async def load_run_record(self, run_id: str) -> Record | None:
        """The record, folded from the run's log. None if there is no such run."""
        run = await self._find(run_id)
        return await _record_of(run) if run is not None else None

    async def _find(self, run_id: str) -> Run | None:
        try:
            return await self._runs.get(self._runfold, run_id)
        except RunNotFoundError:
            return None


def _event_of(run: Run, entry: MemoryEvent | Data | AnyEvent) -> AnyEvent:
    if isinstance(entry, MemoryEvent):
        return parse_event(
            {
                "type": entry.type,
                "data": dict(entry.data),
                "event_id": new_event_id(),
                "run_id": run.run_id,
                "timestamp": entry.timestamp or datetime.now(UTC),
                "labels": dict(entry.labels),
            }
        )
    event = run.event(entry) if isinstance(entry, Data) else event_of(entry, run.run_id)
    if event.run_id != run.run_id:
        message = f"run_id: the event belongs to run {event.run_id!r}, not {run.run_id!r}"
        raise InvalidEventError(message, field="run_id")
    return event


def _counting(history: list[Admitted]) -> Iterator[AnyEvent]:
    return (admitted.event for admitted in history if admitted.counts and admitted.event is not None)


async def _record_of(run: Run) -> Record:
    history = [admitted async for admitted in run.history()]
    folded = fold(RunRecord(run_id=run.run_id), history)
    metadata: dict[str, Any] = {}
    for event in _counting(history):
        if isinstance(event.data, RunLabeled):
            metadata.update(event.data.metadata)
    return Record(**folded.model_dump(include=set(Record.model_fields)), metadata=metadata)


def _changes(current: Record, record: Record) -> Iterator[Data]:
    """The events that change the run from `current` to `record`."""
    labels = _new_entries(current.labels, record.labels)
    metadata = _new_entries(current.metadata, record.metadata)
    if labels or metadata or record.turn_id not in (None, current.turn_id):
        yield new_data(RunLabeled, labels=labels, metadata=metadata)
    if record.status != current.status:
        yield from _transition(current, record)


def _new_entries(current: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if name not in current or current[name] != value}


def _transition(current: Record, record: Record) -> Iterator[Data]:
    if current.status in ENDINGS.values():
        raise RunEndedError(record.run_id)
    match record.status:
        case "pending":
            raise InvalidEventError(
                f"status: a {current.status} run cannot become pending again", field="status"
            )
        case "running":
            yield RunStarted() if current.status == "pending" else RunResumed()
        case "paused":
            if current.status == "pending":
                yield RunStarted()
            yield RunPaused()
        case "completed":
            yield RunCompleted()
        case "failed":
            error = record.metadata.get("error")
            yield RunFailed(error=error if isinstance(error, str) else "")
        case "canceled":
            yield RunCanceled()
