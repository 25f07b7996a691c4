"""The audit log: a line for each request, and what happens if it cannot be written."""

import errno
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import Response, StreamingResponse

from runfold.http import audit_log
from runfold.http.app import new_app
from runfold.http.audit_log import FileAuditLog
from runfold.http.audited_ids import note_ids, note_scope
from runfold.http.authentication import Proof
from runfold.http.guards import add_guards
from runfold.http.principal import Principal
from runfold.http.route_rules import RULES, Rule, Whose
from runfold.http.settings import HttpSettings
from runfold_schemas.errors import ConfigurationError, UnauthenticatedError

OWN_RULES = {
    f"{method} {path}": Rule((frozenset(),), Whose.NOBODY)
    for method, path in (
        ("GET", "/v1/runs/{run_id}/events/{event_id}"),
        ("POST", "/v1/runs"),
        ("GET", "/fails"),
        ("GET", "/noted"),
        ("GET", "/v1/runs/{run_id}/follow"),
    )
}
ANN = Principal(tenant="acme", subject="key:k1", scopes=frozenset())


async def ready() -> None:
    """Always."""


async def authenticate(credential: str) -> Proof:
    if credential != "right":
        raise UnauthenticatedError("wrong")
    return Proof(ANN, lambda: True)


@asynccontextmanager
async def service(path: Path, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = new_app("any", ready=ready, rules=RULES | OWN_RULES, **options)

    @app.get("/v1/runs/{run_id}/events/{event_id}")
    async def read(run_id: str, event_id: str) -> list[str]:
        return [run_id, event_id]

    @app.post("/v1/runs")
    async def write() -> dict[str, str]:
        written.append("run")
        return {"written": "yes"}

    @app.get("/noted")
    async def note(session_id: str = "", user: str = "", user_id: str = "", note: str = "") -> Response:
        note_scope({"user": "bob"})
        note_ids({"app": None})
        return Response(headers={"Location": "/v1/runs/r%201"})

    @app.get("/fails")
    async def fail() -> None:
        raise ZeroDivisionError

    @app.get("/v1/runs/{run_id}/follow")
    async def follow(run_id: str) -> StreamingResponse:
        async def frames() -> AsyncIterator[bytes]:
            seen.extend(lines(path))
            yield f"data: {run_id}\n\n".encode()

        return StreamingResponse(frames(), media_type="text/event-stream")

    written: list[str] = []
    seen: list[dict[str, Any]] = []
    app.state.written, app.state.seen = written, seen
    add_guards(app, HttpSettings(), FileAuditLog(str(path)))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("10.0.0.7", 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        client.app = app  # type: ignore[attr-defined]
        yield client


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


async def test_a_line_has_principal_route_ids_and_status(path: Path):
    async with service(path, authenticate=authenticate) as client:
        headers = {"Authorization": "Bearer right"}
        await client.get("/v1/runs/a%2Fb/events/100%2525", headers=headers)

    (line,) = lines(path)
    assert line.pop("time").endswith("+00:00")
    assert 0 < line.pop("seconds") < 10
    assert len(line.pop("request")) == 36
    assert line == {
        "kind": "request",
        "tenant": "acme",
        "principal": "key:k1",
        "client": "10.0.0.7",
        "method": "GET",
        "route": "/v1/runs/{run_id}/events/{event_id}",
        "ids": {"run_id": "a/b", "event_id": "100%25"},
        "status": 200,
    }


async def test_a_line_has_the_ids_of_the_query_of_the_handler_and_of_what_was_created(path: Path):
    async with service(path, authenticate=authenticate) as client:
        headers = {"Authorization": "Bearer right"}
        await client.get("/noted?session_id=s%201&user=ann&user_id=bea&note=SECRET", headers=headers)
        await client.get("/noted", headers=headers)

    first, second = lines(path)
    noted = {"scope.user": "bob", "created": "/v1/runs/r%201"}
    assert first["ids"] == {"session_id": "s 1", "user": "ann", "user_id": "bea", **noted}
    assert second["ids"] == noted


async def test_bodies_queries_and_credentials_are_in_no_line(path: Path):
    async with service(path, authenticate=authenticate) as client:
        for credential in ("right", "wrong-SECRET"):
            headers = {"Authorization": f"Bearer {credential}", "X-Other": "SECRET"}
            await client.post("/v1/runs?SECRET=SECRET", json={"SECRET": "SECRET"}, headers=headers)
            await client.get("/SECRET/unknown", headers=headers)
        await client.get("/v1/runs/r?key=SECRET")

    assert [line["status"] for line in lines(path)] == [422, 404, 401, 401, 401]
    assert {line["principal"] for line in lines(path)} == {"key:k1", None}
    assert "SECRET" not in path.read_text()


async def test_no_id_ends_its_line_or_forges_another(path: Path):
    async with service(path) as client:
        await client.get('/v1/runs/r%0A{"status":200}%E2%80%A8/events/%1B[31m%22%5C')

    (line,) = lines(path)
    assert line["ids"] == {"run_id": 'r\n{"status":200}\u2028', "event_id": '\x1b[31m"\\'}
    assert path.read_bytes().isascii()
    assert len(path.read_text().splitlines()) == 1


async def test_a_stream_has_a_line_when_it_begins_and_when_it_ends(path: Path):
    async with service(path) as client:
        await client.get("/v1/runs/r/follow")
        seen = client.app.state.seen  # type: ignore[attr-defined]

    begin, end = lines(path)
    assert seen == [begin]
    assert (begin["kind"], end["kind"]) == ("stream_start", "stream_end")
    assert begin["request"] == end["request"]
    assert end["status"] == 200
    assert end["seconds"] >= begin["seconds"]


async def test_a_failure_is_a_line_and_a_probe_is_none(path: Path):
    async with service(path) as client:
        for url in ("/fails", "/health/live", "/health/ready", "/metrics"):
            await client.get(url)
        await client.get("/v1/runs", headers={"Host": "evil.example"})

    assert [(line["route"], line["status"]) for line in lines(path)] == [
        ("/fails", 500),
        ("/metrics", 200),
        (None, 421),
    ]


async def test_requests_are_refused_while_the_log_cannot_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    write = os.write
    async with service(path) as client:
        written = client.app.state.written  # type: ignore[attr-defined]
        monkeypatch.setattr(audit_log.os, "write", full_disk(room=10))
        in_progress = await client.post("/v1/runs")
        refused = [await client.post("/v1/runs"), await client.get("/health/ready")]
        alive = await client.get("/health/live")
        monkeypatch.setattr(audit_log.os, "write", write)
        accepted = await client.get("/v1/runs/r/events/e")

    assert (in_progress.status_code, alive.status_code, accepted.status_code) == (200, 200, 200)
    assert [answer.status_code for answer in refused] == [503, 503]
    assert refused[0].headers["Retry-After"] == "1"
    assert refused[0].json()["type"] == "urn:runfold:problem:AuditLogUnavailable"
    assert written == ["run"]
    torn, *whole = path.read_text().splitlines()
    assert len(torn) == 10
    assert [json.loads(line)["method"] for line in whole] == ["POST", "GET"]
    own = [record for record in caplog.records if record.name == audit_log.__name__]
    assert [record.getMessage().partition(":")[0] for record in own] == [
        "requests are refused",
        "requests are answered again",
    ]


def full_disk(*, room: int) -> Callable[[int, bytes], int]:
    """Writes as a disk does that has space for so many bytes."""
    write = os.write

    def write_some(number: int, line: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        line = line[:room]
        room -= len(line)
        return write(number, line)

    return write_some


def test_a_renamed_file_is_followed_by_a_new_one(path: Path):
    log = FileAuditLog(str(path))
    log.append(b"1\n")
    path.rename(path.with_suffix(".1"))
    log.append(b"2\n")
    path.unlink()
    log.append(b"3\n")
    log.close()

    assert path.with_suffix(".1").read_text() == "1\n"
    assert path.read_text() == "3\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_processes_share_a_file_and_keep_what_is_there(path: Path):
    path.write_text("before\n")
    logs = [FileAuditLog(str(path)) for _ in range(2)]
    for number in range(4):
        logs[number % 2].append(b"%d\n" % number)

    assert path.read_text() == "before\n0\n1\n2\n3\n"


def test_standard_output_is_a_log(capfd: pytest.CaptureFixture[str]):
    log = FileAuditLog("stdout")
    log.append(b"1\n")
    log.close()
    log.append(b"2\n")

    assert capfd.readouterr().out == "1\n2\n"


@pytest.mark.parametrize("name", ["", "missing/audit.jsonl"])
def test_a_file_that_cannot_be_written_ends_the_start(tmp_path: Path, name: str):
    with pytest.raises(ConfigurationError, match=r"RUNFOLD_AUDIT_LOG: the file .* cannot be written: "):
        FileAuditLog(str(tmp_path / name))
