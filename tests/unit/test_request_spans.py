"""Spans of requests: a caller without a credential gets none and decides on none."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx

from runfold.http.app import new_app
from runfold.telemetry import spans
from runfold_schemas.errors import UnauthenticatedError

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def ready() -> list[str]:
    return []


async def refuse(credential: str) -> Any:
    raise UnauthenticatedError(f"unknown: {len(credential)}")


async def test_a_traceparent_needs_a_credential(monkeypatch):
    parents: list[str | None] = []

    @contextmanager
    def noted(traceparent: str | None) -> Iterator[Any]:
        parents.append(traceparent)
        yield SimpleNamespace(is_recording=lambda: False, set_attribute=lambda *_: None)

    monkeypatch.setattr(spans, "is_on", lambda: True)
    monkeypatch.setattr(spans, "request_span", noted)

    async def ask(path: str, **options: Any) -> int:
        transport = httpx.ASGITransport(new_app("any", ready=ready, **options))
        async with httpx.AsyncClient(transport=transport, base_url="http://any") as client:
            return (await client.get(path, headers={"traceparent": PARENT})).status_code

    assert await ask("/v1/runs", authenticate=refuse) == 401
    assert parents == []
    await ask("/openapi.json", authenticate=refuse)
    assert parents == [None]
    await ask("/v1/runs")
    assert parents == [None, PARENT]
