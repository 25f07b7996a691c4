"""The operations in a browser: what is set aside, the ways out of it, and how a fault looks."""

import json
from datetime import UTC, datetime

import httpx
from playwright.async_api import Browser, Page, Route, expect
from tests.console.conftest import OpenPage
from tests.processes import append_raw
from tests.querying import Projected

from runfold import UserMessage
from runfold.store.quarantine import Quarantined

NOW = datetime.now(UTC).isoformat()
MENDED = {"type": "user_message", "data": {"message": "mended"}}


async def log_in(page: Page, key: str) -> None:
    await page.get_by_label("API key or token").fill(key)
    await page.get_by_role("button", name="Log in").click()


async def test_a_dead_letter_is_shown_and_published_again(open_page: OpenPage, stored: Projected):
    run = await stored.runfold.open_run(agent_id="desk", run_id="with-a-dead-letter")
    await append_raw(stored.runfold, run, b"<b>no event</b>")
    await run.publish(UserMessage(message="behind"))
    page = await open_page("/operations")
    row = page.get_by_role("table", name="Dead letters").get_by_role("row").filter(has_text=run.run_id)

    await row.get_by_role("button", name="Show").click()
    dialog = page.get_by_role("dialog", name="Dead letter")
    await expect(dialog.get_by_role("region", name="Content")).to_have_text("<b>no event</b>")
    await dialog.get_by_label("The event to publish").fill("{")
    await dialog.get_by_role("button", name="Publish again").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("no JSON")
    await dialog.get_by_label("The event to publish").fill(json.dumps(MENDED))
    await dialog.get_by_role("button", name="Publish again").click()

    await expect(dialog).to_have_count(0)
    await expect(row).to_contain_text("at 3")
    published = [event.data async for event in run.events() if isinstance(event.data, UserMessage)]
    assert [data.message for data in published] == ["behind", "mended"]


async def test_a_run_leaves_the_quarantine(open_page: OpenPage, stored: Projected):
    run = await stored.run(UserMessage(message="Hello"), run_id="set-aside")
    topic = stored.runfold.connection.topics.run(run.run_id, run.life.log_id)
    owner = stored.runfold.connection.topics.partitions - 1
    entry = Quarantined("run:set-aside", "run", topic, 0, 1, 2, owner, "<i>cannot</i>", datetime.now(UTC))
    await stored.stores.quarantine.add(entry)
    page = await open_page("/operations")
    row = page.get_by_role("table", name="Quarantine").get_by_role("row").filter(has_text="run:set-aside")
    await expect(row).to_contain_text("<i>cannot</i>")

    await row.get_by_role("button", name="Skip").click()
    dialog = page.get_by_role("dialog", name="Skip these records for good")
    await expect(dialog).to_contain_text("Offset 1 of")
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    assert await stored.stores.quarantine.get("run:set-aside") is not None
    await row.get_by_role("button", name="Retry").press("Enter")

    await expect(page.get_by_text("Nothing is set aside.")).to_be_visible()


async def test_all_of_the_quarantine_is_shown_on_request(open_page: OpenPage, api: httpx.AsyncClient):
    """The answers of the API are a script here."""
    entry = {"kind": "run", "topic": "t", "partition": 0, "offset": 1, "next_offset": 2, "reason": "damaged"}
    entries = [{**entry, "id": f"run:r{number}", "since": NOW, "attempts": 1} for number in range(230)]
    document = (await api.get("/v1/operations")).json() | {"quarantine": {"run": 230, "key": 0, "record": 0}}

    async def operations(route: Route) -> None:
        await route.fulfill(status=200, content_type="application/json", body=json.dumps(document))

    async def quarantine(route: Route) -> None:
        query = httpx.URL(route.request.url).params
        first = int(query.get("cursor", "0"))
        end = first + int(query["limit"])
        page = {"quarantine": entries[first:end], "next_cursor": str(end) if end < len(entries) else None}
        await route.fulfill(status=200, content_type="application/json", body=json.dumps(page))

    page = await open_page("/nowhere")
    await page.route("**/v1/operations", operations)
    await page.route("**/v1/quarantine?*", quarantine)
    await page.goto(f"{api.base_url}#/operations")
    rows = page.get_by_role("table", name="Quarantine").get_by_role("row")
    more = page.get_by_role("button", name="Show more")
    await expect(page.get_by_text("130 further")).to_be_visible()

    await more.click()
    await expect(rows).to_have_count(201)
    await more.click()
    await expect(rows).to_have_count(231)
    await expect(more).to_have_count(0)


