"""The list of runs in a browser: it follows the log, filters, and holds any number of runs."""

import json
import re
from datetime import UTC, datetime, timedelta

import httpx
from playwright.async_api import Page, Route, expect
from tests.console.conftest import CONVERSATIONS, OpenPage
from tests.conversations import conversations
from tests.processes import until
from tests.querying import Projected

from runfold import UserMessage


async def shown_runs(page: Page) -> list[str]:
    await expect(page.locator("rf-table .table-body .row").first).to_be_visible()
    return await page.locator("rf-table .row-link").all_inner_texts()


async def test_the_runs_of_real_conversations_are_listed(open_page: OpenPage):
    page = await open_page("/runs?agent_id=airline")

    ids = {str(conversation["id"]) for conversation in conversations()[:CONVERSATIONS]}
    assert set(await shown_runs(page)) == ids
    await expect(page.get_by_role("table", name="Runs")).to_have_attribute(
        "aria-rowcount", f"{CONVERSATIONS + 1}"
    )
    await expect(page.locator(".table-body .status-completed")).to_have_count(CONVERSATIONS)


async def test_a_new_run_appears_and_its_status_changes_by_itself(open_page: OpenPage, stored: Projected):
    page = await open_page("/runs?agent_id=watched-desk")
    await expect(page.get_by_text("No run matches these filters.")).to_be_visible()

    run = await stored.run(UserMessage(message="Hello"), agent_id="watched-desk", run_id="appears")
    await expect(page.locator(".row-link", has_text="appears")).to_be_visible()
    await expect(page.locator(".table-body .status-running")).to_have_count(1)
    await run.fail("the model is away")

    await expect(page.locator(".table-body .status-failed")).to_have_count(1)
    await expect(page.get_by_text("the model is away")).to_be_visible()


async def test_filters_are_kept_in_the_address(open_page: OpenPage):
    page = await open_page("/runs")
    await shown_runs(page)

    await page.get_by_label("Agent", exact=True).fill("nobody")
    await expect(page.get_by_text("No run matches these filters.")).to_be_visible()
    await page.get_by_role("button", name="failed").click()
    await expect(page.get_by_role("button", name="failed")).to_have_attribute("aria-pressed", "true")

    await expect(page).to_have_url(re.compile(r"#/runs\?agent_id=nobody&status=failed$"))
    await page.reload()
    await expect(page.get_by_label("Agent", exact=True)).to_have_value("nobody")
    await expect(page.get_by_role("button", name="failed")).to_have_attribute("aria-pressed", "true")


async def test_the_logs_of_sessions_are_chosen_as_open(open_page: OpenPage, stored: Projected):
    await stored.run(agent_id="open-desk", run_id="not-of-a-session")
    await stored.runfold.sessions.create(app="open-desk", user="ann", session_id="goes-on")
    page = await open_page("/runs?agent_id=open-desk")
    await expect(page.locator(".table-body .row")).to_have_count(2)

    await page.get_by_role("button", name="open", exact=True).click()

    await expect(page.locator(".table-body .row")).to_have_count(1)
    await expect(page.locator(".table-body .status-open")).to_have_count(1)
    await expect(page).to_have_url(re.compile(r"#/runs\?agent_id=open-desk&status=open$"))
    await page.reload()
    await expect(page.locator(".table-body .row")).to_have_count(1)


async def test_runs_are_searched_by_words_of_their_errors(open_page: OpenPage, stored: Projected):
    run = await stored.run(agent_id="searched", run_id="declined")
    await run.fail("the card was declined")
    await stored.run(agent_id="searched", run_id="other")
    page = await open_page("/runs?agent_id=searched")
    await expect(page.locator(".table-body .row")).to_have_count(2)
    await expect(page.locator(".table-body .status-failed")).to_have_count(1)

    await page.get_by_label("Search").fill("card decl")
    await expect(page.locator(".table-body .row")).to_have_count(1)
    await page.get_by_label("Failed in the last").select_option("1h")

    await expect(page.locator(".row-link")).to_have_text(["declined"])
    await expect(page).to_have_url(re.compile(r"agent_id=searched&text=card\+decl&failed_since=1h$"))
    await page.get_by_label("Search").fill("timeout")
    await expect(page.get_by_text("no words of messages or of tools' errors")).to_be_visible()


