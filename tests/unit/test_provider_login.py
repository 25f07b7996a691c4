"""The login of the console by an identity provider, and attacks on it."""

import asyncio
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastapi import FastAPI
from tests.identity_provider import AUDIENCE, CLIENT, SECRET, Provider, identity_provider, rsa_key

from runfold.console.provider_login import build_provider_login_router
from runfold.http.cookies import COOKIE
from runfold.identity.provider_keys import ProviderKeys
from runfold.identity.provider_login import ProviderLogin
from runfold.identity.tokens import Tokens
from runfold.settings import Settings

CONSOLE = "https://agents.example/team/runfold/"
PENDING = "__Host-runfold-login"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with identity_provider() as provider:
        yield provider


def settings_of(provider: Provider, **settings: Any) -> Settings:
    return Settings(
        authentication="required",
        oidc_issuer=provider.issuer,
        oidc_audience=settings.pop("oidc_audience", AUDIENCE),
        oidc_client_id=CLIENT,
        oidc_client_secret=settings.pop("oidc_client_secret", SECRET),
        oidc_console_url=CONSOLE.rstrip("/"),
        **settings,
    )


def browser_of(settings: Settings) -> httpx.AsyncClient:
    assert settings.oidc_issuer is not None
    tokens = Tokens(settings, ProviderKeys(settings.oidc_issuer))
    app = FastAPI()
    app.include_router(build_provider_login_router(ProviderLogin(settings, tokens, client_id=CLIENT)))
    # A gateway has the console below a path, and asks the service without it.
    transport = httpx.ASGITransport(app, root_path="")
    return httpx.AsyncClient(transport=transport, base_url="https://agents.example")


@pytest.fixture
async def browser(provider: Provider) -> AsyncIterator[httpx.AsyncClient]:
    async with browser_of(settings_of(provider)) as browser:
        yield browser


async def begin(browser: httpx.AsyncClient) -> str:
    """The address of the provider's page. The browser has the cookie of the login."""
    answer = await browser.get("/v1/login/oidc")
    assert answer.status_code == 303
    return answer.headers["location"]


async def agree(browser: httpx.AsyncClient, page: str) -> dict[str, str]:
    """The parameters with which the provider leads back."""
    async with httpx.AsyncClient(timeout=60) as client:
        back = (await client.get(page)).headers["location"]
    assert back.startswith(f"{CONSOLE}v1/login/oidc/done?")
    return {name: values[0] for name, values in parse_qs(urlsplit(back).query).items()}


async def finish(browser: httpx.AsyncClient, answer: Mapping[str, str]) -> httpx.Response:
    return await browser.get("/v1/login/oidc/done", params=answer)


def check_refused(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.headers["location"]) == (303, f"{CONSOLE}#login-failed")
    assert COOKIE not in answer.headers["set-cookie"]


def check_refused_begin(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.headers["location"]) == (303, f"{CONSOLE}#login-failed")


class Clock:
    """Stands for the module `time`."""

    def __init__(self, now: float) -> None:
        self._now = now

    def monotonic(self) -> float:
        return self._now


async def test_a_person_logs_in_by_the_provider(browser: httpx.AsyncClient, provider: Provider):
    began = await browser.get("/v1/login/oidc")
    query = parse_qs(urlsplit(began.headers["location"]).query)

    answer = await finish(browser, await agree(browser, began.headers["location"]))

    assert query["scope"] == ["openid"]
    assert query["code_challenge_method"] == ["S256"]
    assert set(began.headers["set-cookie"].split("; ")[1:]) == {
        *("Path=/", "HttpOnly", "Secure", "SameSite=Lax", "Max-Age=600")
    }
    assert (answer.status_code, answer.headers["location"]) == (303, CONSOLE)
    login, pending = answer.headers.get_list("set-cookie")
    assert login.startswith(f"{COOKIE}=ey")
    assert set(login.split("; ")[1:]) == {"HttpOnly", "Secure", "SameSite=Strict", "Path=/team/runfold/v1"}
    assert pending.startswith(f"{PENDING}=; ")
    assert answer.headers["cache-control"] == "no-store"


async def test_a_provider_without_audiences_proves_people_by_the_id_token(provider: Provider):
    provider.of_access = {"aud": "somebody else"}
    async with browser_of(settings_of(provider, oidc_audience=CLIENT)) as browser:
        answer = await finish(browser, await agree(browser, await begin(browser)))

    assert answer.headers["location"] == CONSOLE


