"""What a writer saves, and when: no state before what its events change of shared state is
durable.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from runfold.ids import new_event_id
from runfold.projector.active import ActiveRun, Folded
from runfold.projector.suspects import Suspects
from runfold.projector.unsaved import FORWARDS_BYTES_MAX, UnsavedRuns
from runfold.projector.writer import Writer, _pause_after
from runfold.store.runs import RunState
from runfold_projections.run import RunRecord
from runfold_projections.state import Forward, Value
from runfold_schemas.codec import new_event
from runfold_schemas.sessions import StateChanged
from runfold_schemas.topics import Topics


class Runs:
    def __init__(self) -> None:
        self.saved: list[tuple[str, int]] = []

    async def deleted_logs(self, run_ids: Iterable[str]) -> list[str]:
        return []

    async def save(self, states: Iterable[RunState]) -> None:
        self.saved += [(one.run_id, one.record.next_offset) for one in states]


class Values:
    def __init__(self) -> None:
        self.saved: list[Any] = []

    async def save(self, entries: Iterable[Any]) -> None:
        self.saved += list(entries)

    async def delete(self, scopes: Sequence[str]) -> None:
        self.saved = [one for one in self.saved if one.scope not in scopes]


class Gate:
    """A forwarder that waits until it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.sent: list[str] = []
        self.undecided: set[str] = set()

    async def forward(self, forwards: Sequence[Forward]) -> set[str]:
        await self.open.wait()
        self.sent += [one.event.run_id for one in forwards if one.event.run_id not in self.undecided]
        return self.undecided


def state(run_id: str, next_offset: int) -> RunState:
    record = RunRecord(run_id=run_id, next_offset=next_offset)
    return RunState(log_id=f"log-{run_id}", partition=0, active=True, record=record)


def folded(run_id: str, next_offset: int, *, changes: int = 0, size: int = 10, **values: int) -> Folded:
    event = new_event(
        StateChanged(),
        event_id=new_event_id(),
        run_id=run_id,
        timestamp=datetime(2026, 1, 1, tzinfo=UTC),
        state_delta={"app:x": 1},
    )
    before, after = state(run_id, next_offset - 1), state(run_id, next_offset)
    return Folded(
        run=ActiveRun(after, "topic"),
        undecodable=[],
        pages=[],
        ended=False,
        before=before,
        state=after,
        values={key: Value(value, next_offset - 1) for key, value in values.items()},
        forwards=[Forward("app:a", event)] * changes,
        forwards_bytes=size * changes,
    )


@asynccontextmanager
async def writing() -> AsyncIterator[tuple[Writer, Runs, Values, Gate]]:
    runs, values, gate = Runs(), Values(), Gate()
    writer = Writer(
        Topics("test"),
        None,  # type: ignore[arg-type]  # nothing is published here
        SimpleNamespace(pages=None, runs=runs, values=values),  # type: ignore[arg-type]  # and no page written
        forwarder=gate,  # type: ignore[arg-type]
        safeguards=SimpleNamespace(suspects=Suspects(), skips=None),  # type: ignore[arg-type]
        has_keys=None,  # type: ignore[arg-type]  # nothing is buried
    )
    forwarding = asyncio.create_task(writer.forward_changes())
    try:
        yield writer, runs, values, gate
    finally:
        forwarding.cancel()
        with suppress(asyncio.CancelledError):
            await forwarding


async def save(writer: Writer, *folds: Folded) -> None:
    for one in folds:
        writer.save_soon(one)
    await writer.flush()
    await turns()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_run_that_waits_while_another_is_forwarded_is_not_saved_beyond_what_waits():
    async with writing() as (writer, runs, _, gate):
        await save(writer, folded("first", 1, changes=1))
        await save(writer, folded("second", 1, changes=1))
        await save(writer, folded("second", 2))

        assert runs.saved == []

        gate.open.set()
        await turns()
        await writer.flush()

        assert gate.sent == ["first", "second"]
        assert sorted(runs.saved) == [("first", 1), ("second", 2)]


