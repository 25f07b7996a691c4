"""What is read while there are two editions: of each run the one that reaches further, whoever
finds it first.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest

from runfold.query.stored_runs import StoredRuns
from runfold.settings import Settings
from runfold.store import editions as pointing
from runfold.store.database import connect
from runfold.store.editions import Editions, new_edition
from runfold.store.runs import RunFilter, RunState, RunStore
from runfold_projections.run import RunRecord
from runfold_schemas.runs import Status

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Joined(NamedTuple):
    """Two editions that are read together."""

    old: RunStore
    new: RunStore
    stored_runs: StoredRuns

    async def listed(self, *, status: str, limit: int = 10) -> list[str]:
        found: list[str] = []
        cursor = None
        while True:
            states, cursor = await self.stored_runs.runs(RunFilter(status=status), limit=limit, cursor=cursor)
            found += [state.run_id for state in states]
            if cursor is None:
                return found


@pytest.fixture
async def joined(mongo: str, database: str) -> AsyncIterator[Joined]:
    async with connect(mongo, database) as opened:
        editions = Editions(opened)
        old, new = await editions.current_or_first(), new_edition()
        await editions.begin(old=old, new=new)
        await editions.join(old=old, new=new)
        async with StoredRuns(Settings(mongo=mongo, database=database)) as snapshots:
            yield Joined(RunStore(opened, old), RunStore(opened, new), snapshots)


def state(number: int, status: Status, *, next_offset: int) -> RunState:
    record = RunRecord(
        run_id=f"run-{number}",
        status=status,
        started_at=NOON + timedelta(seconds=number),
        next_offset=next_offset,
    )
    return RunState(log_id=f"log-{number}", partition=0, active=True, record=record)


async def test_a_run_is_listed_by_its_furthest_state_only(joined: Joined):
    await joined.old.add([state(1, "completed", next_offset=2), state(2, "running", next_offset=1)])
    await joined.new.add([state(1, "running", next_offset=1), state(2, "completed", next_offset=2)])

    assert await joined.listed(status="running") == []
    assert await joined.listed(status="completed") == ["run-2", "run-1"]


async def test_pages_hold_every_run_once_though_some_are_over(joined: Joined):
    running = [state(number, "running", next_offset=1) for number in range(12)]
    over = [state(number, "completed", next_offset=2) for number in range(0, 12, 3)]
    await joined.old.add(running)
    await joined.new.add([*over, *(one for one in running if one.run_id not in {run.run_id for run in over})])

    for limit in (1, 2, 5, 12):
        listed = await joined.listed(status="running", limit=limit)
        assert listed == [f"run-{number}" for number in range(11, -1, -1) if number % 3]


async def test_what_a_dead_rebuild_left_is_not_read_for_ever(
    mongo: str, database: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pointing, "JOINED_SECONDS", 0.0)
    async with connect(mongo, database) as opened:
        editions = Editions(opened)
        old, new = await editions.current_or_first(), new_edition()
        await RunStore(opened, old).add([state(1, "running", next_offset=1)])
        await RunStore(opened, new).add(
            [state(1, "running", next_offset=1), state(2, "running", next_offset=1)]
        )
        await editions.begin(old=old, new=new)
        await editions.join(old=old, new=new)

        async with StoredRuns(Settings(mongo=mongo, database=database)) as snapshots:
            states, _ = await snapshots.runs(RunFilter(), limit=10)

    assert [one.run_id for one in states] == ["run-1"]


async def test_after_a_switch_both_are_read_and_after_everything_was_dropped_the_new_one_alone(
    mongo: str, database: str
):
    async with (
        connect(mongo, database) as opened,
        StoredRuns(Settings(mongo=mongo, database=database)) as read,
    ):
        editions = Editions(opened)

        async def names() -> list[str]:
            await read.look()
            return [edition.name for edition in await read.editions()]

        first, second = await editions.current_or_first(), new_edition()
        assert await names() == [first]
        await editions.begin(old=first, new=second)
        await editions.join(old=first, new=second)
        await editions.switch(old=first, new=second)
        assert await names() == [second, first]

        await editions.drop_all()
        third = await editions.current_or_first()
        assert await names() == [third]


async def test_a_pointer_that_a_restored_backup_moves_back_is_followed(mongo: str, database: str):
    async with connect(mongo, database) as opened:
        first, second = await Editions(opened).current_or_first(), new_edition()
        async with StoredRuns(Settings(mongo=mongo, database=database)) as snapshots:
            read = []
            for name in (first, second, first):
                await opened["pointers"].update_one({}, {"$set": {"current": name}})
                await snapshots.look()
                edition = await snapshots.current()
                read.append(edition.name if edition else None)

    assert read == [first, second, first]
