"""A projector that is stopped, overtaken and continued: what it still had in hand is not in any
session of today.
"""

import asyncio
import os
import signal
from itertools import count
from pathlib import Path

import pytest
from tests.consumer_groups import has_members
from tests.processes import projector, until
from tests.servers import OwnSettings
from tests.session_stores import all_ways, at_work, only_topics_of, stored

from runfold import PlannerNote, Run, Runfold
from runfold.client.session import EventSelection
from runfold.settings import Settings
from runfold_schemas.codec import decode

APP = "shop"
SESSIONS = 8
NOTES = frozenset({"planner_note"})


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings(session_timeout_seconds=6, sweep_seconds=1, wait_timeout_seconds=25)


async def test_a_projector_that_was_overtaken_brings_nothing_of_a_deleted_session_back(
    settings: Settings, tmp_path: Path
) -> None:
    zombie, heir = (projector(settings, tmp_path / f"{name}.log") for name in ("zombie", "heir"))
    ids = [f"s-{number}" for number in range(SESSIONS)]
    async with at_work([zombie, heir]), all_ways(settings) as ways, Runfold.of(settings.log()) as producer:
        async with stored(settings) as projections:
            group = f"{settings.prefix}.projector.{projections.edition}"
        sessions, elsewhere = ways["stored"], ways["http"]
        old = [await sessions.create(app=APP, session_id=one, state={"mark": "old"}) for one in ids]
        runs = [await producer.get_run(one.record.run_id) for one in old]
        going_on = [asyncio.create_task(go_on(run)) for run in runs]
        await until(lambda: has_members(settings, group, 2), what="both projectors in the group")
        await until(lambda: are_long(runs), what="some notes of each session")

        os.killpg(zombie.pid or 0, signal.SIGSTOP)
        try:
            await until(lambda: has_members(settings, group, 1), what="the end of the projector's membership")
            for task in going_on:
                task.cancel()
            await asyncio.wait(going_on)
            await asyncio.gather(*(sessions.delete(one) for one in ids))
            again = [await elsewhere.create(app=APP, session_id=one, state={"mark": "new"}) for one in ids]
            for one in ids:
                await elsewhere.append(one, PlannerNote(note="new"), state_delta={"noted": "new"})
        finally:
            os.killpg(zombie.pid or 0, signal.SIGCONT)
        await until(lambda: has_members(settings, group, 2), what="the projector's return")
        for one in ids:
            await elsewhere.append(one, PlannerNote(note="newer"), state_delta={"noted": "newer"})

        views = [await verbs.view(one, EventSelection(types=NOTES)) for verbs in ways.values() for one in ids]
        run_ids = {one.record.run_id for one in again}
        await until(lambda: only_topics_of(settings, run_ids), what="the end of the deleted runs' topics")
        async with stored(settings) as projections:
            differences = await projections.differences()
            await until(lambda: projections.has_only(run_ids), what="the end of what the deleted runs had")

    assert {view.record.run_id for view in views} == run_ids
    assert all(view.state == {"mark": "new", "noted": "newer"} for view in views)
    assert all([decode(one.value).data.note for one in view.events] == ["new", "newer"] for view in views)
    assert differences == []


async def go_on(run: Run) -> None:
    """Endless: says what is old."""
    for number in count():
        await run.publish(PlannerNote(note="old"), state_delta={"noted": "old", f"old-{number}": number})


async def are_long(runs: list[Run]) -> bool:
    return min([len([one async for one in run.history()]) for run in runs]) > 20
