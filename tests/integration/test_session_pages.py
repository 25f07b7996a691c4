"""Lists of large sessions: a page ends by its size, and the next one goes on right there."""

import httpx
from tests.querying import Projected
from tests.session_verbs import check_rebuild

from runfold.remote.sessions import HttpSessions
from runfold.settings import Settings

MEGABYTE = 1_000_000


async def pages(api: httpx.AsyncClient, app: str, limit: int) -> list[list[str]]:
    found: list[list[str]] = []
    parameters = {"app": app, "limit": limit}
    while True:
        response = (await api.get("/v1/sessions", params=parameters)).raise_for_status()
        found.append([one["session_id"].removeprefix(app) for one in response.json()["sessions"]])
        if (cursor := response.json()["next_cursor"]) is None:
            return found
        parameters["cursor"] = cursor


async def test_a_page_of_large_sessions_ends_by_its_size(api: httpx.AsyncClient, app: str):
    sizes = [1, 5 * MEGABYTE, 1, 3 * MEGABYTE, 3 * MEGABYTE, 3 * MEGABYTE]
    for number, size in enumerate(sizes):
        asked = {"app": app, "session_id": f"{app}{number}", "state": {"k": "v" * size}}
        (await api.post("/v1/sessions", json=asked)).raise_for_status()

    assert await pages(api, app, 1000) == [["5", "4"], ["3", "2", "1"], ["0"]]
    assert await pages(api, app, 2) == [["5", "4"], ["3", "2"], ["1"], ["0"]]
    async with HttpSessions(str(api.base_url)) as sessions:
        first, cursor = await sessions.list(app=app)
        second, _ = await sessions.list(app=app, cursor=cursor)
    assert [one.session_id.removeprefix(app) for one in (*first, *second)] == ["5", "4", "3", "2", "1"]


async def test_a_limit_that_is_more_than_is_read_at_once_is_kept(api: httpx.AsyncClient, app: str):
    for number in range(60):
        (await api.post("/v1/sessions", json={"app": app, "session_id": f"{app}{number}"})).raise_for_status()
    newest_first = [f"{number}" for number in reversed(range(60))]

    assert await pages(api, app, 1000) == [newest_first]
    assert await pages(api, app, 55) == [newest_first[:55], newest_first[55:]]


async def test_everything_is_the_same_after_a_rebuild_from_the_logs(settings: Settings, stored: Projected):
    await check_rebuild(settings)
