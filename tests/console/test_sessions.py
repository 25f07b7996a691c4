"""Sessions in a browser: the list, the conversation as a chat, and the state with its history."""

import re
from dataclasses import dataclass
from urllib.parse import quote
from uuid import uuid4

import pytest
from playwright.async_api import Locator, Page, expect
from tests.console.conftest import OpenPage
from tests.querying import Projected

from runfold import AssistantMessage, ToolCall, ToolResult, UserMessage
from runfold_schemas.events import EventAmended

HOSTILE = "<img src=x onerror=alert(1)> [link](https://evil.example/)"


@dataclass
class Talk:
    """A session with a call of a tool and a deleted question, and the offsets of its events."""

    session_id: str
    run_id: str
    offsets: dict[str, int]

    @property
    def place(self) -> str:
        return f"/sessions/{quote(self.session_id, safe='')}"


@pytest.fixture(scope="module")
async def talk(stored: Projected) -> Talk:
    sessions, session_id = stored.runfold.sessions, f"talk/{uuid4().hex}"
    state = {"step": 0, "user:language": "fr"}
    session = await sessions.create(
        app="travel", user="ann", session_id=session_id, state=state, labels={"channel": "chat"}
    )
    offsets = {}
    for name, data, changes in [
        ("question", UserMessage(message=HOSTILE), {"step": 1}),
        ("call", ToolCall(tool_call_id="c1", tool_name="trains", payload={"to": "Lyon"}), {}),
        ("result", ToolResult(tool_call_id="c1", tool_name="trains", error="timed out"), {}),
        ("answer", AssistantMessage(message="Ask again."), {"step": 2}),
        ("deleted", UserMessage(message="Never mind"), {}),
    ]:
        position = await sessions.append(session_id, data, state_delta=changes)
        offsets[name] = position.offset
    await sessions.append(session_id, EventAmended(offset=offsets["deleted"], reason="popped"))
    return Talk(session_id, session.record.run_id, offsets)


def link_to_event(page: Page, talk: Talk, name: str) -> Locator:
    return page.locator(f"a[href='#/runs/{talk.run_id}?offset={talk.offsets[name]}']")


async def test_filters_of_sessions_are_kept_in_the_address(open_page: OpenPage, talk: Talk):
    page = await open_page("/sessions?user=ann")
    await expect(page.locator(".row-link", has_text=talk.session_id)).to_be_visible()

    await page.get_by_label("App", exact=True).fill("nobody")
    await expect(page.get_by_text("No session matches these filters.")).to_be_visible()

    await expect(page).to_have_url(re.compile(r"#/sessions\?user=ann&app=nobody$"))


async def test_a_conversation_is_a_chat_with_calls_folded_in_it(open_page: OpenPage, talk: Talk):
    page = await open_page(talk.place)

    await expect(page.locator(".chat-user").first).to_contain_text(HOSTILE)
    await expect(page.locator(".chat img")).to_have_count(0)
    await expect(page.locator(".chat-line.deleted")).to_contain_text("Never mind")
    await expect(page.locator(".chat-line.deleted .tag")).to_have_text("deleted: popped")
    call = page.locator(".chat-folded", has_text="trains")
    await expect(call).to_contain_text("error after")
    await call.locator("summary").press("Enter")
    await expect(call.get_by_label("Arguments")).to_contain_text("Lyon")
    await expect(call.get_by_label("Error")).to_have_text("timed out")

    await link_to_event(page, talk, "answer").first.click()

    await expect(page.locator("rf-timeline [aria-current]")).to_contain_text("Ask again.")


async def test_each_key_of_state_has_its_history(open_page: OpenPage, talk: Talk):
    page = await open_page(talk.place)
    step = page.locator(".key", has_text="step")
    await step.get_by_text("History").click()

    await expect(step.locator(".changes code")).to_have_text(["2", "1", "0"])
    link = step.locator(f".changes a[href$='?offset={talk.offsets['answer']}']")
    await expect(link).to_be_visible()
    await expect(page.locator(".key", has_text="user:language")).to_contain_text("shared by all sessions")
    await expect(step).not_to_contain_text("shared")


async def test_an_open_session_is_followed(open_page: OpenPage, stored: Projected, talk: Talk):
    page = await open_page(talk.place)
    await expect(page.locator(".is-live")).to_be_visible()

    session_id = f"live/{uuid4().hex}"
    sessions = stored.runfold.sessions
    await sessions.create(app="travel", user="ben", session_id=session_id)
    await page.evaluate("id => { location.hash = `#/sessions/${encodeURIComponent(id)}` }", session_id)
    await expect(page.get_by_role("heading", level=1)).to_have_text(session_id)
    await expect(page.locator(".is-live")).to_be_visible()
    await sessions.append(session_id, UserMessage(message="Hello"), state_delta={"step": 1})

    await expect(page.locator(".chat-user")).to_contain_text("Hello")
    await expect(page.locator(".key")).to_contain_text("step")

    await sessions.end(session_id)
    await expect(page.locator(".status-completed")).to_be_visible()


async def test_a_session_that_does_not_exist_is_named(open_page: OpenPage):
    page = await open_page("/sessions/never")

    await expect(page.get_by_role("alert")).to_contain_text("never")
