"""Under which names and from which pages an HTTP service is used."""

import re
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from tests.documentation import ROOT

from runfold.http.app import new_app
from runfold.http.connections import with_open_files
from runfold.http.guards import add_guards
from runfold.http.problems import problem
from runfold.http.route_rules import RULES, Rule, Whose
from runfold.http.settings import HttpSettings, is_loopback
from runfold.settings import Settings

PAGE = "https://app.example"
COMPOSE = (ROOT / "docker-compose.yml").read_text()


async def ready() -> None:
    """Always."""


@asynccontextmanager
async def guarded(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = new_app("any", ready=ready, rules=RULES | {"POST /write": Rule((), Whose.NOBODY)})

    @app.post("/write")
    async def write() -> dict[str, str]:
        return {"written": "yes"}

    add_guards(app, HttpSettings(**settings))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def status(client: httpx.AsyncClient, host: str, path: str = "/write") -> int:
    method = "POST" if path == "/write" else "GET"
    return (await client.request(method, path, headers={"Host": host})).status_code


async def test_a_compressed_body_is_refused():
    async with guarded(host="127.0.0.1") as client:
        refused = await client.post("/write", content=b"{}", headers={"Content-Encoding": "gzip"})
        accepted = await client.post("/write", content=b"{}", headers={"Content-Encoding": "identity"})

    assert refused.status_code == 415
    assert refused.json()["detail"].endswith("send the body uncompressed")
    assert accepted.status_code == 200


async def test_a_service_on_loopback_has_loopback_names_and_those_that_are_allowed():
    async with guarded(host="127.0.0.1") as client:
        assert await status(client, "localhost:1") == 200
        assert await status(client, "runfold.example") == 421
        assert await status(client, "runfold.example", "/health/live") == 200
    async with guarded(host="::1", allowed_hosts="Runfold.example, *.inside.example") as client:
        for host in (
            "runfold.example",
            "a.inside.example:80",
            "a.b.inside.example",
            "127.0.0.1",
            "[::1]:8080",
        ):
            assert await status(client, host) == 200
        for host in ("inside.example", "xinside.example", "a.runfold.example", "runfold.example.evil"):
            assert await status(client, host) == 421


async def test_another_service_has_any_name_unless_it_has_a_list():
    async with guarded(host="0.0.0.0") as client:
        assert await status(client, "api") == 200
    async with guarded(host="0.0.0.0", allowed_hosts="api") as client:
        assert await status(client, "api:8080") == 200
        assert await status(client, "other") == 421
    async with guarded(host="127.0.0.1", allowed_hosts="*") as client:
        assert await status(client, "anything") == 200


async def test_the_compose_file_answers_no_name_that_a_web_page_chose():
    environment = re.findall(
        r"^  RUNFOLD_(HOST|ALLOWED_HOSTS|AUTHENTICATION): (?:\${\w+:-)?([\w.]+)", COMPOSE, re.MULTILINE
    )
    settings = {name.lower(): value for name, value in environment}
    assert settings["host"] == "0.0.0.0"

    async with guarded(**settings) as client:
        assert await status(client, "evil.example:8080") == 421
        assert await status(client, "localhost:8080") == 200
        assert await status(client, "api:8080") == 200


async def test_a_refused_request_is_counted():
    async with guarded() as client:
        await status(client, "evil.example")
        metrics = (await client.get("/metrics")).text

    assert 'runfold_request_seconds_count{method="POST",route="none",status="421"}' in metrics


async def test_an_allowed_page_may_ask_and_write_and_read():
    asking = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x"}

    async with guarded(allowed_origins=f"{PAGE}, http://localhost:3000") as client:
        asked = await client.options("/write", headers=asking)
        answer = await client.post("/write", headers={"Origin": PAGE})
        other = await client.post("/write", headers={"Origin": "https://evil.example"})

    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "access-control-allow-credentials" not in answer.headers
    assert (answer.status_code, other.status_code) == (200, 403)
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 200),
        ({"Origin": "http://localhost"}, 200),
        ({"Origin": PAGE, "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": PAGE, "Content-Type": "application/json"}, 200),
        ({"Origin": PAGE, "Content-Type": "application/x-ndjson; charset=utf-8"}, 200),
        ({"Origin": PAGE}, 403),
        ({"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Origin": PAGE, "Content-Type": "text/plain; application/json"}, 403),
        ({"Origin": PAGE, "Content-Type": "multipart/form-data"}, 403),
    ],
)
async def test_a_page_of_another_origin_writes_only_what_browsers_ask_about(
    headers: dict[str, str], code: int
):
    async with guarded() as client:
        answer = await client.post("/write", headers=headers)

    assert answer.status_code == code


@pytest.mark.parametrize("host", ["api:8080", "http://api", "a b", "*.*.example", "api/", "a..b"])
def test_a_host_that_no_header_can_have_is_refused(host: str):
    with pytest.raises(ValidationError, match="is not a host"):
        Settings(allowed_hosts=f"fine.example,{host}")


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/", "https://a/b", "*.example"])
def test_an_origin_that_no_page_can_have_is_refused(origin: str):
    with pytest.raises(ValidationError, match="is not an origin"):
        Settings(allowed_origins=origin)


def test_loopback_is_known_by_all_its_names():
    assert all(map(is_loopback, ("localhost", "LocalHost", "127.0.0.1", "127.9.9.9", "::1", "[::1]")))
    assert not any(
        map(is_loopback, ("0.0.0.0", "::", "", "localhost.evil.example", "10.0.0.1", "127.1.evil"))
    )


def test_fewer_open_files_mean_fewer_connections(monkeypatch: pytest.MonkeyPatch, caplog):
    limits: dict[str, tuple[int, int]] = {"now": (1_024, 4_096)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.update(now=pair))

    assert with_open_files(HttpSettings(connections_max=2_000)).connections_max == 2_000
    assert limits["now"] == (2_300, 4_096)
    assert not caplog.messages
    assert with_open_files(HttpSettings(connections_max=10_000)).connections_max == 3_796
    assert "4096 files" in caplog.text


def test_a_problem_quotes_only_the_beginning_of_long_input():
    answer = problem(HTTPStatus.NOT_FOUND, f"run {'x' * 20_000!r} does not exist", run_id="x" * 20_000)
    short = problem(HTTPStatus.NOT_FOUND, f"run {'x' * 90!r} does not exist", run_id="x" * 1_000)

    assert len(answer.body) < 500
    assert b"does not exist" in answer.body
    assert b"x" * 1_000 in short.body
    assert b"does not exist" in short.body
