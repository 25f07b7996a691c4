"""Items that leave a conversation of the OpenAI Agents SDK: cleared, compacted, or deleted with
their session.
"""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, function_tool
from agents.items import TResponseInputItem
from agents.memory import OpenAIResponsesCompactionSession
from google.adk.events import Event
from google.genai.types import Content, Part
from tests.agents_sdk import ScriptedModel, SessionOpening, answers, asked, calls, texts, user
from tests.processes import until

from runfold import Runfold, SessionConflictError, SessionNotFoundError
from runfold.adk import RunfoldSessionService
from runfold.openai_agents import RunfoldSession

SUMMARY: list[Any] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "c2VhbGVk"},
]


class Compactor:
    """The client of a service that compacts every conversation to `SUMMARY`."""

    def __init__(self) -> None:
        self.responses = SimpleNamespace(compact=self._compact)
        self.compactions = 0

    async def _compact(self, **_: Any) -> SimpleNamespace:
        self.compactions += 1
        return SimpleNamespace(output=SUMMARY, usage=None)


def compacting(session: RunfoldSession, compactor: Any) -> OpenAIResponsesCompactionSession:
    return OpenAIResponsesCompactionSession(
        session.session_id,
        session,
        client=compactor,
        compaction_mode="input",
        should_trigger_compaction=lambda context: len(context["compaction_candidate_items"]) > 1,
    )


async def events(runfold: Runfold, session_id: str) -> list[str]:
    """The kinds of the events in the session's log, from its opening on."""
    run = await runfold.get_run(await runfold.sessions.run_id(session_id))
    return [one.event.type async for one in run.history() if one.event]


async def test_clearing_removes_the_items_and_nothing_else(
    session: RunfoldSession, open_session: SessionOpening, session_id: str, runfold: Runfold
):
    created = await runfold.sessions.create(
        app="shop",
        user="ann",
        session_id=session_id,
        state={"k": 1},
        labels={"team": "red"},
        display_name="A talk",
        ttl=timedelta(hours=1),
    )
    other = await runfold.open_run(agent_id="another", session_id=session_id)
    await session.add_items([user(1), user(2)])

    await session.clear_session()
    await session.clear_session()

    assert await session.get_items() == [] == await open_session(session_id).get_items()
    found = await runfold.sessions.view(session_id)
    assert (found.record, found.state) == (created.record, {"k": 1})
    assert (await runfold.get_run(other.run_id)).life == other.life
    assert await events(runfold, session_id) == [
        "run_opened",
        "framework_event",
        "framework_event",
        "event_amended",
        "event_amended",
    ]
    run = await runfold.get_run(found.record.run_id)
    assert list(await run.ledger()) == []


async def test_a_conversation_longer_than_one_batch_of_amendments_is_cleared(
    session: RunfoldSession, open_session: SessionOpening, session_id: str
):
    for number in range(2):
        await session.add_items([user(f"{number} {index}") for index in range(1_200)])

    await session.clear_session()
    await session.add_items([user("after")])

    assert texts(await open_session(session_id).get_items()) == ["after"]


async def test_the_sdks_compaction_replaces_the_items_in_one_batch(
    session: RunfoldSession, open_session: SessionOpening, session_id: str, runfold: Runfold
):
    await runfold.sessions.create(app="shop", session_id=session_id, state={"k": 1}, labels={"team": "red"})
    compactor = Compactor()
    compacted = compacting(session, compactor)
    model = ScriptedModel(calls("Lyon"), answers("Rain."), answers("Yes."))
    await asked(model, "one", compacted)
    await compacted.run_compaction({"force": True})

    assert await open_session(session_id).get_items() == SUMMARY
    await asked(model, "Again?", compacted)

    assert compactor.compactions >= 1
    assert model.asked[-1][:2] == SUMMARY
    found = await runfold.sessions.view(session_id)
    assert (dict(found.record.labels), found.state) == ({"team": "red"}, {"k": 1})
    kinds = await events(runfold, session_id)
    assert kinds[:11] == [
        "run_opened",
        *["framework_event"] * 4,
        *["event_amended"] * 4,
        *["framework_event"] * 2,
    ]


