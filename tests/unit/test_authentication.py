"""The middleware that finds out who sends a request."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from runfold.http.app import new_app
from runfold.http.authentication import Authenticate, Proof
from runfold.http.guards import add_guards
from runfold.http.principal import Principal, Scope, principal_of
from runfold.http.route_rules import RULES, Rule, Whose
from runfold.http.settings import HttpSettings, warn_of_exposure
from runfold.identity.authenticator import Authenticator, ready_when_known
from runfold.identity.keys import ApiKeyRing
from runfold.settings import Settings
from runfold.tenants.registry import Tenant, Tenants
from runfold_schemas.errors import UnauthenticatedError

ANN = Principal(tenant="runfold", subject="key:ann", scopes=frozenset({Scope.read}))
SINCE = "so a key revoked since counts here"
GOOD = "a-good-credential"
BEARER = {"Authorization": f"Bearer {GOOD}"}


OWN = dict.fromkeys(
    ("GET /who", "GET /tenant", "GET /stream", "POST /parts"), Rule((frozenset(),), Whose.NOBODY)
)


class Keys:
    """Followed keys and tenants of which Kafka has said nothing for a while."""

    state = ApiKeyRing()
    tenants = None

    def __init__(self, silent_seconds: float) -> None:
        self.silent_seconds = silent_seconds


class Registry:
    """The registry of an installation without tenants."""

    tenants = Tenants(Tenant.own(Settings()))


async def test_a_service_without_kafka_says_that_it_may_accept_revoked_keys():
    async def others() -> list[str]:
        return ["another reason"]

    authenticator = Authenticator(Settings())
    authenticator.tenants = Registry()  # type: ignore[assignment]
    for seconds, reasons in ((59.0, []), (61.0, [f"API keys: Kafka has not answered for 61 s, {SINCE}"])):
        authenticator.keys = authenticator.tenants = Keys(seconds)  # type: ignore[assignment]
        assert await ready_when_known(authenticator, others)() == [*reasons, "another reason"]
        assert await ready_when_known(authenticator, ready)() == reasons
    assert await ready_when_known(None, others)() == ["another reason"]


class Credentials:
    """Knows one credential, until it is revoked."""

    def __init__(self) -> None:
        self.is_revoked = False

    async def __call__(self, credential: str) -> Proof:
        if credential != GOOD or self.is_revoked:
            raise UnauthenticatedError("not known")
        return Proof(ANN, lambda: not self.is_revoked)


async def ready() -> None:
    """Always."""


@asynccontextmanager
async def serving(authenticate: Authenticate | None, **settings: str) -> AsyncIterator[httpx.AsyncClient]:
    app = new_app("any", ready=ready, authenticate=authenticate, tenant="a-tenant", rules=RULES | OWN)

    @app.get("/who")
    async def who(request: Request) -> str:
        return principal_of(request).subject

    @app.get("/tenant")
    async def tenant(request: Request) -> str:
        return principal_of(request).tenant

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"
            assert isinstance(authenticate, Credentials)
            authenticate.is_revoked = True
            yield b"data: 2\n\n"

        return StreamingResponse(chunks(), media_type="text/event-stream")

    @app.post("/parts")
    async def take_parts(request: Request) -> list[str]:
        parts: list[str] = []
        with suppress(ClientDisconnect):
            async for part in request.stream():
                parts += [part.decode()] if part else []
        return parts

    add_guards(app, HttpSettings(**settings))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def test_without_authentication_everybody_is_the_local_principal():
    async with serving(None) as client:
        assert (await client.get("/who")).json() == "local"
        assert (await client.get("/who", headers=BEARER)).json() == "local"
        assert (await client.get("/tenant")).json() == "a-tenant"


async def test_a_valid_credential_names_the_principal_in_either_header():
    async with serving(Credentials()) as client:
        assert (await client.get("/who", headers=BEARER)).json() == "key:ann"
        assert (await client.get("/who", headers={"authorization": f"bearer  {GOOD} "})).json() == "key:ann"
        assert (await client.get("/who", headers={"X-Goog-Api-Key": GOOD})).json() == "key:ann"


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/docs", "/openapi.json", "/"])
async def test_probes_and_the_documentation_are_public(path):
    async with serving(Credentials()) as client:
        assert (await client.get(path)).status_code < 400
        assert (await client.get(path, headers={"Authorization": "Bearer wrong"})).status_code < 400


@pytest.mark.parametrize(
    "path", ["/metrics", "/who", "/unknown", "/%2fdocs", "/docs/", "/docs/..%2fwho", "/%64ocs", "/health"]
)
async def test_every_other_path_needs_a_credential(path):
    async with serving(Credentials()) as client:
        refused = await client.get(path)

    assert refused.status_code == 401
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["www-authenticate"] == 'Bearer realm="runfold"'
    assert refused.json()["type"] == "urn:runfold:problem:Unauthenticated"


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", "Bearer wrong")],
        [("Authorization", f"Basic {GOOD}")],
        [("Authorization", GOOD)],
        [("Authorization", "Bearer ")],
        [("Authorization", "")],
        [("X-Goog-Api-Key", "")],
        [("Authorization", f"Bearer {GOOD}"), ("Authorization", f"Bearer {GOOD}")],
        [("Authorization", f"Bearer {GOOD}"), ("X-Goog-Api-Key", GOOD)],
        [("Authorization", "Bearer \xff\xfe")],
    ],
)
async def test_a_credential_that_is_wrong_malformed_or_not_alone_is_refused(headers):
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    async with serving(Credentials()) as client:
        refused = await client.get("/who", headers=raw)

    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == 'Bearer realm="runfold", error="invalid_token"'
    assert GOOD not in refused.text


KEY = "rf_0123456789abcdef_" + "A" * 43


@pytest.mark.parametrize(
    "path",
    [
        f"/who?key={GOOD}",
        f"/who?access_token={GOOD}",
        f"/who?api_key={GOOD}",
        f"/who?anything={KEY}",
        f"/who?anything={KEY.replace('_', '%5F')}",
        f"/{KEY}",
    ],
)
async def test_a_credential_in_the_url_is_refused_beside_a_valid_one_too(path):
    async with serving(Credentials()) as client:
        refused = await client.get(path, headers=BEARER)

    assert refused.status_code == 401
    assert "URL" in refused.json()["detail"]
    assert KEY not in refused.text


async def test_a_stream_of_events_ends_when_its_credential_is_revoked():
    async with serving(Credentials()) as client:
        answer = await client.get("/stream", headers=BEARER)

    assert answer.status_code == 200
    assert answer.text == "data: 1\n\n"


async def test_a_body_breaks_off_when_its_credential_is_revoked():
    credentials = Credentials()

    async def parts() -> AsyncIterator[bytes]:
        yield b"before"
        credentials.is_revoked = True
        yield b"after"

    async with serving(credentials) as client:
        answer = await client.post("/parts", headers=BEARER, content=parts())

    assert answer.json() == ["before"]


async def test_browsers_ask_for_permission_without_a_credential():
    page = "https://app.example"
    async with serving(Credentials(), allowed_origins=page) as client:
        asked = await client.options("/who", headers={"Origin": page, "Access-Control-Request-Method": "GET"})
        refused = await client.get("/who", headers={"Origin": page})

    assert asked.status_code == 200
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == page


async def test_no_route_is_reached_without_a_principal():
    with pytest.raises(LookupError):
        principal_of({"type": "http", "path": "/anything"})


@pytest.mark.parametrize(
    ("host", "authentication", "warnings"),
    [
        ("0.0.0.0", "none", 1),
        ("::", "none", 1),
        ("127.0.0.1", "none", 0),
        ("0.0.0.0", "required", 0),
    ],
)
def test_one_warning_says_that_other_machines_may_do_everything(
    host: str, authentication: Any, warnings: int, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING, "runfold.http.settings")

    warn_of_exposure(HttpSettings(host=host, authentication=authentication))

    said = [each.getMessage() for each in caplog.records]
    assert [text.startswith("RUNFOLD_AUTHENTICATION=none: ") for text in said] == [True] * warnings
