"""Attacks by a web page of another site, in the browser of somebody who reaches the service.

A page has no credential, but a service on the browser's own machine may ask for none.
"""

from collections.abc import AsyncIterator

import httpx
import pytest
from tests.ingesting import is_ready
from tests.principals import As, authenticated
from tests.processes import until
from tests.querying import projected, served

from runfold.api.app import build_app
from runfold.http.guards import add_guards
from runfold.http.route_rules import RULES
from runfold.http.settings import HttpSettings
from runfold.settings import Settings

EVIL = {"Origin": "https://evil.example"}
OURS = "https://app.example"

FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", "")
"""The types of bodies that a page sends without asking the server first. A `Blob` has none."""

WRITES = sorted(
    name.replace("{", "").replace("}", "").replace(" /reasoningEngines", " /v1/reasoningEngines")
    for name, rule in RULES.items()
    if name.startswith("POST ") and not rule.is_public
)


@pytest.fixture(scope="module")
async def unguarded(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A service without authentication, as `runfold dev` starts it."""
    app = build_app(settings)
    add_guards(app, HttpSettings())
    async with projected(settings), served(app) as client:
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        yield client


@pytest.fixture(scope="module")
async def exposed(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A service with keys, for a page of ours at another origin."""
    app = authenticated(build_app(settings))
    add_guards(app, HttpSettings(allowed_hosts="runfold.example", allowed_origins=OURS))
    async with served(app) as client:
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        yield client


@pytest.mark.parametrize("name", WRITES)
async def test_no_form_of_another_site_writes(unguarded: httpx.AsyncClient, name: str):
    path = name.removeprefix("POST ")
    for origin in ("https://evil.example", "null"):
        for media_type in FORMS:
            headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
            headers |= {"Content-Type": media_type} if media_type else {}
            response = await unguarded.post(path, content=b'{"agent_id": "evil"}', headers=headers)

            assert response.status_code == 403, (name, origin, media_type, response.text)
            assert response.json()["type"] == "urn:runfold:problem:OriginNotAllowed"


async def test_a_page_of_another_site_has_opened_nothing(unguarded: httpx.AsyncClient):
    body = b'{"run_id": "by-a-form", "agent_id": "evil"}'

    refused = await unguarded.post("/v1/runs", content=body, headers={**EVIL, "Content-Type": "text/plain"})

    assert refused.status_code == 403
    assert (await unguarded.get("/v1/runs/by-a-form")).status_code == 404


@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE", "PUT"])
async def test_a_preflight_of_another_site_gets_no_permission(unguarded: httpx.AsyncClient, method: str):
    asked = {
        **EVIL,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": "content-type",
    }

    response = await unguarded.options("/v1/runs", headers=asked)

    assert response.status_code in (400, 405)
    assert not [name for name in response.headers if name.startswith("access-control-")]


async def test_a_page_of_another_site_reads_no_answer(unguarded: httpx.AsyncClient):
    response = await unguarded.get("/v1/runs", headers=EVIL)

    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", ""])
async def test_a_name_that_an_attacker_points_to_this_machine_is_refused(
    unguarded: httpx.AsyncClient, host: str
):
    """DNS rebinding: for the browser, the page and the service have the same origin then."""
    origin = {"Origin": f"http://{host}"} if host else {}
    for path in ("/v1/runs", "/docs", "/openapi.json", "/v1beta1/reasoningEngines"):
        response = await unguarded.get(path, headers={"Host": host, **origin})

        assert response.status_code == 421, response.text


async def test_our_page_may_send_a_key_and_no_other_page_may(exposed: httpx.AsyncClient):
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}

    ours = await exposed.options("/v1/runs", headers={"Origin": OURS, **asked})
    evil = await exposed.options("/v1/runs", headers={**EVIL, **asked})
    answer = await As(exposed, "read")("GET", "/v1/runs", headers={"Origin": OURS})
    seen = await As(exposed, "read")("GET", "/v1/runs", headers=EVIL)

    assert ours.status_code == 200
    assert ours.headers["access-control-allow-origin"] == OURS
    assert "authorization" in ours.headers["access-control-allow-headers"].lower()
    assert "access-control-allow-credentials" not in ours.headers  # nothing is sent by itself
    assert evil.status_code == 400
    assert "access-control-allow-origin" not in evil.headers
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, OURS)
    assert "access-control-allow-origin" not in seen.headers


async def test_our_page_sees_why_it_was_refused(exposed: httpx.AsyncClient):
    for client, status in ((As(exposed, "nothing"), 403), (As(exposed, "unknown"), 401)):
        response = await client("GET", "/v1/runs", headers={"Origin": OURS})

        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == OURS


async def test_no_cookie_is_set_and_none_counts(exposed: httpx.AsyncClient):
    response = await exposed.get("/v1/runs", headers={"Cookie": "authorization=Bearer everything"})

    assert response.status_code == 401
    assert "set-cookie" not in response.headers


async def test_no_other_site_frames_the_documentation(exposed: httpx.AsyncClient):
    response = await exposed.get("/docs")

    policy = response.headers["content-security-policy"].split("; ")
    assert "frame-ancestors 'none'" in policy
    assert "script-src 'self'" in policy
    assert not any("unsafe" in directive for directive in policy)
