"""The statistics of agents in a browser: the list, one agent, and the time that both cover."""

import re

import pytest
from playwright.async_api import expect
from tests.console.conftest import CONVERSATIONS, OpenPage
from tests.processes import until
from tests.querying import Projected

from runfold import ToolCall, ToolResult, UserMessage

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="session")
async def desk(stored: Projected) -> str:
    """An agent with a failed run, and with a tool whose name is markup."""
    call = ToolCall(tool_call_id="c", tool_name=HOSTILE, payload={})
    result = ToolResult(tool_call_id="c", tool_name=HOSTILE, result="ok", duration_ms=1500)
    failed = await stored.run(UserMessage(message="Hello"), call, result, agent_id="counted-desk")
    await failed.fail("the model is away")
    await stored.run(UserMessage(message="Hello"), agent_id="counted-desk")

    async def has_failed() -> bool:
        state = await stored.runs.get(failed.run_id)
        return state is not None and state.record.status == "failed"

    await until(has_failed, what="the end of the run")
    return "counted-desk"


async def test_agents_are_listed_with_their_failures(open_page: OpenPage, desk: str):
    page = await open_page("/agents")
    row = page.locator(".table-body .row", has=page.get_by_role("link", name=desk, exact=True))

    await expect(row.locator(".col-failed")).to_have_text("1 (100%)")
    await expect(row.get_by_role("img", name="2 runs in 8 days, 1 failed")).to_be_visible()
    others = page.locator(".table-body .row", has=page.get_by_role("link", name="airline", exact=True))
    await expect(others.locator(".col-runs")).to_have_text(str(CONVERSATIONS))
    await row.locator(".col-failed a").click()

    await expect(page.locator("rf-runs .table-body .row")).to_have_count(1)
    await expect(page.locator("rf-runs .table-body .status-failed")).to_have_count(1)


async def test_an_agent_shows_its_tools_and_keeps_its_time(open_page: OpenPage, desk: str):
    page = await open_page(f"/agents/{desk}")
    tools = page.get_by_role("table", name="Tools")
    await expect(tools.get_by_role("rowheader")).to_have_text(HOSTILE)
    await expect(tools.get_by_role("img", name="1 call up to 2.0 s")).to_be_visible()

    await page.get_by_role("button", name="30 days").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("img", name="2 runs in 31 days, 1 failed")).to_be_visible()
    await expect(page).to_have_url(re.compile(rf"#/agents/{desk}\?since=30d$"))
    await page.reload()

    await expect(page.get_by_role("button", name="30 days")).to_have_attribute("aria-pressed", "true")
    await page.get_by_text("As a table").click()
    await expect(page.get_by_role("table", name="Runs a day").get_by_role("row")).to_have_count(32)


async def test_the_tools_of_all_agents_are_sorted_by_any_column(open_page: OpenPage, desk: str):
    page = await open_page("/agents")
    tools = page.get_by_role("table", name="Tools of all agents")
    names = tools.locator("tbody").get_by_role("rowheader")
    calls = tools.get_by_role("columnheader", name="Calls")
    await expect(calls).to_have_attribute("aria-sort", "descending")
    row = tools.get_by_role("row", name=HOSTILE)
    await expect(row.get_by_role("cell").nth(1)).to_have_text("1")

    await tools.get_by_role("button", name="p95").click()
    await expect(tools.get_by_role("columnheader", name="p95")).to_have_attribute("aria-sort", "descending")
    await expect(calls).not_to_have_attribute("aria-sort", "descending")
    await tools.get_by_role("button", name="Tool", exact=True).press("Enter")
    await expect(names.first).to_have_text(HOSTILE)
    await expect(tools.get_by_role("button", name="Tool", exact=True)).to_be_focused()

    await row.get_by_role("link", name=desk).click()
    await expect(page.get_by_role("heading", level=1, name=desk)).to_be_visible()
