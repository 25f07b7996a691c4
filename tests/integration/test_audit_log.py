"""The audit log of a real service."""

import asyncio
import itertools
import json
import sys
from asyncio import create_subprocess_exec, subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import pytest
from tests.processes import environment, http_service, until

from runfold.local import Service, free_port
from runfold.settings import Settings

MARKER = "NEVER-IN-THE-LOG"
REPLY = {
    "object": "chat.completion.chunk",
    "id": "c-1",
    "choices": [{"index": 0, "delta": {"content": MARKER}}],
}


class Audited(NamedTuple):
    """An API with an audit log at `path`."""

    api: Service
    client: httpx.AsyncClient
    path: Path


@pytest.fixture
async def audited(kafka: str, mongo: str, tmp_path: Path) -> AsyncIterator[Audited]:
    name, path, port = f"t{uuid4().hex[:8]}", tmp_path / "audit.jsonl", free_port()
    settings = Settings(kafka=kafka, mongo=mongo, prefix=name, database=name, audit_log=str(path))
    api = http_service("api", settings, tmp_path / "api.log", port=port)
    await api.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield Audited(api, client, path)
    finally:
        await api.stop()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


async def test_reads_writes_and_refusals_are_in_the_log_without_their_contents(
    audited: Audited,
):
    client, path = audited.client, audited.path
    run = {"run_id": "trip/1", "agent_id": "planner", "labels": {"about": MARKER}}
    memory = {"name": MARKER, "fact": MARKER, "scope": {"user": "ann"}}
    answers = [
        await client.post("/v1/runs", json=run, headers={"Idempotency-Key": MARKER}),
        await client.post(
            "/v1/runs/trip%2F1/events", json={"type": "user_message", "data": {"message": MARKER}}
        ),
        await client.get("/v1/runs?agent_id=planner"),
        await client.get(f"/v1/runs?{MARKER}={MARKER}"),
        await client.get("/v1/runs/missing"),
        await client.post("/v1beta1/projects/p/locations/l/reasoningEngines/a%20b/memories", json=memory),
        await client.get("/v1beta1/reasoningEngines/7/memories/8/revisions?filter=" + MARKER),
        await client.get("/v1/nothing/" + MARKER),
    ]

    assert [line["status"] for line in lines(path)] == [answer.status_code for answer in answers]
    assert MARKER not in path.read_text()
    assert [(line["method"], line["route"], line["ids"]) for line in lines(path)] == [
        ("POST", "/v1/runs", {"agent_id": "planner", "created": "/v1/runs/trip%2F1"}),
        ("POST", "/v1/runs/{run_id}/events", {"run_id": "trip/1"}),
        ("GET", "/v1/runs", {"agent_id": "planner"}),
        ("GET", "/v1/runs", {}),
        ("GET", "/v1/runs/{run_id}", {"run_id": "missing"}),
        (
            "POST",
            "/reasoningEngines/{engine}/memories",
            {"project": "p", "location": "l", "engine": "a b", "scope.user": "ann"},
        ),
        ("GET", "/reasoningEngines/{engine}/memories/{memory}/revisions", {"engine": "7", "memory": "8"}),
        ("GET", None, {}),
    ]
    assert {line["principal"] for line in lines(path)} == {"local"}


async def test_streams_in_both_directions_have_two_lines(audited: Audited):
    client, path = audited.client, audited.path
    await client.post("/v1/runs", json={"run_id": "r", "agent_id": "a"})

    async def kinds() -> list[tuple[str, str, int | None]]:
        return [(line["kind"], line["route"], line["status"]) for line in lines(path)[1:]]

    async with client.stream("GET", "/v1/runs/r/follow") as followed:
        assert followed.status_code == 200
        assert await kinds() == [("stream_start", "/v1/runs/{run_id}/follow", 200)]

    async def ended() -> bool:
        return len(await kinds()) == 2

    await until(ended, what="the line of the end")
    said = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        yield f"data: {json.dumps(REPLY)}\n\n".encode()
        await said.wait()
        yield b"data: [DONE]\n\n"

    sending = asyncio.create_task(
        client.post(
            "/v1/runs/r/responses",
            content=chunks(),
            headers={"Content-Type": "text/event-stream"},
        )
    )

    async def begun() -> bool:
        return len(await kinds()) == 3

    await until(begun, what="the line of the stream")
    said.set()
    answer = await sending

    assert await kinds() == [
        ("stream_start", "/v1/runs/{run_id}/follow", 200),
        ("stream_end", "/v1/runs/{run_id}/follow", 200),
        ("stream_start", "/v1/runs/{run_id}/responses", None),
        ("stream_end", "/v1/runs/{run_id}/responses", answer.status_code),
    ]
    assert MARKER not in path.read_text()


async def test_every_answer_that_a_client_got_is_in_the_log_of_a_killed_service(audited: Audited):
    answered: list[str] = []

    async def read_on(worker: int) -> None:
        for number in itertools.count():
            run_id = f"{worker}-{number}"
            await audited.client.get(f"/v1/runs/{run_id}")
            answered.append(run_id)

    readers = [asyncio.create_task(read_on(worker)) for worker in range(8)]

    async def reads() -> bool:
        return len(answered) > 200

    await until(reads, what="some hundred answers")
    await audited.api.kill()
    await asyncio.gather(*readers, return_exceptions=True)

    assert set(answered) <= {line["ids"]["run_id"] for line in lines(audited.path)}


async def test_a_service_whose_log_cannot_be_written_does_not_start(kafka: str, mongo: str, tmp_path: Path):
    settings = Settings(kafka=kafka, mongo=mongo, audit_log=str(tmp_path / "missing" / "audit.jsonl"))
    process = await create_subprocess_exec(
        *(sys.executable, "-m", "runfold.cli", "serve", "api", "--port", str(free_port())),
        env=environment(settings),
        stderr=subprocess.PIPE,
    )
    _, log = await asyncio.wait_for(process.communicate(), 60)

    assert process.returncode == 2
    assert log.decode().strip().endswith("audit.jsonl cannot be written: No such file or directory")
    assert "Traceback" not in log.decode()
