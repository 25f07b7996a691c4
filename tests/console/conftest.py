"""A Chromium that looks at a real API with a projector behind it. Without a Chromium on the PATH,
these tests say that they did not run.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import uuid4

import httpx
import pytest
from playwright.async_api import Browser, Page, async_playwright, expect
from tests import conversations
from tests.console.browsers import chromium, chromium_path
from tests.ingesting import is_ready
from tests.principals import authenticated
from tests.processes import until
from tests.querying import Projected, projected, served

from runfold.api.app import build_app
from runfold.settings import Settings

CONVERSATIONS = 3

MILLISECONDS_MAX = 60_000
"""How long a test waits for what it expects. A busy machine delays anything by seconds."""

expect.set_options(timeout=MILLISECONDS_MAX)

OpenPage = Callable[..., Awaitable[Page]]
"""Opens a place of the console, such as `/runs`. The options are those of a browser's context."""


@pytest.fixture(scope="session")
def settings(kafka: str, mongo: str) -> Settings:
    name = f"t{uuid4().hex[:8]}"
    return Settings(kafka=kafka, mongo=mongo, prefix=name, database=name, wait_timeout_seconds=20)


@pytest.fixture(scope="session")
async def stored(settings: Settings) -> AsyncIterator[Projected]:
    """A projector, which has folded real conversations."""
    async with projected(settings) as stored:
        shown = conversations.conversations()[:CONVERSATIONS]
        for conversation in shown:
            await conversations.publish(stored.runfold, conversation)
        for conversation in shown:
            await until(lambda run_id=str(conversation["id"]): _is_folded(stored, run_id), what="the fold")
        yield stored


async def _is_folded(stored: Projected, run_id: str) -> bool:
    state = await stored.runs.get(run_id)
    return state is not None and state.record.status == "completed"


@pytest.fixture(scope="session")
async def api(settings: Settings, stored: Projected) -> AsyncIterator[httpx.AsyncClient]:
    """An API without authentication."""
    async with served(build_app(settings)) as client:
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        yield client


@pytest.fixture(scope="session")
async def secured(settings: Settings, stored: Projected) -> AsyncIterator[httpx.AsyncClient]:
    """An API that asks for the credentials of `tests.principals`."""
    async with served(authenticated(build_app(settings))) as client:
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        yield client


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Started once. Each test has a context of its own, without cookies of others."""
    if chromium_path() is None:
        pytest.skip("there is no Chromium on the PATH, so nothing has looked at the console")
    async with async_playwright() as playwright:
        browser = await chromium(playwright)
        yield browser
        await browser.close()


@pytest.fixture
async def open_page(browser: Browser, api: httpx.AsyncClient) -> AsyncIterator[OpenPage]:
    """Opens pages. A test fails if a script fails, or if the browser refuses anything."""
    problems: list[str] = []
    contexts = []

    async def open_page(place: str, *, base: httpx.AsyncClient = api, **options: object) -> Page:
        context = await browser.new_context(**options)
        context.set_default_timeout(MILLISECONDS_MAX)
        contexts.append(context)
        page = await context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: message.type == "error" and problems.append(message.text))
        await page.goto(f"{base.base_url}#{place}")
        return page

    yield open_page
    for context in contexts:
        await context.close()
    # The views expect a refused credential, a missing document and a search that takes too long.
    expected = ("status of 401", "status of 404", "status of 422")
    assert [problem for problem in problems if not any(text in problem for text in expected)] == []
