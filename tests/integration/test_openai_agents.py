"""Sessions of the OpenAI Agents SDK: what its own runner does with them, and what a conversation is
afterwards.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from agents.items import TResponseInputItem
from agents.memory.session import Session
from agents.memory.session_settings import SessionSettings
from tests.agents_sdk import ScriptedModel, SessionOpening, answers, asked, calls, texts, user
from tests.processes import environment
from tests.querying import ready_api
from tests.session_verbs import Projector, settled

from runfold import EventAmended, InvalidEventError, Run, Runfold, openai_agents
from runfold.openai_agents import RunfoldSession
from runfold.settings import Settings
from runfold_schemas.events import StandIn
from runfold_schemas.messages import TextPart, ToolResultPart, ToolUsePart

ANY: list[dict[str, Any]] = [
    {"role": "user", "content": "日本語 😀 \0 \u2028"},
    {
        "role": "user",
        "content": [{"type": "input_text", "text": ""}, {"type": "input_image", "image_url": None}],
    },
    {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"deep": {"a": [{"b": [1, 2**200, None, 0.1, -0.0, 1e22, True, ""]}]}}],
    },
    {"type": "of the future", "$set": {"a.b": 1}, "": None, "__proto__": {}},
    {"role": "assistant", "content": "a", "status": None},
]

ADDING = """
import asyncio, json, sys
from runfold.openai_agents import RunfoldSession

