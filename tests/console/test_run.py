"""A run in a browser: its timeline, live, and what stands beside it."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.async_api import Browser, Locator, Page, Route, expect
from tests.console.conftest import OpenPage
from tests.conversations import conversations
from tests.processes import append_raw, until
from tests.querying import Projected
from tests.segmenting import seal

from runfold import AssistantMessage, RejectedError, Run, ToolCall, ToolResult, UserMessage
from runfold_schemas.events import EventAmended, Thinking
from runfold_schemas.sessions import Framework, FrameworkEvent

HOSTILE = (
    "<img src=x onerror=alert(1)><script>alert(2)</script>"
    " [link](https://evil.example/) ![image](https://evil.example/x.png)"
)


@dataclass
class Failed:
    """A run with everything that a timeline marks, and the offsets of its events."""

    run: Run
    offsets: dict[str, int]


@pytest.fixture(scope="module")
async def failed(stored: Projected) -> Failed:
    run = await stored.run(agent_id="travel-desk", run_id="a/failed run", labels={"channel": "chat"})
    question = run.event(UserMessage(message=HOSTILE), turn_id="t1")
    await run.publish(question)
    offsets = {"duplicate": (await run.publish(question)).offset}
    for name, data in {
        "thinking": Thinking(text="Two tools at once.", signature="c2lnbmVk", final=True),
        "call": ToolCall(tool_call_id="c1", tool_name="trains", payload={"to": "Lyon"}),
        "other call": ToolCall(tool_call_id="c2", tool_name="buses", payload={}),
        "result": ToolResult(tool_call_id="c1", tool_name="trains", result=["07:04"], duration_ms=1204),
        "error": ToolResult(tool_call_id="c2", tool_name="buses", error="timed out", duration_ms=1000),
        "lost call": ToolCall(tool_call_id="c3", tool_name="book", payload={}),
        "orphan": ToolResult(tool_call_id="c9", tool_name="ghost", result=1),
    }.items():
        offsets[name] = (await run.publish(data, turn_id="t1")).offset
    amendment = EventAmended(offset=offsets["orphan"], reason="no call")
    offsets["amendment"] = (await run.publish(amendment, turn_id="t1")).offset
    offsets["answer"] = (await run.publish(AssistantMessage(message="07:04"), turn_id="t2")).offset
    with pytest.raises(RejectedError) as lost:
        await run.publish(AssistantMessage(message="07:05"), expected_offset=1)
    offsets["rejected"] = lost.value.offset
    await run.fail("the card was declined")
    offsets["late"] = (await run.publish(AssistantMessage(message="a receipt"), late=True)).offset
    await append_raw(stored.runfold, run, b"<b>no event</b>")
    offsets["undecodable"] = offsets["late"] + 1
    # Rings for the record before it.
    offsets["last"] = (await run.publish(AssistantMessage(message="a bill"), late=True)).offset
    await stored.holds(run, offsets["last"])
    return Failed(run, offsets)


def place_of(failed: Failed, query: str = "") -> str:
    return f"/runs/{quote(failed.run.run_id, safe='')}{query}"


def row(page: Page, offset: int) -> Locator:
    return page.locator(f"rf-timeline button[data-offset='{offset}']")


async def choose(page: Page, offset: int) -> Locator:
    """The panel of an event."""
    await row(page, offset).click()
    await expect(page.locator(".event-panel h2")).to_contain_text(f"at offset {offset}")
    return page.locator(".event-panel")


async def test_a_real_conversation_is_a_timeline_of_all_its_events(
    open_page: OpenPage, api: httpx.AsyncClient
):
    run_id = str(conversations()[0]["id"])
    events = (await api.get(f"/v1/runs/{run_id}/events", params={"limit": 1000})).json()["events"]

    page = await open_page(f"/runs/{run_id}")
    await expect(page.get_by_role("heading", level=1)).to_have_text(run_id)
    await row(page, 0).focus()
    await page.keyboard.press("End")

    await expect(row(page, events[-1]["offset"])).to_be_focused()
    await page.keyboard.press("Home")
    await expect(row(page, 0)).to_be_focused()


async def test_each_oddity_of_a_run_is_marked(open_page: OpenPage, failed: Failed):
    page = await open_page(place_of(failed))
    tags = {
        "duplicate": "duplicate",
        "thinking": "signed",
        "result": "1.2 s",
        "error": "error",
        "lost call": "no result",
        "orphan": "no call",
        "amendment": "amendment",
        "rejected": "rejected",
        "late": "late",
    }

    for name, tag in tags.items():
        await expect(row(page, failed.offsets[name]).locator(".tag", has_text=tag).first).to_be_visible()
    await expect(row(page, failed.offsets["orphan"]).locator(".tag", has_text="amended")).to_be_visible()
    await expect(row(page, failed.offsets["undecodable"]).locator(".actor")).to_have_text("undecodable")
    await expect(page.get_by_text("the card was declined").first).to_be_visible()
    await expect(page.locator(".turn-name")).to_have_text(["Turn t1", "Turn t2"])


async def test_calls_at_the_same_time_are_ribbons_side_by_side(open_page: OpenPage, failed: Failed):
    page = await open_page(place_of(failed))
    await expect(page.locator(".ribbon-missing")).to_have_count(1)

    async def are_side_by_side() -> bool:
        done, error = [await page.locator(f".ribbon-{state}").bounding_box() for state in ("done", "error")]
        if done is None or error is None:
            return False  # drawn anew meanwhile
        below = done["y"] < error["y"] < done["y"] + done["height"]
        return below and done["x"] + done["width"] <= error["x"]

    await until(are_side_by_side, what="two ribbons side by side")


async def test_nothing_in_an_event_becomes_an_element_or_a_request(open_page: OpenPage, failed: Failed):
    page = await open_page("/runs")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: asked.append(dialog.message))

    await page.goto(page.url.partition("#")[0] + f"#{place_of(failed)}")
    panel = await choose(page, failed.offsets["duplicate"])
    await expect(panel.locator("pre").first).to_have_text(HOSTILE)
    await page.get_by_role("tab", name="Ledger").click()
    await expect(page.locator(".message").first).to_contain_text("<script>")

    assert [url for url in asked if "evil" in url or url in ("1", "2")] == []
    assert await page.locator("img, iframe, object, script:not([src])").count() == 0
    assert await page.locator("a[href*='evil']").count() == 0


async def test_a_call_leads_to_its_result_and_thinking_is_folded(open_page: OpenPage, failed: Failed):
    page = await open_page(place_of(failed))

    panel = await choose(page, failed.offsets["call"])
    await expect(panel.get_by_role("region", name="Result")).to_contain_text("07:04")
    await panel.get_by_role("button", name=f"offset {failed.offsets['result']}").click()
    await expect(panel.locator("h2")).to_contain_text(f"at offset {failed.offsets['result']}")
    await expect(page).to_have_url(re.compile(rf"\?offset={failed.offsets['result']}$"))

    panel = await choose(page, failed.offsets["thinking"])
    text = panel.get_by_role("region", name="Thinking")
    await expect(text).to_have_count(0)
    await panel.locator("summary", has_text="Thinking").click()
    await expect(text).to_have_text("Two tools at once.")


async def test_the_problems_of_a_run_are_visited_in_turn(open_page: OpenPage, failed: Failed):
    page = await open_page(place_of(failed))
    button = page.get_by_role("button", name="problems: show the next")

    for name in ("duplicate", "error", "lost call", "rejected"):
        await button.click()
        await expect(page.locator(".event-panel h2")).to_contain_text(f"at offset {failed.offsets[name]}")


async def test_the_ledger_is_shown_as_each_provider_gets_it_with_its_faults(
    open_page: OpenPage, failed: Failed
):
    page = await open_page(place_of(failed))
    await page.get_by_role("tab", name="Ledger").click()
    await expect(page.locator(".faults").first).to_contain_text("c3")

    for provider in ("anthropic", "openai-chat", "openai-responses", "gemini", "bedrock"):
        async with page.expect_response(
            lambda answer, name=provider: f"format={name}" in answer.url
        ) as found:
            await page.get_by_label("As the request of").select_option(provider)
        assert (await found.value).status == 200
        await expect(page.get_by_role("region", name="Request")).to_contain_text("Lyon")


async def test_the_slider_travels_and_two_offsets_are_compared(open_page: OpenPage, failed: Failed):
    page = await open_page(place_of(failed, f"?at={failed.offsets['result']}"))
    await page.get_by_role("tab", name="Ledger").click()
    ledger = page.get_by_role("tabpanel", name="Ledger")
    await expect(ledger).to_contain_text("07:04")
    await expect(ledger).not_to_contain_text("timed out")
    await expect(page.locator(f"li.later button[data-offset='{failed.offsets['error']}']")).to_have_count(1)

    await page.get_by_role("tab", name="Difference").click()
    await page.get_by_label("since offset").fill(str(failed.offsets["call"]))
    await page.get_by_label("since offset").press("Enter")
    await expect(page.locator("ins").filter(has_text="07:04").first).to_be_visible()

    await page.get_by_role("button", name="Now").click()
    await expect(page.locator("ins").filter(has_text="timed out").first).to_be_visible()
    await expect(page).not_to_have_url(re.compile("at="))


async def test_the_slider_leaves_out_the_gap_behind_a_sealed_topic(open_page: OpenPage, stored: Projected):
    run = await stored.run(UserMessage(message="before"), run_id="goes-on")
    entry = await seal(stored.runfold, run.life)
    await stored.publish(run, UserMessage(message="after"))
    page = await open_page("/runs/goes-on")

    await expect(page.locator(".run-facts")).to_contain_text(
        f"Sealed up to offset {entry.end}, goes on at {entry.base:,}"
    )
    await expect(page.locator(".run-facts")).to_contain_text("Records 3")
    await expect(page.locator("#travel-place")).to_have_text("now (3 records)")
    await page.get_by_label("As of").press("ArrowLeft")
    await expect(page.locator("#travel-place")).to_contain_text("offset 1")
    await page.get_by_label("As of").press("ArrowRight")
    await expect(page.locator("#travel-place")).to_have_text("now (3 records)")


async def test_the_head_of_a_run_is_read_again_until_it_has_what_is_shown(
    open_page: OpenPage, api: httpx.AsyncClient, stored: Projected
):
    await stored.run(UserMessage(message="said"), run_id="unfolded")
    path = "/v1/runs/unfolded"
    record = (await api.get(path)).json()
    unfolded = record | {"next_offset": 0, "counts": {}, "status": "pending"}
    answers = [unfolded, unfolded]

    async def answer(route: Route) -> None:
        document = answers.pop() if answers else record
        await route.fulfill(status=200, content_type="application/json", body=json.dumps(document))

    page = await open_page("/nowhere")
    await page.route(f"**{path}", answer)
    await page.goto(f"{api.base_url}#/runs/unfolded")

    await expect(page.locator(".run-facts")).to_contain_text("Records 2")
    assert answers == []


async def test_a_run_is_forked_before_its_error(open_page: OpenPage, failed: Failed):
    page = await open_page(place_of(failed))
    await choose(page, failed.offsets["result"])
    await page.locator(".panel").get_by_role("button", name="Fork here").click()
    await page.get_by_label("Id of the new run").fill("forked")
    await page.get_by_role("dialog").get_by_role("button", name="Fork", exact=True).click()

    await expect(page.get_by_role("heading", level=1)).to_have_text("forked")
    origin = f"{failed.run.run_id} at {failed.offsets['result']}"
    await expect(page.locator(".run-header").get_by_role("link", name=origin)).to_be_visible()
    await expect(page.get_by_text("timed out")).to_have_count(0)
    # Only the result that the fork has added follows the copies.
    await expect(page.locator(".copied ~ .event")).to_have_count(1)
    await page.locator(".copied", has_text="copied up to here").get_by_role("link", name=origin).click()
    await expect(page.locator(".event-panel h2")).to_contain_text(f"at offset {failed.offsets['result']}")


async def test_a_run_is_forked_before_a_call_or_a_turn(open_page: OpenPage, failed: Failed):
    page = await open_page(place_of(failed))
    for name, what in (("call", "call"), ("answer", "turn")):
        panel = page.locator(".panel")
        await choose(page, failed.offsets[name])
        await panel.get_by_role("button", name=f"Fork before this {what}").click()
        offset = failed.offsets[name] - 1
        await expect(page.get_by_role("dialog")).to_contain_text(f"up to and including offset {offset}.")
        await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()

    await choose(page, failed.offsets["result"])
    await expect(page.get_by_role("button", name="Fork before")).to_have_count(0)


async def test_state_is_shown_with_the_event_that_set_it(open_page: OpenPage, stored: Projected):
    run = await stored.run(run_id="with-state")
    first = await run.publish(UserMessage(message="A17"), state_delta={"order": "A17"})
    last = await run.publish(UserMessage(message="B18"), state_delta={"order": "B18"})
    await stored.holds(run, last.offset)
    page = await open_page(f"/runs/with-state?at={first.offset}")

    await page.get_by_role("tab", name="State").click()
    await expect(page.get_by_role("region", name="order")).to_have_text("A17")
    await page.get_by_role("button", name="Now").click()
    await expect(page.get_by_role("region", name="order")).to_have_text("B18")
    await page.get_by_role("button", name=f"set at offset {last.offset}").click()
    await expect(page.locator(".event-panel h2")).to_contain_text(f"at offset {last.offset}")


UNUSUAL: Sequence[tuple[Framework, dict[str, Any]]] = (
    ("adk", {"content": {"parts": [None]}}),
    ("adk", {"content": {"parts": [{"function_call": {"name": {"toString": 1}}}]}}),
    ("openai-agents", {"type": "message", "role": "user", "content": [None]}),
    ("openai-agents", {"type": "message", "role": "constructor", "content": "Hi"}),
    ("openai-agents", {"type": "reasoning", "summary": [None]}),
)
"""Bodies that no framework makes, and that are accepted."""


async def test_no_event_hides_those_behind_it(open_page: OpenPage, stored: Projected):
    events = [FrameworkEvent(framework=framework, body=body) for framework, body in UNUSUAL]
    run = await stored.run(*events, AssistantMessage(message="Behind"), run_id="unusual")
    page = await open_page("/runs/unusual")
    behind = len(UNUSUAL) + 1
    await expect(row(page, behind)).to_contain_text("Behind")
    await expect(page.locator(".is-live")).to_be_visible()

    await run.publish(AssistantMessage(message="A line\u2028and a paragraph\u2029"))

    await expect(row(page, behind + 1)).to_contain_text("A line")
    await run.complete()


async def test_a_live_run_grows_in_view_until_it_ends(open_page: OpenPage, stored: Projected):
    run = await stored.run(UserMessage(message="Begin"), run_id="live", agent_id="live-desk")
    page = await open_page("/runs/live")
    await expect(page.locator(".is-live")).to_be_visible()

    await run.publish(ToolCall(tool_call_id="c1", tool_name="slow", payload={}))
    await expect(page.locator(".ribbon-open")).to_have_count(1)
    await run.publish(ToolResult(tool_call_id="c1", tool_name="slow", result="done at last"))
    await expect(page.locator(".ribbon-done")).to_have_count(1)
    await expect(page.get_by_text("done at last")).to_be_visible()
    await run.complete()

    await expect(page.locator(".run-header .status-completed")).to_be_visible()


async def test_a_run_that_is_opened_in_an_outage_appears_after_it(
    browser: Browser, api: httpx.AsyncClient, failed: Failed
):
    page = await browser.new_page()
    problem = json.dumps({"detail": "MongoDB is not available"})

    async def refuse(route: Route) -> None:
        await route.fulfill(status=503, content_type="application/problem+json", body=problem)

    await page.route("**/v1/runs/**", refuse)
    await page.goto(f"{api.base_url}#{place_of(failed)}")
    await expect(page.get_by_role("alert")).to_have_text("MongoDB is not available")
    await expect(page.get_by_text("tries again")).to_be_visible()
    await page.unroute("**/v1/runs/**")

    await expect(page.get_by_role("heading", level=1)).to_have_text(failed.run.run_id)
    await expect(page.locator(".event").first).to_be_visible()
    await expect(page.get_by_role("alert")).to_have_count(0)
    await page.close()


async def test_an_unknown_run_is_said_to_be_unknown(browser: Browser, api: httpx.AsyncClient):
    page = await browser.new_page()
    await page.goto(f"{api.base_url}#/runs/nobody")

    await expect(page.get_by_role("alert")).to_contain_text("nobody")
    await page.close()