async def test_a_run_that_goes_on_changing_shared_state_is_saved_as_far_as_it_is_forwarded():
    async with writing() as (writer, runs, _, gate):
        await save(writer, folded("run", 1, changes=1))
        await save(writer, folded("run", 2, changes=1))
        gate.open.set()
        await turns()
        gate.open.clear()
        await save(writer, folded("run", 3, changes=1))

        # What was forwarded while the gate was open is saved; the third change still waits.
        assert gate.sent == ["run", "run"]
        assert runs.saved[-1] == ("run", 2)


async def test_a_run_that_cannot_be_judged_yet_holds_up_no_other():
    async with writing() as (writer, runs, _, gate):
        gate.undecided = {"doubtful"}
        gate.open.set()
        await save(writer, folded("doubtful", 1, changes=1), folded("run", 1, changes=1))
        await writer.flush()

        assert gate.sent == ["run"]
        assert runs.saved == [("run", 1)]


async def test_of_a_run_that_was_deleted_nothing_is_saved_any_more():
    async with writing() as (writer, runs, values, gate):
        writer.save_soon(folded("run", 1, secret=1))
        await writer.forget(["log-run"])
        await writer.flush()
        await save(writer, folded("waiting", 1, changes=1, secret=1))
        await writer.forget(["log-waiting"])
        gate.open.set()
        await turns()
        await writer.flush()

        assert (runs.saved, values.saved) == ([], [])


def test_states_are_saved_again_soon_after_a_saving_that_was_held_up():
    assert [_pause_after(seconds) for seconds in (0.001, 0.5, 60)] == [0.25, 2, 10]


def test_what_there_is_no_room_for_is_left_to_be_folded_again():
    unsaved = UnsavedRuns()
    unsaved.add(folded("large", 1, changes=1, size=FORWARDS_BYTES_MAX))
    unsaved.add(folded("small", 1, changes=1))
    unsaved.add(folded("quiet", 1))
    unsaved.add(folded("small", 2))

    assert [part.state.run_id for part in unsaved.waiting()] == ["large"]
    assert {one.state.run_id: one.state.record.next_offset for one in unsaved.all()} == {
        "large": 1,
        "small": 0,
        "quiet": 1,
    }
    assert unsaved.to_fold_again() == []

    unsaved.mark_forwarded(unsaved.waiting())

    assert [one.state.run_id for one in unsaved.to_fold_again()] == ["small"]


async def test_a_suspected_run_is_not_saved_beyond_what_was_dropped():
    async with writing() as (writer, runs, values, gate):
        gate.open.set()
        save_all = values.save

        async def save_but_five(entries: Iterable[Any]) -> None:
            entries = list(entries)
            if any(entry.value.value == 5 for entry in entries):
                raise OverflowError
            await save_all(entries)

        values.save = save_but_five  # type: ignore[method-assign]
        await save(writer, folded("run", 6, changes=1, a=5), folded("other", 1, a=1))
        # The run is active until its examination, so further events of it are written.
        await save(writer, folded("run", 7, b=6))
        await writer.flush()

        assert runs.saved == [("other", 1)]
        assert [entry.value.value for entry in values.saved] == [1]
        assert "run" in writer._suspects


async def test_a_run_whose_forwarding_fails_is_not_saved_beyond_its_forwards():
    async with writing() as (writer, runs, _, gate):
        forward_all = gate.forward

        async def forward_but_bad(forwards: Sequence[Forward]) -> set[str]:
            if any(each.event.run_id == "bad" for each in forwards):
                raise OverflowError
            return await forward_all(forwards)

        gate.forward = forward_but_bad  # type: ignore[method-assign]
        gate.open.set()
        await save(writer, folded("bad", 1, changes=1), folded("run", 1, changes=1))
        await save(writer, folded("bad", 2))
        await writer.flush()

        assert gate.sent == ["run"]
        assert runs.saved == [("run", 1)]


def test_events_of_a_run_that_was_dropped_take_no_room():
    unsaved = UnsavedRuns()
    unsaved.add(folded("run", 1))
    (run,) = unsaved.all()
    unsaved.forget(["log-run"])
    for _ in range(2):
        unsaved.extend(run, folded("run", 2, changes=1, size=FORWARDS_BYTES_MAX))
    unsaved.add(folded("other", 1, changes=1))

    assert [part.state.run_id for part in unsaved.waiting()] == ["other"]
