"""Where the parts of a page lie, compared with stored pictures of letters.

A screenshot differs with each version of Chromium and each font. So a page is looked at in a grid:
each place of the grid has the letter of the part that a reader sees there. Texts, times and ids
change no letter. A part that is hidden, covered, moved or squeezed changes many.

If a layout is meant to change, delete its file: the test writes it, and fails once.
"""

from contextlib import suppress
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from tests.console.conftest import OpenPage
from tests.processes import until
from tests.querying import Projected

from runfold import AssistantMessage, ToolCall, ToolResult, UserMessage

FOLDER = Path(__file__).parent / "layouts"

CELL_PIXELS = 20
DIFFERENT_MAX = 0.08
"""The share of the places that may differ: another font moves a border by a line."""

PARTS = {
    "H": "header.top",
    "F": ".filters",
    "C": "[role=row]:has([role=columnheader])",
    "W": "[role=row]",
    "N": ".note",
    "R": ".run-header",
    "S": "rf-travel",
    "O": ".timeline-tools",
    "U": ".turn",
    "E": ".event",
    "T": "rf-timeline",
    "M": "rf-minimap",
    "A": "[role=tablist]",
    "P": "[role=tabpanel]",
}
"""The selectors of the parts by their letters. Of parts within parts, the first one here counts."""

LOOK = """([cell, parts]) => {
    const lines = [];
    for (let y = cell / 2; y < innerHeight; y += cell) {
        let line = "";
        for (let x = cell / 2; x < innerWidth; x += cell) {
            const element = document.elementFromPoint(x, y);
            const part = parts.find(([, selector]) => element?.closest(selector));
            line += part ? part[0] : ".";
        }
        lines.push(line);
    }
    return lines.join("\\n") + "\\n";
}"""

PAGES = {
    "runs": ("/runs?agent_id=layout-desk", [".row-link"], 1280),
    "run": ("/runs/layout?offset=3", [".event-panel h2", ".run-header h1", ".is-ended"], 1280),
    "run-on-a-phone": ("/runs/layout", [".event", ".run-header h1", ".is-ended"], 400),
}
"""The address of each page, what it shows when it is complete, and its width."""


@pytest.fixture(scope="module")
async def shown(stored: Projected) -> None:
    run = await stored.run(run_id="layout", agent_id="layout-desk", labels={"channel": "chat"})
    await run.publish(UserMessage(message="To Lyon?"), turn_id="t1")
    await run.publish(ToolCall(tool_call_id="c1", tool_name="trains", payload={"to": "Lyon"}), turn_id="t1")
    await run.publish(ToolResult(tool_call_id="c1", tool_name="trains", error="timed out"), turn_id="t1")
    await run.publish(AssistantMessage(message="Later."), turn_id="t1")
    end = await run.complete()
    await stored.holds(run, end.offset)


async def picture(page: Page) -> str:
    return str(await page.evaluate(LOOK, [CELL_PIXELS, list(PARTS.items())]))


def share_of_differences(one: str, other: str) -> float:
    if len(one) != len(other):
        return 1
    return sum(a != b for a, b in zip(one, other, strict=True)) / len(one)


async def opened(open_page: OpenPage, name: str) -> Page:
    place, complete, width = PAGES[name]
    page = await open_page(place, viewport={"width": width, "height": 800})
    for selector in complete:
        await expect(page.locator(selector).first).to_be_attached()
    return page


@pytest.mark.parametrize("name", PAGES)
async def test_the_parts_of_a_page_lie_where_they_did(open_page: OpenPage, shown: None, name: str):
    page, file = await opened(open_page, name), FOLDER / f"{name}.txt"
    if not file.exists():
        file.write_text(await picture(page))
        pytest.fail(f"{file.name} was not there and is written: look at it, and run the test again")
    expected = file.read_text()

    async def is_complete() -> bool:
        return share_of_differences(expected, await picture(page)) <= DIFFERENT_MAX

    # The last parts of a page may come after those that were waited for.
    with suppress(AssertionError):
        await until(is_complete, seconds=60, what="the layout")
    seen = await picture(page)
    assert share_of_differences(expected, seen) <= DIFFERENT_MAX, f"{name} looks like\n{seen}"


async def test_a_part_that_is_gone_is_seen(open_page: OpenPage, shown: None):
    page = await opened(open_page, "run")
    before = await picture(page)

    await page.evaluate("document.querySelector('rf-run aside').style.display = 'none'")

    assert share_of_differences(before, await picture(page)) > DIFFERENT_MAX
