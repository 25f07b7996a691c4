"""All pages of the console: for readers without a mouse or sight, and on screens of any width."""

import httpx
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, Route, expect
from tests.console.conftest import OpenPage
from tests.conversations import conversations, events_of
from tests.querying import Projected

from runfold import Memory

PLACES = {
    "runs": "/runs?agent_id=airline",
    "run": f"/runs/{conversations()[0]['id']}?offset=1",
    "sessions": "/sessions",
    "session": "/sessions/page-talk",
    "memories": "/memories?bank=page-bank",
    "memory": "/memories/page-bank/seat",
    "agents": "/agents",
    "agent": "/agents/airline",
    "operations": "/operations",
}
WIDTHS = {"phone": 360, "tablet": 820, "desktop": 1400}
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],  # a page has thousands of elements that are in order
}

OUTSIDE = """() => [...document.querySelectorAll("h1, button, .status, rf-minimap, rf-travel output")]
    .filter((element) => element.checkVisibility())
    .filter((element) => element.closest(".filters, .tabs, .table, nav") === null)
    .filter((element) => element.getBoundingClientRect().right > innerWidth + 1)
    .map((element) => element.className || element.textContent)"""
"""Elements that end beyond the right edge of the screen, and that nothing scrolls."""


@pytest.fixture(scope="module", autouse=True)
async def contents(stored: Projected) -> None:
    """What the places show beside runs."""
    sessions, memories = stored.runfold.sessions, stored.runfold.memories
    state = {"step": 1, "user:language": "fr"}
    await sessions.create(app="shop", user="ann", session_id="page-talk", state=state, labels={"a": "b"})
    for message in conversations()[0]["messages"]:
        await sessions.append_batch("page-talk", list(events_of(message)))
    await memories.create_bank("page-bank")
    seat = Memory(fact="Prefers window seats", scope={"user": "ann"})
    await memories.create("page-bank", seat, memory_id="seat")
    await memories.update("page-bank", "seat", {"fact": "Prefers aisle seats"})


async def visit(page: Page, place: str) -> None:
    """Loads the console anew at the place."""
    await page.evaluate("(place) => history.replaceState(null, '', `#${place}`)", PLACES[place])
    await page.reload()
    await ready(page)


async def ready(page: Page) -> None:
    """Waits until the page shows its data."""
    shown = page.locator("rf-table .row-link, rf-timeline .event, .figures, .chat-line, .revision")
    await expect(shown.first).to_be_visible()
    await expect(page.locator(".waits")).to_have_count(0)


async def check_accessibility(page: Page) -> None:
    found = await Axe().run(page, options=RULES)

    assert found.violations_count == 0, f"{page.url}: {found.generate_report()}"


@pytest.mark.parametrize(("width", "theme"), [("phone", "dark"), ("desktop", "light")])
async def test_pages_are_accessible(open_page: OpenPage, width: str, theme: str):
    page = await open_page("/", viewport={"width": WIDTHS[width], "height": 800}, color_scheme=theme)
    for place in PLACES:
        await visit(page, place)

        await check_accessibility(page)


async def test_the_tabs_of_a_run_are_accessible(open_page: OpenPage):
    page = await open_page(PLACES["run"])
    await ready(page)
    for tab in ("Ledger", "Record", "Difference"):
        await page.get_by_role("tab", name=tab).click()
        await ready(page)

        await check_accessibility(page)


async def test_the_login_is_accessible(open_page: OpenPage, secured: httpx.AsyncClient):
    page = await open_page("/runs", base=secured)
    await expect(page.get_by_label("API key or token")).to_be_focused()

    await check_accessibility(page)


async def test_nothing_is_wider_than_the_screen(open_page: OpenPage):
    page = await open_page("/")
    for place in PLACES:
        await visit(page, place)
        for width in WIDTHS.values():
            await page.set_viewport_size({"width": width, "height": 700})
            await ready(page)

            root = "document.documentElement"
            assert await page.evaluate(f"{root}.scrollWidth") <= width, place
            assert await page.evaluate(f"{root}.scrollHeight") <= 700, place
            assert await page.evaluate(OUTSIDE) == [], (place, width)


async def test_the_theme_is_switched_and_kept(open_page: OpenPage):
    page = await open_page(PLACES["runs"], color_scheme="light")
    await ready(page)
    background = "getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(background)

    await page.get_by_role("button", name="Switch between light and dark").click()
    dark = await page.evaluate(background)
    await page.reload()

    assert light != dark
    assert await page.evaluate(background) == dark


async def test_what_is_copied_is_quoted(open_page: OpenPage):
    """An id may contain anything, and the reader pastes it into a shell or opens it in a
    spreadsheet.
    """
    page = await open_page("/runs")
    await ready(page)
    copied = await page.evaluate(
        """async () => {
            const bundle = [...document.scripts].find((script) => script.type === "module");
            const { shellQuoted, pythonQuoted } = await import(new URL("js/parts/copy.js", bundle.src));
            const { asCsv } = await import(new URL("js/parts/csv.js", bundle.src));
            return [
                shellQuoted("a'; rm -rf ~"),
                pythonQuoted('a"\\n'),
                asCsv(["a"], [["=1+1"], ["@x"], ['say "hi"'], [null], [-5], ["\\t=2"], ["\\uFF1D3"]]),
            ];
        }"""
    )

    assert copied == [
        r"'a'\''; rm -rf ~'",
        r'"a\"\n"',
        '"a"\r\n"\'=1+1"\r\n"\'@x"\r\n"say ""hi"""\r\n""\r\n-5\r\n"\'\t=2"\r\n"\'\uff1d3"\r\n',
    ]


async def test_the_documentation_of_the_api_works_under_its_policy(
    open_page: OpenPage, api: httpx.AsyncClient
):
    page = await open_page("/runs")
    await page.goto(f"{api.base_url}/docs")

    await expect(page.get_by_text("/v1/runs/{run_id}/ledger").first).to_be_visible()


async def test_the_console_works_below_the_path_of_a_gateway(browser: Browser, api: httpx.AsyncClient):
    page = await browser.new_page()

    async def forward(route: Route) -> None:
        url = route.request.url.replace("http://gateway.example/team/runfold/", f"{api.base_url}/")
        await route.fulfill(response=await route.fetch(url=url))

    await page.route("http://gateway.example/team/runfold/**", forward)
    await page.goto("http://gateway.example/team/runfold/#/runs?agent_id=airline")

    await ready(page)
    await page.close()
