"""Makes the pictures of README.md: the console with the conversations of the tests, in a Chromium.

python -m tests.console.pictures

The conversations have no times and no tokens. Each event gets a time by the length of its text, and
each answer its tokens, so the pictures show the same numbers each time.
"""

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx
from playwright.async_api import Page, async_playwright, expect
from tests.console.browsers import chromium
from tests.conversations import Chat, conversations, events_of
from tests.ingesting import is_ready
from tests.processes import until
from tests.querying import Projected, projected, served
from tests.servers import servers

from runfold import AssistantMessage, SystemMessage, TokenUsage, ToolCall, ToolResult, UserMessage
from runfold.api.app import build_app
from runfold.settings import Settings
from runfold_schemas.data import Data
from runfold_schemas.events import PhaseChanged, RunCanceled, RunCompleted, RunFailed

FOLDER: Final = Path(__file__).parents[2] / "docs" / "pictures"
BYTES_MAX: Final = 150_000

RUNS: Final = 100
FAILED: Final = "airline-46-3"
"""A run in which three calls of a tool fail."""
ERRORS_MAX: Final = 3
"""After so many errors of tools, the agent gives up."""
TRANSFER: Final = "transfer_to_human_agents"

FIRST: Final = datetime(2026, 11, 23, 8, 2, 11, tzinfo=UTC)
NOW: Final = FIRST + timedelta(minutes=150)
"""What the browser takes for the present time."""
CHARACTERS_A_TOKEN: Final = 4
ANSWER_SECONDS_A_CHARACTER: Final = 0.012
READ_SECONDS_A_CHARACTER: Final = 0.04
TOOL_SECONDS_A_CHARACTER: Final = 0.0009

VIEWPORT: Final = {"width": 1200, "height": 600}


MILLISECONDS_MAX: Final = 60_000


async def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    expect.set_options(timeout=MILLISECONDS_MAX)
    name = f"pictures{uuid4().hex[:6]}"
    async with servers() as addresses:
        settings = Settings(kafka=addresses.kafka, mongo=addresses.mongo, prefix=name, database=name)
        async with projected(settings) as stored, served(build_app(settings)) as api:
            await until(lambda: is_ready(api), what="the API's connection to Kafka")
            shown = conversations()[-RUNS:]
            async with asyncio.TaskGroup() as publishing:
                for number, conversation in enumerate(shown):
                    begin, is_live = FIRST + timedelta(minutes=1.5 * number), number == len(shown) - 1
                    publishing.create_task(publish(stored, conversation, begin, is_live=is_live))
            async with opened(api) as page:
                await take(page)


async def publish(stored: Projected, conversation: Chat, now: datetime, *, is_live: bool) -> None:
    """Publishes a conversation as a run. A live one goes on after its first half."""
    messages = conversation["messages"]
    run = await stored.runfold.open_run(
        agent_id="airline",
        run_id=conversation["id"],
        session_id=conversation["id"].rpartition("-")[0],
        labels={"channel": "chat"},
        started_at=now,
    )
    turn, read, errors = 0, 0, []
    ending: Data = RunCompleted()
    for message in messages[: len(messages) // 2] if is_live else messages:
        turn += message["role"] == "user"
        begin = read
        for data in with_errors(message):
            now += timedelta(seconds=seconds_of(data))
            read += size_of(data)
            await run.send(data, turn_id=f"turn-{turn}", timestamp=now)
            if isinstance(data, ToolResult) and data.error is not None:
                errors.append(data.error)
            if isinstance(data, ToolCall) and data.tool_name == TRANSFER:
                ending = RunCanceled(reason="transferred to a human agent")
        if message["role"] == "assistant":
            usage = TokenUsage(
                model="gpt-4o",
                input_tokens=begin // CHARACTERS_A_TOKEN,
                output_tokens=(read - begin) // CHARACTERS_A_TOKEN,
            )
            await run.send(usage, turn_id=f"turn-{turn}", timestamp=now)
        if len(errors) == ERRORS_MAX:
            ending = RunFailed(error=errors[-1])
            break
    if is_live:
        ending = PhaseChanged(phase="planning")
    position = await run.publish(ending, timestamp=now)
    await stored.holds(run, position.offset)


def with_errors(message: Chat) -> Iterator[Data]:
    """The events of a message. Tools that failed say so in the text of their result."""
    for data in events_of(message):
        text = data.result if isinstance(data, ToolResult) else ""
        if isinstance(text, str) and text.startswith("Error: "):
            yield ToolResult(
                tool_call_id=data.tool_call_id,
                tool_name=data.tool_name,
                error=text.removeprefix("Error: "),
            )
        else:
            yield data


def size_of(data: Data) -> int:
    return len(data.model_dump_json())


def seconds_of(data: Data) -> float:
    """How long the event took."""
    match data:
        case UserMessage():
            return 4 + READ_SECONDS_A_CHARACTER * len(data.message)
        case AssistantMessage():
            return 0.6 + ANSWER_SECONDS_A_CHARACTER * len(data.message)
        case ToolCall():
            return 0.9
        case ToolResult():
            return 0.12 + TOOL_SECONDS_A_CHARACTER * size_of(data)
        case SystemMessage():
            return 0
    return 0.1


@asynccontextmanager
async def opened(api: httpx.AsyncClient) -> Any:
    async with async_playwright() as playwright:
        browser = await chromium(playwright)
        page = await browser.new_page(
            viewport=VIEWPORT,
            color_scheme="light",
            timezone_id="UTC",
            locale="en-GB",
            base_url=str(api.base_url),
        )
        await page.clock.set_fixed_time(NOW)
        yield page
        await browser.close()


async def take(page: Page) -> None:
    """Takes the three pictures."""
    await page.goto("/#/runs")
    await expect(page.locator("rf-table .row-link").first).to_be_visible()
    await save(page, "runs")

    await page.goto(f"/#/runs/{FAILED}")
    await expect(page.locator(".is-ended")).to_be_attached()
    problem = page.get_by_role("button", name="problems: show the next")
    await problem.click()
    await save(page, "run")

    await problem.click()
    await page.get_by_role("button", name="Travel here").click()
    await page.get_by_role("tab", name="Difference").click()
    await expect(page.locator("ins").first).to_be_visible()
    await save(page, "difference")


async def save(page: Page, name: str) -> None:
    await page.wait_for_timeout(500)
    file = FOLDER / f"{name}.png"
    await page.screenshot(path=file, animations="disabled")
    print(f"{file.relative_to(FOLDER.parents[1])}: {file.stat().st_size:,} bytes")
    assert file.stat().st_size <= BYTES_MAX


if __name__ == "__main__":
    asyncio.run(main())
