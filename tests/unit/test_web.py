"""What every HTTP service of ours answers, whatever it serves."""

import dataclasses
import re
from collections.abc import AsyncIterator
from urllib.parse import urljoin

import httpx
import pytest

from runfold.http.app import new_app
from runfold.http.authentication import Proof
from runfold.http.principal import local_principal
from runfold.telemetry import outages
from runfold.telemetry.outages import Outages
from runfold_schemas.errors import UnauthenticatedError, UnavailableError


async def ready() -> None:
    """Always."""


@pytest.fixture
async def web() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(new_app("any", ready=ready))
    async with httpx.AsyncClient(transport=transport, base_url="http://any") as client:
        yield client


async def test_a_service_that_works_says_what_does_not():
    async def degraded() -> list[str]:
        return ["1 run is in quarantine"]

    transport = httpx.ASGITransport(new_app("any", ready=degraded))
    async with httpx.AsyncClient(transport=transport, base_url="http://any") as client:
        answer = await client.get("/health/ready")

    assert answer.status_code == 200
    assert answer.json() == {"status": "degraded", "reasons": ["1 run is in quarantine"]}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Outages:
    """What the services here see of servers. Connections of other tests in this process go on
    beside.
    """
    own = Outages()
    monkeypatch.setattr(outages, "states", own.states)
    return own


@pytest.mark.parametrize("works", [True, False])
async def test_health_names_the_server_that_is_away_since_when_and_why(works: bool, servers: Outages):
    async def check() -> None:
        if not works:
            raise UnavailableError("Kafka", reason="refused")

    servers.answered("MongoDB at m:27017")
    servers.answered("MongoDB's primary")
    servers.failed("Kafka at k:9092", "Connect call failed")
    transport = httpx.ASGITransport(new_app("any", ready=check))
    async with httpx.AsyncClient(transport=transport, base_url="http://any") as client:
        away = await client.get("/health/ready")
        metrics = (await client.get("/metrics")).text
        servers.failed("MongoDB at m:27017", "timed out")
        without_mongodb = (await client.get("/metrics")).text
        servers.answered("MongoDB at m:27017")
        servers.answered("Kafka at k:9092")
        back = await client.get("/health/ready")

    [server] = away.json()["servers"]
    assert away.status_code == (200 if works else 503)
    assert (server["server"], server["status"]) == ("Kafka at k:9092", "away")
    assert server["last_error"] == "Connect call failed"
    assert server["since"] <= server["last_error_at"]
    assert 'runfold_server_up{server="kafka"} 0.0' in metrics
    assert 'runfold_server_up{server="mongodb"} 1.0' in metrics
    assert 'runfold_server_up{server="mongodb"} 0.0' in without_mongodb
    assert "servers" not in back.json()


@pytest.mark.parametrize(
    ("credential", "tells"),
    [
        (None, False),
        ("wrong", False),
        ("operator", True),
        ("of-a-tenant", False),
        ("limited", False),
    ],
)
async def test_only_the_operator_learns_what_does_not_work(
    credential: str | None, tells: bool, servers: Outages
):
    async def degraded() -> list[str]:
        return ["tenant acme: in quarantine: run:order-4711", "another"]

    servers.failed("Kafka at k:9092", "refused")
    operator = local_principal("own")
    principals = {
        "operator": operator,
        "of-a-tenant": local_principal("acme"),
        "limited": dataclasses.replace(operator, users=("ann",)),
    }

    async def authenticate(credential: str) -> Proof:
        if credential not in principals:
            raise UnauthenticatedError("not known")
        return Proof(principals[credential], lambda: True)

    transport = httpx.ASGITransport(new_app("any", ready=degraded, authenticate=authenticate, tenant="own"))
    headers = {"Authorization": f"Bearer {credential}"} if credential else {}
    async with httpx.AsyncClient(transport=transport, base_url="http://any", headers=headers) as client:
        answer = await client.get("/health/ready")

    assert answer.status_code == 200
    body = answer.json()
    assert ("servers" in body) is tells
    body.pop("servers", None)
    told = {"reasons": await degraded()} if tells else {"count": 2}
    assert body == {"status": "degraded"} | told


async def test_the_root_leads_to_the_documentation(web: httpx.AsyncClient):
    answer = await web.get("/", follow_redirects=True)

    assert answer.url.path == "/docs"
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/health/live", "/health/ready"])
async def test_a_probe_without_a_body_is_answered_as_a_read(web: httpx.AsyncClient, path: str):
    probe, read = await web.head(path), await web.get(path)

    assert (probe.status_code, probe.headers.get("location")) == (
        read.status_code,
        read.headers.get("location"),
    )


async def page_and_script(web: httpx.AsyncClient) -> str:
    """The page of the documentation, and the script that names the OpenAPI document."""
    return (await web.get("/docs")).text + (await web.get("/docs/assets/start.js")).text


async def test_the_documentation_comes_from_this_server_alone(web: httpx.AsyncClient):
    page = await page_and_script(web)

    addresses = re.findall(r"""(?:href|src)="([^"]+)"|url: ['"]([^'"]+)['"]""", page)
    named = [either or other for either, other in addresses]
    assert len(named) == 5
    assert "//" not in "".join(named)
    for address in named:
        answer = await web.get(urljoin("/docs", address))
        assert answer.status_code == 200, address
        assert answer.content
    assert not re.findall(r"https?://", page)


async def test_the_documentation_works_below_the_path_of_a_gateway(web: httpx.AsyncClient):
    page = await page_and_script(web)

    assert '"/' not in page
    assert "'/" not in page


async def test_a_style_sheet_of_the_documentation_names_no_other_host(web: httpx.AsyncClient):
    style = (await web.get("/docs/assets/swagger-ui.css")).text

    assert not re.findall(r"url\((?!['\"]?data:)", style)
    assert "@import" not in style