async def test_the_secret_of_a_login_counts_in_its_own_browser_only(
    browser: httpx.AsyncClient, provider: Provider
):
    """An attacker begins a login, and lets somebody else finish it."""
    answer = await agree(browser, await begin(browser))
    async with browser_of(settings_of(provider)) as other:
        without = await finish(other, answer)
        await begin(other)
        with_another = await finish(other, answer)

    check_refused(without)
    check_refused(with_another)
    assert provider.codes != {}


@pytest.mark.parametrize("change", [{"state": "forged"}, {"state": ""}, {"iss": "https://evil.example"}])
async def test_a_forged_answer_is_refused_and_its_code_is_not_sent(
    browser: httpx.AsyncClient, provider: Provider, change: dict[str, str]
):
    answer = await agree(browser, await begin(browser))

    check_refused(await finish(browser, {**answer, **change}))

    assert provider.codes != {}


async def test_a_code_counts_once(browser: httpx.AsyncClient):
    answer = await agree(browser, await begin(browser))
    pending = browser.cookies[PENDING]
    assert (await finish(browser, answer)).headers["location"] == CONSOLE
    assert PENDING not in browser.cookies

    without_the_secret = await finish(browser, answer)
    browser.cookies.set(PENDING, pending)
    with_the_secret = await finish(browser, answer)

    check_refused(without_the_secret)
    check_refused(with_the_secret)


WRONG = {
    "another nonce": ({"nonce": "x"}, {}),
    "no nonce": ({"without": ("nonce",)}, {}),
    "an id token for another client": ({"aud": "other"}, {}),
    "an id token for several, of another": ({"aud": [CLIENT, "other"], "azp": "other"}, {}),
    "an id token of another issuer": ({"iss": "https://evil.example"}, {}),
    "an id token that has ended": ({"exp": int(time.time()) - 3600}, {}),
    "an id token of another key": ({"key": rsa_key("first")}, {}),
    "an access token for another audience": ({}, {"aud": "other"}),
    "an access token that has ended": ({}, {"exp": int(time.time()) - 3600}),
    "a token too large for a cookie": ({}, {"more": "x" * 4_000}),
}


@pytest.mark.parametrize("name", WRONG)
async def test_wrong_tokens_log_nobody_in(browser: httpx.AsyncClient, provider: Provider, name: str):
    provider.of_id, provider.of_access = WRONG[name]

    check_refused(await finish(browser, await agree(browser, await begin(browser))))


async def test_a_person_who_declines_is_not_logged_in(browser: httpx.AsyncClient):
    answer = await agree(browser, await begin(browser))

    check_refused(await finish(browser, {"state": answer["state"], "error": "access_denied"}))


async def test_no_parameter_leads_elsewhere(browser: httpx.AsyncClient):
    answer = await agree(browser, await begin(browser))
    more = dict.fromkeys(("next", "redirect_uri", "return_to", "url"), "https://evil.example/")

    done = await finish(browser, {**answer, **more})

    assert done.headers["location"] == CONSOLE


async def test_a_wrong_secret_of_the_client_logs_nobody_in(provider: Provider):
    async with browser_of(settings_of(provider, oidc_client_secret="wrong")) as browser:
        check_refused(await finish(browser, await agree(browser, await begin(browser))))


async def test_a_provider_that_is_away_is_asked_again_later(provider: Provider):
    provider.is_away = True
    async with browser_of(settings_of(provider)) as browser:
        answers = [await browser.get("/v1/login/oidc") for _ in range(3)]

    assert {answer.headers["location"] for answer in answers} == {f"{CONSOLE}#login-failed"}


def made_up(secret: str) -> dict[str, str]:
    """An answer for a secret, which the provider never gave."""
    return {"state": hmac.new(secret.encode(), b"state", hashlib.sha256).hexdigest(), "code": "made-up"}


async def begin_made_up(browser: httpx.AsyncClient) -> dict[str, str]:
    await begin(browser)
    return made_up(browser.cookies[PENDING])