async def test_a_search_is_repeated_seldom_and_its_limit_is_shown(
    open_page: OpenPage, api: httpx.AsyncClient
):
    searches = 0

    async def refuse(route: Route) -> None:
        nonlocal searches
        searches += 1
        detail = "the search takes longer than 5 s: restrict it further"
        await route.fulfill(
            status=422, content_type="application/problem+json", body=json.dumps({"detail": detail})
        )

    page = await open_page("/nowhere")
    await page.route("**/v1/runs?text=*", refuse)
    await page.clock.install()
    await page.goto(f"{api.base_url}#/runs?text=zzz")
    await expect(page.get_by_text("restrict it further")).to_be_visible()

    await page.clock.run_for(10_000)

    assert searches == 1


async def test_a_run_is_opened_with_the_keyboard(open_page: OpenPage):
    page = await open_page("/runs?agent_id=airline")
    ids = await shown_runs(page)

    await page.locator(".row-link").first.focus()
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")

    await expect(page.get_by_role("heading", level=1, name=ids[1])).to_be_visible()


async def open_scripted(open_page: OpenPage, api: httpx.AsyncClient, *, count: int, failed: set[int]) -> Page:
    """The list of so many runs. The API is a script here: so many topics would take minutes."""
    newest = datetime.now(UTC)

    def run_of(number: int) -> dict[str, object]:
        started = (newest - timedelta(seconds=number)).isoformat()
        return {
            "run_id": f"run-{number}",
            "status": "failed" if number in failed else "completed",
            "started_at": started,
            "updated_at": started,
            "counts": {"run_opened": 1},
            "exceptions": {},
        }

    async def answer(route: Route) -> None:
        query = httpx.URL(route.request.url).params
        first = int(query.get("cursor", "0"))
        end = min(first + int(query["limit"]), count)
        runs = [run_of(number) for number in range(first, end)]
        document = {"runs": runs, "next_cursor": str(end) if end < count else None}
        await route.fulfill(status=200, content_type="application/json", body=json.dumps(document))

    page = await open_page("/nowhere")
    await page.route("**/v1/runs?*", answer)
    await page.goto(f"{api.base_url}#/runs?agent_id=many")
    await shown_runs(page)
    return page


async def scroll_to_the_end(page: Page, last: str) -> None:
    """The table grows while it is scrolled, until it shows the last run."""

    async def is_shown() -> bool:
        await page.locator("rf-table").evaluate("table => { table.scrollTop = table.scrollHeight }")
        return await page.locator(".row-link", has_text=last).is_visible()

    await until(is_shown, seconds=300, what="the end of the table")


async def test_thousands_of_runs_are_a_few_rows_of_the_page(open_page: OpenPage, api: httpx.AsyncClient):
    page = await open_scripted(open_page, api, count=3_000, failed=set())

    await scroll_to_the_end(page, "run-2999")

    await expect(page.locator("rf-runs .note")).to_contain_text("3,000 runs")
    assert await page.locator("rf-table .table-body .row").count() < 100


async def test_runs_that_are_not_among_the_newest_are_followed_too(
    open_page: OpenPage, api: httpx.AsyncClient
):
    failed: set[int] = set()
    page = await open_scripted(open_page, api, count=500, failed=failed)
    await scroll_to_the_end(page, "run-499")
    row = page.locator(".table-body .row").filter(has_text="run-498")
    await expect(row.locator(".status-completed")).to_be_visible()

    failed.add(498)

    await expect(row.locator(".status-failed")).to_be_visible()
    await expect(page.locator("rf-runs .note")).to_contain_text("500 runs")