async def test_items_that_are_added_meanwhile_do_not_come_between_those_that_replace(
    session: RunfoldSession, open_session: SessionOpening, session_id: str
):
    await session.add_items([user("old")])
    other = open_session(session_id)

    await asyncio.gather(
        session._atomic_replace_items(SUMMARY), *(other.add_items([user(number)]) for number in range(5))
    )

    await other.add_items([user("later")])
    items: list[Any] = await session.get_items()
    first = items.index(SUMMARY[0])
    assert items[first : first + 2] == SUMMARY
    assert set(texts(items[:first] + items[first + 2 :])) <= {"0", "1", "2", "3", "4", "later"}
    assert items[-1] == user("later")


async def test_what_replaces_the_items_is_added_to_a_session_without_items(
    session: RunfoldSession, session_id: str
):
    assert await session._atomic_replace_items(SUMMARY)

    assert await session.get_items() == SUMMARY


async def test_a_subclass_replaces_its_items_by_its_own_methods(access: dict[str, Any], session_id: str):
    class Shouting(RunfoldSession):
        async def add_items(self, items: list[TResponseInputItem]) -> None:
            await super().add_items([user(text.upper()) for text in texts(items)])

    async with Shouting(session_id, **access) as session:
        await session.add_items([user("old")])

        assert not await session._atomic_replace_items([user("new")])

        assert texts(await session.get_items()) == ["OLD"]


async def test_a_session_of_another_framework_is_not_cleared(
    access: dict[str, Any], open_session: SessionOpening, session_id: str
):
    service = RunfoldSessionService(**access)
    theirs = await service.create_session(
        app_name="shop", user_id="ann", session_id=session_id.replace("/", "-")
    )
    await service.append_event(
        theirs, Event(author="user", content=Content(role="user", parts=[Part(text="hi")]))
    )
    session = open_session(f"shop/ann/{theirs.id}")

    for refused in (session.clear_session(), session._atomic_replace_items(SUMMARY)):
        with pytest.raises(SessionConflictError, match="events of the framework 'adk'") as error:
            await refused
        assert error.value.framework == "adk"

    found = await service.get_session(app_name="shop", user_id="ann", session_id=theirs.id)
    assert found is not None
    assert len(found.events) == 1
    await service.close()


async def test_a_session_that_a_tool_deletes_stays_deleted(
    session: RunfoldSession, open_session: SessionOpening, session_id: str, runfold: Runfold
):
    @function_tool
    async def weather(place: str) -> str:
        """The weather of a place, which is not to be kept."""
        await runfold.sessions.delete(session_id)
        return f"rain in {place}"

    agent = Agent(name="desk", model=ScriptedModel(calls("Lyon"), answers("Rain.")), tools=[weather])

    with pytest.raises(SessionNotFoundError):
        await Runner.run(agent, "How?", session=session, run_config=RunConfig(tracing_disabled=True))

    with pytest.raises(SessionNotFoundError):
        await session.add_items([user("late")])
    assert await session.get_items() == []
    with pytest.raises(SessionNotFoundError):
        await runfold.sessions.view(session_id)
    await open_session(session_id).add_items([user("anew")])
    assert texts(await session.get_items()) == ["anew"]


async def test_a_session_that_has_expired_does_not_come_back_without_its_expiry(
    session: RunfoldSession, session_id: str, runfold: Runfold
):
    await runfold.sessions.create(app="shop", session_id=session_id, ttl=timedelta(hours=1))
    await session.add_items([user(1)])
    await runfold.sessions.update(session_id, ttl=timedelta(milliseconds=1))

    async def is_refused() -> bool:
        try:
            await session.add_items([user(2)])
        except SessionNotFoundError:
            return True
        return False

    # A process that has the session open looks for its expiry every two seconds.
    await until(is_refused, what="the expiry of the session")
    with pytest.raises(SessionNotFoundError):
        await runfold.sessions.view(session_id)
