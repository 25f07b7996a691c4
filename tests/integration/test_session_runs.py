"""A session's run is a run like any other: what is published to it by itself is the session's as
well.
"""

import httpx
from tests.querying import Projected
from tests.session_verbs import check_rebuild

from runfold import PlannerNote, Runfold
from runfold.remote.sessions import HttpSessions
from runfold.settings import Settings


async def test_what_the_run_changes_of_shared_state_is_read_at_once(url: str, runfold: Runfold):
    async with HttpSessions(url) as sessions:
        record = (await sessions.create(app="shop", user="ann")).record
        run = await runfold.get_run(record.run_id)

        await run.publish(PlannerNote(note="n"), state_delta={"user:k": 1, "app:k": 2, "k": 3})
        found = (await sessions.view(record.session_id)).state
        await run.publish_batch([run.event(PlannerNote(note="n"), state_delta={"user:k": 4})])
        after = (await sessions.view(record.session_id)).state

    assert found == {"user:k": 1, "app:k": 2, "k": 3}
    assert after == {"user:k": 4, "app:k": 2, "k": 3}


async def test_so_it_is_over_http(url: str):
    async with HttpSessions(url) as sessions, httpx.AsyncClient(base_url=url, timeout=60) as client:
        record = (await sessions.create(app="store", user="ann")).record
        event = {"type": "planner_note", "data": {"note": "n"}, "state_delta": {"user:k": 1, "app:k": 2}}

        published = await client.post(f"/v1/runs/{record.run_id}/events", json=event)

        assert published.status_code == 201
        assert (await sessions.view(record.session_id)).state == {"user:k": 1, "app:k": 2}


async def test_everything_is_the_same_after_a_rebuild_from_the_logs(settings: Settings, stored: Projected):
    await check_rebuild(settings)
