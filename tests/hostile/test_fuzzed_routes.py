"""Every route, with requests that are derived from the API's own document: none is answered with an
error of the server but one that says why.
"""

import asyncio
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from tests.attacks import Stack
from tests.fuzzing import Fuzz, vertex_document
from tests.killing import ROUNDS

from runfold.api.app import build_app
from runfold.settings import Settings

EXAMPLES, GOOGLE_EXAMPLES = 2 * ROUNDS, ROUNDS
"""Requests of each kind for each operation."""


@pytest.fixture(scope="module")
async def known(under_attack: Stack) -> dict[str, str]:
    """Ids that exist."""
    client = under_attack.client
    run = (await _post(client, "/v1/runs", {"agent_id": "a"}))["run_id"]
    session = (await _post(client, "/v1/sessions", {"app": "a", "user": "u"}))["session_id"]
    bank = (await _post(client, "/v1/banks", {"bank_id": "123"}))["bank_id"]
    memory = {"memory_id": "m", "scope": {"user": "u"}, "fact": "likes tea"}
    await _post(client, f"/v1/banks/{bank}/memories", memory)
    return {
        "run_id": run,
        "session_id": session,
        "bank_id": bank,
        "memory_id": "m",
        "app": "a",
        "user": "u",
        "engine": bank,
        "session": session,
        "memory": "m",
    }


async def _post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(path, json=body)
    assert response.status_code in {200, 201}, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_no_route_answers_with_an_error_that_does_not_say_why(under_attack: Stack, known):
    fuzz = Fuzz(under_attack.url, known)
    document = (await under_attack.client.get("/openapi.json")).json()

    async with under_attack.attacked("requests derived from the document"):
        await asyncio.to_thread(fuzz.send, document, examples=EXAMPLES)

    print(fuzz.statuses)
    assert fuzz.faults == []
    assert fuzz.statuses["422"] > 50, "most invalid requests are refused"
    assert fuzz.statuses["200"] + fuzz.statuses["201"] > 30, "and others come further"


async def test_nor_does_one_of_googles(under_attack: Stack, known):
    # Google has a status of its own for what a service does not offer.
    fuzz = Fuzz(under_attack.url, known, explained=frozenset({501, 503, 504}))

    async with under_attack.attacked("requests to Google's routes"):
        await asyncio.to_thread(fuzz.send, vertex_document(_vertex_app()), examples=GOOGLE_EXAMPLES)

    print(fuzz.statuses)
    assert fuzz.faults == []
    assert fuzz.statuses["400"] > 30


def _vertex_app() -> Starlette:
    """The application behind Google's paths."""
    routes = build_app(Settings()).router.routes
    return next(route.app for route in routes if isinstance(getattr(route, "app", None), Starlette))
