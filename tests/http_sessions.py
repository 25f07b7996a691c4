"""Sessions over HTTP for tests."""

from typing import Any

import httpx


async def created(api: httpx.AsyncClient, **fields: Any) -> str:
    """The path of a new session."""
    response = await api.post("/v1/sessions", json=fields)
    assert response.status_code == 201, response.text
    return response.headers["location"]


async def notes(api: httpx.AsyncClient, path: str, **parameters: Any) -> list[str]:
    response = await api.get(f"{path}/events", params=parameters)
    assert response.status_code == 200, response.text
    return [one["event"]["data"]["note"] for one in response.json()["events"]]
