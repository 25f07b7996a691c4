"""The login of the console in a browser: the cookie is kept, hidden from scripts, and given up."""

import httpx
from playwright.async_api import expect
from pydantic import SecretStr
from tests.console.conftest import OpenPage
from tests.identity_provider import AUDIENCE, CLIENT, SECRET, identity_provider
from tests.ingesting import is_ready
from tests.processes import until
from tests.querying import Projected, listening_socket, served

from runfold.api.app import build_app
from runfold.http.cookies import COOKIE
from runfold.settings import Settings


async def test_a_key_logs_in_and_out(open_page: OpenPage, secured: httpx.AsyncClient):
    page = await open_page("/runs?agent_id=airline", base=secured)

    await page.get_by_label("API key or token").fill("wrong")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_contain_text("not known")
    await page.get_by_label("API key or token").fill("read")
    await page.get_by_role("button", name="Log in").click()

    await expect(page.locator(".table-body .row").first).to_be_visible()
    [cookie] = await page.context.cookies(f"{secured.base_url}/v1/runs")
    assert (cookie["name"], cookie["httpOnly"], cookie["secure"]) == (COOKIE, True, True)
    assert (cookie["sameSite"], cookie["path"]) == ("Strict", "/v1")
    assert await page.evaluate("document.cookie") == ""

    await page.reload()
    await expect(page.locator(".table-body .row").first).to_be_visible()
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_label("API key or token")).to_be_visible()
    assert await page.context.cookies(f"{secured.base_url}/v1/runs") == []


async def test_the_cookie_reads_a_stream(open_page: OpenPage, secured: httpx.AsyncClient):
    page = await open_page("/runs", base=secured)
    await page.get_by_label("API key or token").fill("read")
    await page.get_by_role("button", name="Log in").click()
    await page.locator(".row-link").first.click()

    await expect(page.locator("rf-timeline .event").first).to_be_visible()
    await expect(page.get_by_role("button", name="Fork here")).to_have_count(0)


async def test_a_key_without_the_scope_is_told_so(open_page: OpenPage, secured: httpx.AsyncClient):
    page = await open_page("/runs", base=secured)
    await page.get_by_label("API key or token").fill("memories")
    await page.get_by_role("button", name="Log in").click()

    await expect(page.get_by_text("needs a key with the scope “read”")).to_be_visible()


async def test_a_person_logs_in_by_a_provider_of_another_site(
    open_page: OpenPage, settings: Settings, stored: Projected
):
    """`localhost` and `127.0.0.1` are two sites, so the browser treats the cookies as elsewhere."""
    with identity_provider() as provider, listening_socket() as listening:
        provider.issuer = provider.named_issuer = provider.issuer.replace("127.0.0.1", "localhost")
        update = {
            "authentication": "required",
            "oidc_issuer": provider.issuer,
            "oidc_audience": AUDIENCE,
            "oidc_client_id": CLIENT,
            "oidc_client_secret": SecretStr(SECRET),
            "oidc_console_url": f"http://127.0.0.1:{listening.getsockname()[1]}/",
        }
        async with served(build_app(settings.model_copy(update=update)), listening) as api:
            await until(lambda: is_ready(api), what="the API's connection to Kafka")
            page = await open_page("/runs?agent_id=airline", base=api)
            provider.of_id = {"nonce": "another"}
            await page.get_by_role("link", name="Log in by your organisation").click()
            await expect(page.get_by_role("alert")).to_contain_text("failed")
            provider.of_id = {}
            await page.goto(f"{api.base_url}#/runs?agent_id=airline")
            await page.get_by_role("link", name="Log in by your organisation").click()

            await expect(page.locator(".table-body .row").first).to_be_visible()
            await expect(page).to_have_url(f"{api.base_url}/#/runs?agent_id=airline")
            cookies = await page.context.cookies([f"{api.base_url}/v1/runs", str(api.base_url)])
            assert [(each["name"], each["sameSite"], each["path"]) for each in cookies] == [
                (COOKIE, "Strict", "/v1")
            ]
            await page.get_by_role("button", name="Log out").click()
            await expect(page.get_by_label("API key or token")).to_be_visible()
            assert await page.context.cookies() == []
