"""Runs, sessions and memories through the HTTP API alone, for tests that compare two services.

`write` makes some of each kind under a name, and `read` reads all of them.
"""

from collections.abc import Mapping
from typing import Any

import httpx

Answers = dict[str, Any]
"""Documents by the request that reads them."""

TALK: list[dict[str, Any]] = [
    {"type": "user_message", "data": {"message": "Is there a train to Lyon? 🚆"}, "turn_id": "t-1"},
    {"type": "thinking", "data": {"text": "Look it up.", "signature": "sig", "final": True}},
    {"type": "tool_call", "data": {"tool_call_id": "c", "tool_name": "trains", "payload": {"n": 2**70}}},
    {"type": "tool_result", "data": {"tool_call_id": "c", "result": ["07:04", None, 0.1]}},
    {"type": "assistant_message", "data": {"message": "At 07:04."}},
]
SCOPE = {"user": "ann"}
PROVIDERS = ("anthropic", "bedrock", "gemini", "openai-chat", "openai-responses")


async def write(api: httpx.AsyncClient, name: str) -> None:
    """Runs of the agent `name`, sessions of the app `name`, and memories in the bank `name`."""
    await _write_runs(api, name)
    await _write_sessions(api, name)
    await _write_memories(api, name)


async def _write_runs(api: httpx.AsyncClient, name: str) -> None:
    for command in ({"action": "complete"}, {"action": "fail", "error": "no train"}, {"action": "pause"}):
        run_id = f"{name}-{command['action']}"
        opened = {"run_id": run_id, "agent_id": name, "labels": {"kind": command["action"]}}
        await post(api, "/v1/runs", opened)
        await post(api, f"/v1/runs/{run_id}/events", TALK)
        await post(api, f"/v1/runs/{run_id}/status", command)
    # The call of this run has no result, so no provider accepts the ledger before the repair.
    await post(api, "/v1/runs", {"run_id": f"{name}-cut", "agent_id": name})
    await post(api, f"/v1/runs/{name}-cut/events", TALK[:3])
    await post(api, f"/v1/runs/{name}-cut/repair", {})


async def _write_sessions(api: httpx.AsyncClient, name: str) -> None:
    for kind in ("open", "ended", "deleted"):
        session_id = f"{name}/{kind}"
        path = f"/v1/sessions/{session_id.replace('/', '%2F')}"
        state = {"step": 0, f"user:{kind}": [kind], f"app:{kind}": {"n": 2**70}, "temp:x": 1}
        created = {"session_id": session_id, "app": name, "user": "ann", "state": state}
        await post(api, "/v1/sessions", created | {"labels": {"kind": kind}, "ttl_seconds": 3600})
        for number, event in enumerate(TALK):
            delta = {"step": number, "user:latest": number, "app:latest": f"{kind} {number}"}
            await post(api, f"{path}/events", event | {"state_delta": delta})
        await send(api, "PATCH", path, {"display_name": f"A talk, {kind}"})
        if kind == "ended":
            await post(api, f"{path}/end", {})
        if kind == "deleted":
            await send(api, "DELETE", path)


async def _write_memories(api: httpx.AsyncClient, name: str) -> None:
    bank = f"/v1/banks/{name}"
    await post(api, "/v1/banks", {"bank_id": name, "config": {"display_name": f"The bank {name}"}})
    for memory_id in ("kept", "rolled-back", "deleted"):
        path = f"{bank}/memories/{memory_id}"
        await post(api, f"{bank}/memories", {"memory_id": memory_id, "fact": "likes tea", "scope": SCOPE})
        await send(api, "PATCH", path, {"fact": f"likes coffee, {memory_id}", "metadata": {"sure": True}})
    first = (await get(api, f"{bank}/memories/rolled-back/revisions"))["revisions"][-1]["revision_id"]
    await post(api, f"{bank}/memories/rolled-back/rollback", {"revision_id": first})
    await send(api, "DELETE", f"{bank}/memories/deleted")
    facts = [{"fact": "Lives in Lyon", "topics": [{"custom": "home"}]}]
    await post(api, f"{bank}/memories/generate", {"scope": SCOPE, "facts": facts})


async def read(api: httpx.AsyncClient, name: str) -> Answers:
    """Everything that the API gives of what was written under `name`."""
    answers: Answers = {}
    runs = await _pages(api, f"/v1/runs?agent_id={name}", "runs", answers)
    for run in runs:
        path = f"/v1/runs/{run['run_id']}"
        formats = [f"{path}/ledger?format={provider}&lossy=drop" for provider in PROVIDERS]
        for each in (path, f"{path}/events", f"{path}/ledger", f"{path}/ledger?source=log", *formats):
            answers[each] = await get(api, each)
    sessions = await _pages(api, f"/v1/sessions?app={name}", "sessions", answers)
    for session in sessions:
        path = f"/v1/sessions/{session['session_id'].replace('/', '%2F')}"
        for each in (path, f"{path}?include=events", f"{path}/events?newest=2", f"{path}/ledger"):
            answers[each] = await get(api, each)
        await _pages(api, f"{path}/runs?", "runs", answers)
    for path in (f"/v1/apps/{name}/state", f"/v1/apps/{name}/users/ann/state", f"/v1/banks/{name}"):
        answers[path] = await get(api, path)
    await _read_memories(api, f"/v1/banks/{name}/memories", answers)
    return answers


async def _read_memories(api: httpx.AsyncClient, path: str, answers: Answers) -> None:
    memories = await _pages(api, f"{path}?", "memories", answers)
    # A list has no memories that were deleted; their revisions are there still.
    memory_ids = [memory["memory_id"] for memory in memories]
    for memory_id in [*memory_ids, "deleted"] if "kept" in memory_ids else memory_ids:
        revisions = await _pages(api, f"{path}/{memory_id}/revisions?", "revisions", answers)
        for revision in revisions:
            of_revision = f"{path}/{memory_id}/revisions/{revision['revision_id']}"
            answers[of_revision] = await get(api, of_revision)
    query = {"scope": SCOPE, "query": "Where does she live?", "limit": 2}
    answers[f"{path}/retrieve"] = await post(api, f"{path}/retrieve", query)


async def _pages(api: httpx.AsyncClient, path: str, name: str, answers: Answers) -> list[Any]:
    """All items of a list, read by pages of two."""
    items: list[Any] = []
    parameters = {"limit": "2"}
    while True:
        # Cursors belong to the service that made them, so they are followed and not compared.
        page = await get(api, str(httpx.URL(path).copy_merge_params(parameters)))
        items += page[name]
        if page["next_cursor"] is None:
            answers[path] = items
            return items
        parameters["cursor"] = page["next_cursor"]


def agree(older: Any, newer: Any) -> bool:
    """Whether `newer` has all values of `older`. The newer version may add fields, and may explain
    a fault in other words.
    """
    match older, newer:
        case Mapping(), Mapping():
            names = older.keys() - ({"text"} if {"rule", "text"} <= older.keys() else set())
            return all(name in newer and agree(older[name], newer[name]) for name in names)
        case list(), list():
            return len(older) == len(newer) and all(map(agree, older, newer))
        case _:
            return bool(older == newer)


async def get(api: httpx.AsyncClient, path: str) -> Any:
    return await send(api, "GET", path)


async def post(api: httpx.AsyncClient, path: str, body: Any) -> Any:
    return await send(api, "POST", path, body)


async def send(api: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    """The answer's document. An error fails the test."""
    response = await api.request(method, path, json=body)
    assert response.is_success, f"{method} {path}: {response.status_code} {response.text}"
    return response.json() if response.content else None
