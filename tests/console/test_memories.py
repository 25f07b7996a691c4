"""Memories in a browser: banks and scopes, the search by meaning, revisions and rollback."""

import re
from dataclasses import dataclass
from uuid import uuid4

import httpx
import pytest
from playwright.async_api import expect
from tests.console.conftest import OpenPage
from tests.querying import Projected

from runfold import Memory, UserMessage
from runfold_schemas.events import GenerationRequested, MemoriesGenerated, MemoryCreated, MemoryUpdated

SCOPE = {"user": "ann"}


@dataclass
class Bank:
    """A bank with a memory that a generation in a run has changed."""

    bank_id: str
    run_id: str
    offset: int

    @property
    def place(self) -> str:
        return f"/memories/{self.bank_id}/seat"


@pytest.fixture(scope="module")
async def bank(stored: Projected) -> Bank:
    memories, bank_id = stored.runfold.memories, f"bank-{uuid4().hex}"
    await memories.create_bank(bank_id)
    for memory_id, fact in {"seat": "Prefers window seats", "pet": "Travels with a small dog"}.items():
        await memories.create(bank_id, Memory(fact=fact, scope=SCOPE), memory_id=memory_id)
    other = Memory(fact="Lives in Lyon", scope={"user": "ben"})
    await memories.create(bank_id, other, memory_id="home")
    run = await stored.runfold.open_run(agent_id="learner")
    question = await run.publish(UserMessage(message="An aisle seat, please. It is a long flight."))
    request = run.event(
        GenerationRequested(
            bank_id=bank_id,
            scope=SCOPE,
            first_offset=question.offset,
            end_offset=question.offset + 1,
            reason="request",
        )
    )
    await run.publish(request)
    changed = Memory(fact="Prefers aisle seats on long flights", scope=SCOPE)
    update = MemoryUpdated(bank_id=bank_id, memory_id="seat", memory=changed)
    generated = MemoriesGenerated(bank_id=bank_id, trigger=request.event_id, updated=(update,))
    place = await run.publish(generated)
    await stored.holds(run, place.offset)
    return Bank(bank_id, run.run_id, place.offset)


async def test_memories_of_a_scope_are_found_by_meaning(open_page: OpenPage, bank: Bank):
    page = await open_page(f"/memories?bank={bank.bank_id}")
    await expect(page.locator(".row-link")).to_have_count(3)

    await page.get_by_label("Search by meaning").fill("Is there a pet?")
    await expect(page.get_by_text("within one scope")).to_be_visible()
    await page.locator(".tags").get_by_role("link", name="user:ann").click()

    await expect(page.locator(".row-link")).to_have_count(2)
    await expect(page.locator(".row-link").first).to_have_text("Travels with a small dog")
    await expect(page.locator(".table-body .col-distance").first).to_have_text(re.compile(r"^[01]\.\d\d$"))
    await expect(page).to_have_url(re.compile(r"scope=user%3Aann&query=Is\+there\+a\+pet%3F"))


async def test_a_revision_shows_its_words_and_the_event_that_made_it(open_page: OpenPage, bank: Bank):
    page = await open_page(bank.place)
    update = page.locator(".revision-updated")

    await expect(update.locator("del")).to_have_text(["window"])
    await expect(update.locator("ins")).to_have_text(["aisle", " on long flights"])
    await expect(page.locator(".revision-created ins, .revision-created .origin")).to_have_count(0)
    await expect(page.locator(".revision-created")).to_contain_text("Changed directly, not by a run")
    await expect(update.locator(".origin")).to_have_text(re.compile("generated from event 1$"))
    await update.get_by_role("link", name=f"event {bank.offset}").click()

    await expect(page.get_by_role("heading", level=1, name=bank.run_id)).to_be_visible()
    await expect(page.locator("rf-timeline [aria-current]")).to_contain_text("Prefers aisle seats")


async def test_a_revision_leads_to_the_session_that_it_was_generated_from(
    open_page: OpenPage, stored: Projected
):
    bank_id = f"bank-{uuid4().hex}"
    await stored.runfold.memories.create_bank(bank_id)
    run = await stored.runfold.open_run(agent_id=bank_id)
    options = {"session": {"session_id": "s/1", "since": None, "until": None}}
    request = run.event(
        GenerationRequested(
            bank_id=bank_id, scope=SCOPE, first_offset=0, end_offset=0, reason="request", options=options
        )
    )
    await run.publish(request)
    fact = Memory(fact="Prefers tea", scope=SCOPE)
    created = MemoryCreated(bank_id=bank_id, memory_id="tea", memory=fact)
    generated = MemoriesGenerated(bank_id=bank_id, trigger=request.event_id, created=(created,))
    place = await run.publish(generated)
    await stored.holds(run, place.offset)

    page = await open_page(f"/memories/{bank_id}/tea")
    session = page.locator(".origin", has_text="generated from the session").get_by_role("link").last
    await expect(session).to_have_text("s/1")
    await expect(session).to_have_attribute("href", "#/sessions/s%2F1")


async def test_a_rollback_asks_first(open_page: OpenPage, bank: Bank, stored: Projected):
    page = await open_page(bank.place)
    created = page.locator(".revision-created")
    await created.get_by_role("button", name="Roll back to this").click()
    dialog = page.get_by_role("dialog", name="Roll this memory back")
    await dialog.get_by_role("button", name="Cancel").click()
    await expect(dialog).to_have_count(0)
    before = await stored.runfold.memories.get(bank.bank_id, "seat")

    await created.get_by_role("button", name="Roll back to this").click()
    await dialog.get_by_role("button", name="Roll back", exact=True).click()

    await expect(page.locator(".memory-fact")).to_have_text("Prefers window seats")
    await expect(page.locator(".revision").first).to_contain_text("Rolled back")
    await expect(dialog).to_have_count(0)
    assert before.memory.fact == "Prefers aisle seats on long flights"


async def test_a_key_that_only_reads_is_offered_no_rollback(
    open_page: OpenPage, bank: Bank, secured: httpx.AsyncClient
):
    page = await open_page(bank.place, base=secured)
    await page.get_by_label("API key or token").fill("read")
    await page.get_by_role("button", name="Log in").click()

    await expect(page.locator(".revision-created")).to_be_visible()
    await expect(page.get_by_role("button", name="Roll back to this")).to_have_count(0)


async def test_a_deleted_memory_has_its_revisions(open_page: OpenPage, bank: Bank, stored: Projected):
    await stored.runfold.memories.delete(bank.bank_id, "pet")

    page = await open_page(f"/memories/{bank.bank_id}/pet")

    await expect(page.get_by_text("The memory was deleted.")).to_be_visible()
    await expect(page.get_by_role("button", name="Roll back to this")).to_be_visible()