async def test_a_login_that_was_not_begun_here_costs_no_request(
    browser: httpx.AsyncClient, provider: Provider
):
    for secret in ("made-up", "made-up.0.00", f"made-up.{int(time.time())}.{'0' * 64}"):
        browser.cookies.set(PENDING, secret)
        check_refused(await finish(browser, made_up(secret)))

    assert (provider.exchanges, provider.descriptions) == (0, 0)


async def test_a_login_ends_after_ten_minutes_whatever_the_browser_keeps(
    browser: httpx.AsyncClient, provider: Provider, monkeypatch: pytest.MonkeyPatch
):
    answer = await agree(browser, await begin(browser))
    now = time.time()
    monkeypatch.setattr("runfold.identity.provider_login.time.time", lambda: now + 601)

    check_refused(await finish(browser, answer))

    assert provider.exchanges == 0


async def test_a_login_takes_no_thread_that_other_work_needs(
    browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    async def refuse(*_: object) -> None:
        raise AssertionError("this work takes a thread that others need")

    monkeypatch.setattr(asyncio, "to_thread", refuse)

    answer = await finish(browser, await agree(browser, await begin(browser)))

    assert answer.headers["location"] == CONSOLE


async def test_few_answers_wait_for_the_provider(browser: httpx.AsyncClient, provider: Provider):
    answer = await begin_made_up(browser)
    provider.may_exchange.clear()
    answers = [asyncio.create_task(finish(browser, answer)) for _ in range(40)]
    try:
        for done in islice(asyncio.as_completed(answers), 24):
            check_refused(await done)
    finally:
        provider.may_exchange.set()
        await asyncio.gather(*answers)

    assert provider.exchanges == 16


async def test_the_provider_gets_few_wrong_codes_in_a_minute(browser: httpx.AsyncClient, provider: Provider):
    answer, secret = await begin_made_up(browser), browser.cookies[PENDING]
    for _ in range(40):
        browser.cookies.set(PENDING, secret)
        check_refused(await finish(browser, answer))

    assert provider.exchanges == 30


async def test_codes_that_the_provider_accepts_are_not_limited(
    browser: httpx.AsyncClient, provider: Provider
):
    for _ in range(40):
        assert (await finish(browser, await agree(browser, await begin(browser)))).headers[
            "location"
        ] == CONSOLE


@pytest.mark.parametrize("status", [404, 429, 503])
async def test_a_description_that_failed_is_asked_for_after_a_pause_only(provider: Provider, status: int):
    provider.described = status
    async with browser_of(settings_of(provider)) as browser:
        for _ in range(5):
            check_refused_begin(await browser.get("/v1/login/oidc"))

    assert provider.descriptions == 1


async def test_logins_share_one_fetch_of_the_description(provider: Provider):
    async with browser_of(settings_of(provider)) as browser:
        await asyncio.gather(*(begin(browser) for _ in range(5)))

    assert provider.descriptions == 1


async def test_a_description_counts_while_it_cannot_be_read_again(
    browser: httpx.AsyncClient, provider: Provider, monkeypatch: pytest.MonkeyPatch
):
    await finish(browser, await agree(browser, await begin(browser)))
    provider.described = 404
    now = time.monotonic()
    monkeypatch.setattr("runfold.identity.fetched.time", Clock(now + 3600))
    answer = await agree(browser, await begin(browser))

    assert (await finish(browser, answer)).headers["location"] == CONSOLE


async def test_an_answer_without_a_status_is_a_failed_login(browser: httpx.AsyncClient, provider: Provider):
    answer = await agree(browser, await begin(browser))
    provider.is_broken = True

    check_refused(await finish(browser, answer))


async def test_the_code_follows_no_redirect(browser: httpx.AsyncClient, provider: Provider):
    answer = await agree(browser, await begin(browser))
    provider.redirects_to = f"{provider.issuer}/elsewhere"
    before = provider.fetches

    check_refused(await finish(browser, answer))

    assert provider.fetches == before


async def test_without_a_client_there_is_no_such_login():
    app = FastAPI()
    app.include_router(build_provider_login_router(None))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://any") as client:
        for path in ("/v1/login/oidc", "/v1/login/oidc/done"):
            assert (await client.get(path)).status_code == 404


def test_a_client_needs_an_issuer_and_the_address_of_the_console(provider: Provider):
    with pytest.raises(ValueError, match="oidc_console_url"):
        Settings(
            authentication="required", oidc_issuer=provider.issuer, oidc_audience="a", oidc_client_id=CLIENT
        )