async def test_faults_are_told(open_page: OpenPage, api: httpx.AsyncClient):
    """The answer of the API is a script here: these faults would take minutes."""
    document = (await api.get("/v1/operations")).json() | {
        "status": "failing",
        "reasons": ["partition 3 of the catalog has no projector"],
        "servers": [
            {"server": "Kafka at k:9092", "status": "away", "since": NOW, "last_error": "refused"}
            | {"last_error_at": NOW}
        ],
        "partitions_without_projector": [3, 4, 5, 7],
        "lag": {"records": 1200, "seconds": 95.0},
        "stuck": [
            {"what": "run", "name": "runfold.run.r-1.x", "run_id": "r-1", "reason": "logs go on"}
            | {"since": NOW, "worker_id": "p-0"}
        ],
        "rebuild": {"edition": "e", "status": "running", "started_at": NOW, "seen_at": NOW}
        | {"done_records": 50, "total_records": 200},
        "archive": {"status": "away", "last_error": "the disk is full", "committed_at": None}
        | {"records": None, "stored_bytes": None, "logs": 120_000},
        "verify": {"ended_at": NOW, "duration_seconds": 4.2, "status": "different", "differences": 2},
    }

    async def answer(route: Route) -> None:
        await route.fulfill(status=200, content_type="application/json", body=json.dumps(document))

    page = await open_page("/nowhere")
    await page.route("**/v1/operations", answer)
    await page.goto(f"{api.base_url}#/operations")

    await expect(page.get_by_role("status").first).to_contain_text("failing")
    await expect(page.get_by_text("partition 3 of the catalog has no projector")).to_be_visible()
    await expect(page.get_by_text("No projector has the partitions 3 to 5, 7.")).to_be_visible()
    await expect(page.locator(".figures")).to_contain_text("1 min 35 s")
    stuck = page.get_by_role("table", name="Stuck")
    await expect(stuck.get_by_role("link", name="r-1")).to_have_attribute("href", "#/runs/r-1")
    await expect(page.get_by_role("table", name="Servers")).to_contain_text("refused")
    await expect(page.get_by_role("progressbar", name="Progress")).to_have_attribute("value", "50")
    await expect(page.get_by_text("2 differences")).to_be_visible()
    archive = page.get_by_role("region", name="Archive")
    await expect(archive).to_contain_text("away the disk is full")

    document["status"], document["reasons"], document["stuck"] = "ok", [], []
    document["archive"] |= {"status": "ok", "last_error": None, "committed_at": NOW}
    document["archive"] |= {"records": 48_000_000, "stored_bytes": 12_340_000_000}
    await expect(page.get_by_role("status").first).to_contain_text("ok")
    await expect(stuck).to_have_count(0)
    await expect(archive).to_contain_text("12.3 GB")


async def test_the_server_that_is_away_is_named_while_there_are_no_figures(
    browser: Browser, api: httpx.AsyncClient
):
    """The answers of the API are a script here."""
    server = {"server": "MongoDB at m:27017", "status": "away", "since": NOW, "last_error": "timed out"}
    answers = {
        "operations": {"title": "Service Unavailable", "detail": "MongoDB is not available"},
        "ready": {"detail": "MongoDB is not available", "servers": [{**server, "last_error_at": NOW}]},
    }

    async def answer(route: Route) -> None:
        problem = answers[route.request.url.rsplit("/", 1)[1]]
        await route.fulfill(status=503, content_type="application/problem+json", body=json.dumps(problem))

    page = await browser.new_page()
    await page.route("**/v1/operations", answer)
    await page.route("**/health/ready", answer)
    await page.goto(f"{api.base_url}#/operations")

    await expect(page.get_by_role("alert")).to_contain_text("MongoDB is not available")
    servers = page.get_by_role("table", name="Servers")
    await expect(servers).to_contain_text("MongoDB at m:27017")
    await expect(servers).to_contain_text("away")
    await page.close()


async def test_operations_are_for_administrators(open_page: OpenPage, secured: httpx.AsyncClient):
    page = await open_page("/operations", base=secured)
    await log_in(page, "read")
    await expect(page.get_by_text("needs a key with the scope “administer”")).to_be_visible()
    await expect(page.get_by_role("link", name="Agents")).to_be_visible()
    await expect(page.get_by_role("link", name="Operations")).to_have_count(0)

    await page.get_by_role("button", name="Log out").click()
    await log_in(page, "administer")

    await expect(page.locator("rf-operations .figures")).to_be_visible()
    await expect(page.get_by_role("link", name="Agents")).to_have_count(0)
