"""What every HTTP service of ours answers, whatever it serves."""

import httpx

from runfold.http.app import new_app


async def ready() -> None:
    """Always."""


async def test_the_root_leads_to_the_documentation():
    app = new_app("any", ready=ready)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://any") as client:
        answer = await client.get("/", follow_redirects=True)

    assert answer.url.path == "/docs"
    assert answer.status_code == 200
