"""What clients read and write as text: lines of JSON, and times in queries."""

import json

from tests.http_sessions import created, notes
from tests.ingesting import note


async def test_lines_have_no_ends_within(api, app):
    ends = "a\u2028b\u2029c\u0085d"
    path = await created(api, app=app, state={"k": ends})
    await api.post(f"{path}/events", json={"type": "planner_note", "data": {"note": ends}})
    run_id = (await api.get(path)).json()["run_id"]

    whole = await api.get(path, params={"include": "events"}, headers={"Accept": "application/x-ndjson"})
    async with api.stream("GET", f"/v1/runs/{run_id}/follow") as followed:
        note = await anext(line async for line in followed.aiter_lines() if '"note"' in line)

    session, *events = [json.loads(line) for line in whole.text.splitlines()]
    assert session["state"] == {"k": ends}
    assert events[-1]["event"]["data"]["note"] == ends
    assert json.loads(note.removeprefix("data: "))["event"]["data"]["note"] == ends


async def test_a_time_of_a_query_may_have_lost_its_plus(api, app, runfold):
    path = await created(api, app=app)
    await api.post(f"{path}/events", json=note(timestamp="2026-01-01T12:00:00Z"))
    run_id = (await api.get(path)).json()["run_id"]

    for route in (f"{path}/events?since=", f"/v1/runs/{run_id}?as_of_time="):
        for text in ("2026-01-01T13:00:00+01:00", "2026-01-01T13:00:00%2B01:00", "20260101", "@1767268800"):
            answer = await api.get(f"{route}{text}")
            assert answer.status_code in (200, 404), answer.text
        refused = await api.get(f"{route}20260101120000")
        assert refused.status_code == 422, refused.text
    assert len(await notes(api, path, since="2026-01-01T13:00:00+01:00")) == 1
    assert await notes(api, path, since="2026-01-01T13:00:01+01:00") == []
