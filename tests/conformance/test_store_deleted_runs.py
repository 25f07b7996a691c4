"""Deleted runs, with both drivers: unreadable at once and for good, whoever has not heard of it."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from runfold.store.runs import RunFilter, RunState, RunStore
from runfold_projections.run import RunRecord
from runfold_schemas.catalog import Life

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def runs(store, edition) -> RunStore:
    return RunStore(store, edition)


def state(run_id: str = "run-1", *, log_id: str = "life-1", **record) -> RunState:
    fields = {"agent_id": "a", "session_id": "s", "started_at": NOON, "next_offset": 1} | record
    return RunState(log_id=log_id, partition=3, active=True, record=RunRecord(run_id=run_id, **fields))


def life(run_id: str = "run-1", *, log_id: str = "life-1") -> Life:
    return Life(run_id=run_id, log_id=log_id, agent_id="a", session_id="s")


async def check_gone(runs: RunStore, run_id: str = "run-1") -> None:
    assert await runs.get(run_id) is None
    assert await runs.get_many([run_id]) == {}
    assert await runs.active([3]) == []
    assert await runs.of_session("s") == []
    assert [one async for one in runs.progress()] == []
    for wanted in (RunFilter(), RunFilter(session_id="s"), RunFilter(agent_id="a")):
        assert await runs.list(wanted, limit=5) == ([], None)


async def test_a_deleted_run_is_found_by_no_read_and_known_to_be_deleted(runs):
    await runs.add([state()])

    await runs.delete([(life(), 3)])

    await check_gone(runs)
    assert await runs.ends([3]) == await runs.ends_of(["run-1"]) == {"run-1": ("life-1", -1)}


async def test_nothing_brings_a_deleted_run_back(runs):
    await runs.add([state()])
    await runs.delete([(life(), 3)])

    assert await runs.add([state(), state(log_id="life-2")]) == []
    await runs.save([state(next_offset=50)])
    await runs.set_active(["run-1"], active=True)
    await runs.delete([(life(), 3)])

    await check_gone(runs)


async def test_a_run_can_be_deleted_before_it_was_heard_of(runs):
    await runs.delete([(life(), 3)])

    assert await runs.add([state()]) == []
    await check_gone(runs)
    assert await runs.ends([3]) == {"run-1": ("life-1", -1)}


async def test_deleting_another_life_of_a_run_leaves_the_one_that_stands(runs):
    await runs.add([state()])

    await runs.delete([(life(log_id="life-2"), 3), (life("other"), 3)])

    assert await runs.get("run-1") == state()
    assert await runs.get("other") is None


async def test_deleting_leaves_the_other_runs_of_the_session(runs):
    await runs.add([state(), state("run-2", log_id="life-2"), state("run-3", session_id="t")])

    await runs.delete([(life(), 3)])
    await runs.delete([])

    assert await runs.of_session("s") == [state("run-2", log_id="life-2").life]
    assert set(await runs.get_many(["run-1", "run-2", "run-3"])) == {"run-2", "run-3"}


async def test_a_run_that_is_added_saved_and_deleted_at_once_is_deleted(runs):
    for number in range(20):
        name = f"run-{number}"
        await asyncio.gather(
            runs.add([state(name)]),
            runs.delete([(life(name), 3)]),
            runs.save([replace(state(name, next_offset=9), ended=True)]),
        )
        if await runs.get(name) is not None:  # the deletion had met the adding, and is repeated by its owner
            await runs.delete([(life(name), 3)])
        await check_gone(runs, name)
