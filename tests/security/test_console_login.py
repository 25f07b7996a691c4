"""The login of the console: the cookie, and attacks by pages that its holder also has open."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import httpx
import pytest
from tests.principals import PRINCIPALS, authenticated
from tests.querying import served

from runfold.api.app import build_app
from runfold.http.cookies import COOKIE, TOKEN_HEADER
from runfold.http.guards import add_guards
from runfold.http.settings import HttpSettings
from runfold.settings import Settings

READER, ADMIN = "read", "administer"


@pytest.fixture(scope="module")
async def console(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    app = authenticated(build_app(settings))
    add_guards(app, HttpSettings())
    async with served(app) as client:
        yield client


def cookie_of(credential: str) -> dict[str, str]:
    return {"Cookie": f"theme=dark; {COOKIE}={credential}"}


async def change_headers(console: httpx.AsyncClient, credential: str = ADMIN) -> Mapping[str, str]:
    """What a page of the console sends with a change."""
    login = await console.get("/v1/login", headers=cookie_of(credential))
    origin = str(console.base_url).rstrip("/")
    return {**cookie_of(credential), "Origin": origin, TOKEN_HEADER: login.json()["token"]}


async def test_a_key_becomes_a_cookie_that_scripts_cannot_read(console: httpx.AsyncClient):
    answer = await console.post("/v1/login", headers={"Authorization": f"Bearer {READER}"})

    assert answer.status_code == 200
    name_and_value, *attributes = answer.headers["set-cookie"].split("; ")
    assert name_and_value == f"{COOKIE}={READER}"
    assert set(attributes) == {"HttpOnly", "Secure", "SameSite=Strict"}
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json()["subject"] == f"key:{READER}"
    assert answer.json()["scopes"] == ["read"]


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer unknown"}])
async def test_without_a_valid_key_nobody_logs_in(console: httpx.AsyncClient, headers: dict[str, str]):
    answer = await console.post("/v1/login", headers=headers)

    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


async def test_a_key_that_a_browser_cannot_keep_is_refused(settings: Settings):
    long = "a" * 5_000
    app = authenticated(build_app(settings), {long: replace(PRINCIPALS[0], tenant=settings.prefix)})
    async with served(app) as client:
        answer = await client.post("/v1/login", headers={"Authorization": f"Bearer {long}"})

    assert answer.status_code == 422
    assert "set-cookie" not in answer.headers


async def test_the_cookie_reads_and_a_revoked_key_ends_it(console: httpx.AsyncClient):
    read = await console.get("/v1/login", headers=cookie_of(READER))
    ended = await console.get("/v1/login", headers=cookie_of("revoked"))
    refused = await console.get("/v1/keys", headers=cookie_of(READER))

    assert (read.status_code, read.json()["subject"]) == (200, f"key:{READER}")
    assert ended.status_code == 401
    assert refused.status_code == 403


async def test_a_header_counts_more_than_the_cookie(console: httpx.AsyncClient):
    answer = await console.get("/v1/login", headers={**cookie_of("revoked"), "Authorization": "Bearer read"})

    assert answer.json()["subject"] == "key:read"
    assert answer.json()["token"] is None


async def test_a_page_of_the_console_changes_and_logs_out(console: httpx.AsyncClient):
    headers = await change_headers(console)

    made = await console.post("/v1/quarantine/none/retry", headers=headers)
    out = await console.delete("/v1/login", headers=headers)

    assert made.status_code == 404
    assert out.status_code == 204
    assert f"{COOKIE}=;" in out.headers["set-cookie"]
    assert "Max-Age=0" in out.headers["set-cookie"]


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT", "DELETE"])
@pytest.mark.parametrize(
    "changed",
    [
        {TOKEN_HEADER: None},
        {TOKEN_HEADER: "0" * 64},
        {TOKEN_HEADER: "é"},
        {"Origin": None},
        {"Origin": "null"},
        {"Origin": "https://evil.example"},
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
async def test_a_page_of_another_site_changes_nothing_by_the_cookie(
    console: httpx.AsyncClient, changed: dict[str, str | None], method: str
):
    headers = {
        name: value.encode()
        for name, value in {
            **await change_headers(console),
            **changed,
            "Content-Type": "application/json",
        }.items()
        if value is not None
    }

    answer = await console.request(method, "/v1/keys/0123456789abcdef", content=b"{}", headers=headers)

    assert answer.status_code in (401, 403)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_page_of_another_site_reads_nothing_by_the_cookie(console: httpx.AsyncClient, site: str):
    answer = await console.get("/v1/login", headers={**cookie_of(READER), "Sec-Fetch-Site": site})

    assert answer.status_code == 401


async def test_a_second_cookie_of_a_neighbour_is_refused(console: httpx.AsyncClient):
    answer = await console.get("/v1/login", headers={"Cookie": f"{COOKIE}={READER}; {COOKIE}={ADMIN}"})

    assert answer.status_code == 401


async def test_the_page_and_its_files_need_no_key(console: httpx.AsyncClient):
    page = await console.get("/")

    assert page.status_code == 200
    assert "rf-console" in page.text


async def test_without_a_login_the_console_answers_under_loopback_names_only(settings: Settings):
    """DNS rebinding. The service listens on all addresses, as in a container."""
    app = build_app(settings)
    add_guards(app, HttpSettings(host="0.0.0.0", authentication="none"))
    async with served(app) as client:
        statuses = {
            (host, path): (await client.get(path, headers={"Host": host})).status_code
            for host in ("evil.example", "localhost.evil.example", "", "localhost:8080", "127.0.0.1")
            for path in ("/", "/console/any/js/main.js")
        }

    assert statuses == {key: 200 if key[0] in ("localhost:8080", "127.0.0.1") else 421 for key in statuses}