async def main(session_id, where, name):
    url = where.get("url")
    async with RunfoldSession(session_id, url) as session:
        for number in range(5):
            await session.add_items([{"role": "user", "content": f"{name} {number} {part}"} for part in "ab"])

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]))
"""


@pytest.fixture(scope="module")
async def url(settings: Settings, projector: Projector) -> AsyncIterator[str]:
    async with ready_api(settings) as client:
        yield str(client.base_url)


async def run_of(runfold: Runfold, session_id: str) -> Run:
    return await runfold.get_run(await runfold.sessions.run_id(session_id))


def test_it_is_a_session_of_the_sdk(session: RunfoldSession):
    assert isinstance(session, Session)


def test_its_settings_are_those_of_the_sdk_in_any_form():
    url = "http://127.0.0.1:8080"

    assert RunfoldSession("s", url).session_settings == SessionSettings()
    assert RunfoldSession("s", url, session_settings={"limit": 0}).session_settings == SessionSettings(
        limit=0
    )
    assert isinstance(RunfoldSession("s", url, session_settings={}).session_settings, SessionSettings)
    own = SessionSettings(limit=3)
    assert RunfoldSession("s", url, session_settings=own).session_settings is own
    with pytest.raises(TypeError, match="Unknown session settings: limitt"):
        RunfoldSession("s", url, session_settings={"limit": 1, "limitt": 2})


async def test_a_session_that_nobody_began_is_empty(session: RunfoldSession):
    assert await session.get_items() == []
    assert await session.get_items(limit=1) == []
    assert await session.pop_item() is None
    await session.clear_session()
    await session.add_items([])
    assert await session.get_items() == []


async def test_items_come_back_as_they_were_for_everybody(
    session: RunfoldSession, open_session: SessionOpening, session_id: str
):
    await session.add_items(ANY[:2])
    await session.add_items(ANY[2:])

    items = await open_session(session_id).get_items()

    assert repr(items) == repr(ANY)
    assert json.dumps(items) == json.dumps(ANY)
    assert [await session.pop_item() for _ in ANY] == ANY[::-1]


async def test_a_limit_takes_the_last_of_them(
    session: RunfoldSession, open_session: SessionOpening, session_id: str
):
    await session.add_items([user(number) for number in range(40)])
    said = [str(number) for number in range(40)]

    assert texts(await session.get_items()) == said
    for limit in (1, 2, 17, 40, 41):
        assert texts(await session.get_items(limit=limit)) == said[-limit:]
    assert await session.get_items(limit=0) == []
    assert texts(await session.get_items(limit=-1)) == said

    for settings in (SessionSettings(limit=2), {"limit": 2}):
        limited = open_session(session_id, session_settings=settings)
        assert texts(await limited.get_items()) == said[-2:]
    assert texts(await limited.get_items(limit=3)) == said[-3:]


async def test_a_limit_counts_what_was_not_popped(session: RunfoldSession):
    await session.add_items([user(number) for number in range(60)])
    for _ in range(40):
        await session.pop_item()

    assert texts(await session.get_items(limit=3)) == ["17", "18", "19"]
    assert len(await session.get_items(limit=30)) == 20


async def test_a_pop_takes_the_last_item_out(
    session: RunfoldSession, open_session: SessionOpening, session_id: str
):
    await session.add_items([user(1), user(2)])

    assert await session.pop_item() == user(2)
    await session.add_items([user(3)])
    assert texts(await open_session(session_id).get_items()) == ["1", "3"]
    assert await open_session(session_id).pop_item() == user(3)
    assert await session.pop_item() == user(1)
    assert await session.pop_item() is None


async def test_of_ten_who_pop_at_once_each_gets_another_item(
    session: RunfoldSession, open_session: SessionOpening, session_id: str
):
    await session.add_items([user(number) for number in range(12)])
    others = [open_session(session_id), open_session(session_id)]

    popped = await asyncio.gather(*(others[number % 2].pop_item() for number in range(10)))

    assert sorted(texts(popped), key=int) == [str(number) for number in range(2, 12)]
    assert texts(await session.get_items()) == ["0", "1"]


async def test_a_file_that_openai_has_under_an_id_is_in_the_next_request(
    session: RunfoldSession, session_id: str, runfold: Runfold
):
    content: Any = [{"type": "input_text", "text": "See:"}, {"type": "input_file", "file_id": "file-1"}]
    await session.add_items([{"role": "user", "content": content}])

    request = await (await run_of(runfold, session_id)).ledger("openai-responses")

    assert request.body["input"] == [{"role": "user", "content": content}]
    assert await session.get_items() == [{"role": "user", "content": content}]


async def test_what_is_popped_is_in_the_log_and_not_in_the_ledger(
    session: RunfoldSession, session_id: str, runfold: Runfold
):
    await session.add_items([user("kept"), user("popped")])
    await session.pop_item()

    run = await run_of(runfold, session_id)
    assert [one.event.type async for one in run.history() if one.event] == [
        "run_opened",
        "framework_event",
        "framework_event",
        "event_amended",
    ]
    assert [part.text for message in await run.ledger() for part in message.parts] == ["kept"]


async def test_an_item_that_a_repair_has_changed_still_stands(
    session: RunfoldSession, session_id: str, runfold: Runfold
):
    await session.add_items([user("one"), user("two")])
    stands = StandIn(type="user_message", data={"message": "eins"})

    await runfold.sessions.append(session_id, EventAmended(offset=1, stand_ins=(stands,), reason="mended"))

    assert texts(await session.get_items()) == ["one", "two"]


async def test_a_cleared_session_begins_anew(
    session: RunfoldSession, open_session: SessionOpening, session_id: str
):
    other = open_session(session_id)
    await session.add_items([user("before")])
    await other.add_items([user("and more")])

    await session.clear_session()

    assert await session.get_items() == [] == await other.get_items()
    assert await other.pop_item() is None
    await other.add_items([user("after")])
    await session.add_items([user("it")])
    assert texts(await session.get_items()) == ["after", "it"] == texts(await other.get_items())


async def test_a_session_that_is_cleared_while_others_pop_is_empty_for_them(
    session: RunfoldSession, open_session: SessionOpening, session_id: str
):
    items = [user(number) for number in range(6)]
    await session.add_items(items)
    other = open_session(session_id)

    async def pop_all() -> list[TResponseInputItem]:
        popped = []
        while (item := await other.pop_item()) is not None:
            popped.append(item)
        return popped

    popped, _ = await asyncio.gather(pop_all(), session.clear_session())
    await session.add_items([user("new")])

    assert popped == items[::-1][: len(popped)]
    assert texts(await other.get_items()) == ["new"]


async def test_a_pop_that_looked_before_a_clear_takes_nothing_unseen_from_the_next_conversation(
    session: RunfoldSession, open_session: SessionOpening, session_id: str, monkeypatch: pytest.MonkeyPatch
):
    await session.add_items([user("old")])
    other, look = open_session(session_id), openai_agents._read_conversation
    looks = 0

    async def clear_after_looking(*arguments: Any) -> Any:
        nonlocal looks
        standing, looks = await look(*arguments), looks + 1
        if looks == 1:
            await other.clear_session()
            await other.add_items([user("new")])
        return standing

    monkeypatch.setattr(openai_agents, "_read_conversation", clear_after_looking)

    assert await session.pop_item() == user("new")
    assert looks == 3  # one of them to clear
    assert await other.get_items() == []


async def test_two_processes_that_add_at_once_lose_nothing_and_keep_their_order(
    session: RunfoldSession, session_id: str, access: dict[str, Any], settings: Settings
):
    variables = os.environ | environment(settings)
    given = json.dumps({name: value for name, value in access.items() if name == "url"})
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ADDING, session_id, given, name), env=variables
        )
        for name in ("one", "two")
    ]
    # Each loads libraries for seconds, or for a minute on a busy machine.
    async with asyncio.timeout(200):
        assert [await process.wait() for process in processes] == [0, 0]

    said = texts(await session.get_items())
    for name in ("one", "two"):
        own = [text for text in said if text.startswith(name)]
        assert own == [f"{name} {number} {part}" for number in range(5) for part in "ab"]
        firsts = [said.index(f"{name} {number} a") for number in range(5)]
        assert [said[first + 1] for first in firsts] == [f"{name} {number} b" for number in range(5)]
    assert len(said) == 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "user", "content": float("nan")},
        {"x": object()},
        "text",
    ],
)
async def test_an_item_that_is_not_json_is_named_and_nothing_is_added(session: RunfoldSession, wrong: Any):
    await session.add_items([user(1)])

    with pytest.raises(InvalidEventError) as refusal:
        await session.add_items([user(2), wrong])

    assert refusal.value.index == 1
    assert texts(await session.get_items()) == ["1"]


async def test_a_runner_continues_the_conversation_of_another_one(
    session: RunfoldSession, open_session: SessionOpening, session_id: str, runfold: Runfold
):
    first = ScriptedModel(calls("Lyon", "Metz"), answers("Rain in both."))
    assert await asked(first, "How is the weather?", session) == "Rain in both."

    second, other = ScriptedModel(answers("You asked about Lyon and Metz.")), open_session(session_id)
    assert await asked(second, "What did I ask?", other) == "You asked about Lyon and Metz."

    items = await other.get_items()
    assert items[:5] == first.asked[1]
    assert items[:7] == second.asked[0]
    assert [item.get("type", item.get("role")) for item in items] == [
        "user",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "message",
        "user",
        "message",
    ]
    assert [
        (message.role, [_shown(part) for part in message.parts])
        for message in await (await run_of(runfold, session_id)).ledger()
    ] == [
        ("user", ["How is the weather?"]),
        ("assistant", [("call_Lyon", {"place": "Lyon"}), ("call_Metz", {"place": "Metz"})]),
        ("user", [("call_Lyon", "rain in Lyon"), ("call_Metz", "rain in Metz")]),
        ("assistant", ["Rain in both."]),
        ("user", ["What did I ask?"]),
        ("assistant", ["You asked about Lyon and Metz."]),
    ]


async def test_a_runner_is_given_as_much_of_the_past_as_its_settings_say(session: RunfoldSession):
    await session.add_items([user(number) for number in range(5)])
    model = ScriptedModel(answers("Yes."))

    await asked(model, "Well?", session, session_settings=SessionSettings(limit=2))

    assert texts(model.asked[0]) == ["3", "4", "Well?"]
    assert len(await session.get_items()) == 7


async def test_an_item_whose_text_was_cut_within_an_emoji_is_stored_with_its_turn(session: RunfoldSession):
    await session.add_items([user("cut \ud83d"), user("whole")])

    assert texts(await session.get_items()) == ["cut \ufffd", "whole"]


@pytest.mark.parametrize("limit", [2**31 - 1, sys.maxsize])
async def test_a_limit_above_any_number_of_items_means_all(session: RunfoldSession, limit: int):
    await session.add_items([user(number) for number in range(3)])

    assert texts(await session.get_items(limit)) == ["0", "1", "2"]


async def test_everything_reads_the_same_after_a_rebuild_from_the_logs(
    settings: Settings, projector: Projector, url: str
):
    async with RunfoldSession("rebuilt", url) as session:
        await session.add_items([user("one"), user("two")])
    assert await projector.differences() == []  # all is folded
    before = await everything(url)

    await projector.rebuild()

    assert len(before["rebuilt"][0]) == 2
    assert await settled(lambda: everything(url), before) == before
    assert await projector.differences() == []


async def everything(url: str) -> dict[str, Any]:
    """The items of every session and its ledger, by its id."""
    async with httpx.AsyncClient(base_url=f"{url}/v1/", timeout=60) as client:

        async def of_session(session_id: str) -> tuple[Any, Any]:
            ledger = await client.get(f"sessions/{quote(session_id, safe='')}/ledger")
            async with RunfoldSession(session_id, url) as session:
                return await session.get_items(), ledger.raise_for_status().json()

        listed = (await client.get("sessions", params={"limit": 1000})).raise_for_status().json()
        ids = [one["session_id"] for one in listed["sessions"]]
        return dict(zip(ids, await asyncio.gather(*map(of_session, ids)), strict=True))


def _shown(part: Any) -> Any:
    match part:
        case TextPart():
            return part.text
        case ToolUsePart():
            return part.id, part.input
        case ToolResultPart():
            return part.tool_use_id, part.content
