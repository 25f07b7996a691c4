"""`runfold follow` and `runfold sessions` as processes: what has happened, then what happens, in
lines.
"""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from subprocess import PIPE
from typing import Any
from uuid import uuid4

import pytest
from tests.commands import command as completed
from tests.forking import Forked, runfold_process
from tests.processes import environment, until
from tests.terminals import shown_in_a_terminal

from runfold import (
    AssistantMessage,
    EventAmended,
    PlannerNote,
    Run,
    Runfold,
    Thinking,
    TokenUsage,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold.settings import Settings
from runfold_schemas.sessions import FrameworkEvent, StateChanged, joined

END_SECONDS = 60


class Following:
    """A command at work, and the lines it has printed."""

    def __init__(self, process: Forked) -> None:
        self.process = process
        self.lines: list[str] = []
        self.errors: list[str] = []

    async def shows(self, text: str) -> None:
        async def has() -> bool:
            return any(text in line for line in self.lines + self.errors)

        try:
            await until(has, seconds=END_SECONDS, what=text)
        except AssertionError as error:
            error.add_note("\n".join(self.lines + self.errors))
            raise

    async def ends(self) -> int:
        async with asyncio.timeout(END_SECONDS):
            return await self.process.wait()

    def said(self) -> list[tuple[int, str, str]]:
        """Offset, who and what of each line."""
        return [_parted(line) for line in self.lines]


@asynccontextmanager
async def command(settings: Settings, *arguments: str, **variables: str) -> AsyncIterator[Following]:
    process = await runfold_process(
        *arguments,
        stdout=PIPE,
        stderr=PIPE,
        env=os.environ | {"NO_COLOR": "1", "TZ": "UTC"} | environment(settings) | variables,
    )
    following = Following(process)
    reading = [
        asyncio.create_task(_read(process.stdout, following.lines)),
        asyncio.create_task(_read(process.stderr, following.errors)),
    ]
    try:
        yield following
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await asyncio.gather(*reading)


async def run_of(runfold: Runfold) -> Run:
    return await runfold.open_run(agent_id="travel-desk")


async def test_a_run_is_shown_from_its_beginning_and_on_until_it_ends(settings: Settings, runfold: Runfold):
    run = await run_of(runfold)
    await run.publish(UserMessage(message="A train\nto [bold]Lyon[/]?"))
    async with command(settings, "follow", run.run_id) as following:
        await following.shows("to [bold]Lyon[/]?")
        await run.publish(Thinking(text="Look it up.", signature="s", final=True))
        await following.shows("Look it up.")
        await run.publish(ToolCall(tool_call_id="c", tool_name="trains", payload={"to": "Lyön"}))
        await run.publish(ToolResult(tool_call_id="c", tool_name="trains", result=["07:04"]))
        await run.publish(ToolResult(tool_call_id="d", tool_name="weather", error="down"))
        await run.publish(AssistantMessage(message="At 07:04.\x1b[31m"), state_delta={"to": "Lyon", "n": [1]})
        await run.publish(StateChanged(), state_delta={"user:k": None})
        await run.publish(TokenUsage(model="m", input_tokens=3, output_tokens=2))
        await run.complete()

        assert await following.ends() == 0

    assert following.said() == [
        (0, "run", "opened for travel-desk"),
        (1, "user", "A train to [bold]Lyon[/]?"),
        (2, "thinking", "Look it up."),
        (3, "call", 'trains {"to": "Lyön"}'),
        (4, "result", 'trains ["07:04"]'),
        (5, "error", 'weather "down"'),
        (6, "assistant", r"At 07:04.\x1b[31m"),
        (6, "state", 'to="Lyon" n=[1]'),
        (7, "state", "user:k=null"),
        (8, "usage", "m: 3 tokens in, 2 out"),
        (9, "run", "completed"),
    ]
    assert following.errors == []


async def test_a_run_that_has_ended_is_shown_with_what_came_late(settings: Settings, runfold: Runfold):
    run = await run_of(runfold)
    await run.fail("out of money")
    await run.publish(PlannerNote(note="afterwards"), late=True)

    async with command(settings, "follow", run.run_id) as following:
        assert await following.ends() == 0

    assert [who_what[1:] for who_what in following.said()] == [
        ("run", "opened for travel-desk"),
        ("run", "failed: out of money"),
        ("note", "afterwards"),
    ]


async def test_what_counts_for_nothing_is_not_shown(settings: Settings, runfold: Runfold):
    run = await run_of(runfold)
    said = run.event(PlannerNote(note="once"))
    await run.publish(said)
    await run.publish(said)
    await run.complete()

    async with command(settings, "follow", run.run_id) as following:
        assert await following.ends() == 0

    assert [what for _, _, what in following.said()] == ["opened for travel-desk", "once", "completed"]


async def test_events_of_frameworks_are_shown_by_what_they_say(settings: Settings, runfold: Runfold):
    run = await run_of(runfold)
    parts = [
        {"text": "Let me look."},
        {"functionCall": {"id": "c", "name": "trains", "args": {"to": "Lyon"}}},
    ]
    answer = [{"functionResponse": {"id": "c", "name": "trains", "response": {"at": "07:04"}}}]
    for body in (
        {"author": "user", "content": {"role": "user", "parts": [{"text": "A train?"}]}},
        {"author": "desk", "content": {"role": "model", "parts": parts}},
        {"author": "desk", "content": {"role": "user", "parts": answer}},
        {"author": "desk", "partial": True},
    ):
        await run.publish(FrameworkEvent(framework="adk", body=body))
    await run.publish(
        FrameworkEvent(framework="openai-agents", body={"role": "user", "content": "And back?"}),
        state_delta={"k": 1},
    )
    await run.complete()

    async with command(settings, "follow", run.run_id) as following:
        assert await following.ends() == 0

    assert following.said()[1:-1] == [
        (1, "user", "A train?"),
        (2, "assistant", "Let me look."),
        (2, "call", 'trains {"to": "Lyon"}'),
        (3, "result", 'trains {"at": "07:04"}'),
        (4, "event", 'of adk, with nothing for a model: {"author": "desk", "partial": true}'),
        (5, "user", "And back?"),
        (5, "state", "k=1"),
    ]


async def test_json_is_an_event_a_line_as_the_log_has_it(settings: Settings, runfold: Runfold):
    run = await run_of(runfold)
    await run.publish(ToolResult(tool_call_id="c", result={"text": "a\nb", "big": 2**200}))
    await run.complete()

    async with command(settings, "follow", "--json", run.run_id) as following:
        assert await following.ends() == 0

    values = [one.record.value async for one in run.history()]
    assert [line.encode() for line in following.lines] == values
    assert json.loads(following.lines[1])["data"]["result"] == {"text": "a\nb", "big": 2**200}


async def test_in_a_terminal_a_line_is_no_wider_than_that(settings: Settings, runfold: Runfold):
    run = await run_of(runfold)
    await run.publish(UserMessage(message="漢字 " * 100))
    await run.complete()
    variables = {"NO_COLOR": "1", "COLUMNS": "60", "TERM": "xterm"} | environment(settings)

    shown = await shown_in_a_terminal("follow", run.run_id, env=os.environ | variables, seconds=END_SECONDS)

    lines = re.sub(r"\x1b\[\d*m", "", shown).splitlines()
    assert [line.rstrip().endswith("…") for line in lines] == [False, True, False]
    assert sum(2 if char in "漢字" else 1 for char in lines[1].rstrip()) <= 60


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_it_ends_when_it_is_told_to(
    settings: Settings, runfold: Runfold, number: signal.Signals, code: int
):
    run = await run_of(runfold)
    async with command(settings, "follow", run.run_id) as following:
        await following.shows("opened for travel-desk")
        following.process.send_signal(number)

        assert await following.ends() == code

    assert following.errors == []


async def test_a_session_is_followed_by_its_id_and_may_be_waited_for(settings: Settings, runfold: Runfold):
    session_id = joined(f"shop{uuid4().hex[:8]}", "ann/1", "s-1")
    async with command(settings, "follow", "--wait", "--session", session_id) as following:
        await following.shows(f"waiting for session {session_id}")
        sessions = runfold.sessions
        await sessions.create(app="shop", user="ann/1", session_id=session_id, state={"app:k": 1})
        await following.shows("opened for shop")
        await sessions.append(session_id, UserMessage(message="Hello"))
        await following.shows("Hello")
        await sessions.delete(session_id)

        assert await following.ends() == 0

    assert following.said() == [
        (0, "run", "opened for shop"),
        (0, "state", "app:k=1"),
        (1, "user", "Hello"),
        (2, "run", "canceled: its session was deleted"),
    ]


async def test_a_session_that_has_ended_is_shown_to_its_end(settings: Settings, runfold: Runfold):
    sessions = runfold.sessions
    session = await sessions.create(app="shop", user="ann")
    await sessions.append(session.session_id, UserMessage(message="Hello"))
    await sessions.end(session.session_id)

    async with command(settings, "follow", "--session", session.session_id) as following:
        assert await following.ends() == 0

    assert following.said() == [
        (0, "run", "opened for shop"),
        (1, "user", "Hello"),
        (2, "run", "completed"),
    ]


@pytest.mark.parametrize(
    ("arguments", "told", "code"),
    [
        (["nobody"], "error: run 'nobody' does not exist", 1),
        (["--session", "nobody"], "error: session 'nobody' does not exist", 1),
        ([], "give the id of a run, or --session", 2),
        (["r", "--session", "s"], "give the id of a run, or --session", 2),
    ],
)
async def test_what_cannot_be_followed_is_told(
    settings: Settings, arguments: list[str], told: str, code: int
):
    async with command(settings, "follow", *arguments, COLUMNS="200") as following:
        assert await following.ends() == code
        await following.shows(told)

    assert following.lines == []


async def test_sessions_are_listed_the_newest_first(settings: Settings, runfold: Runfold):
    app = f"app-{uuid4().hex[:8]}"
    sessions = runfold.sessions
    first = await sessions.create(app=app, user="ann", session_id=joined(app, "ann", "a" * 200))
    second = await sessions.create(app=app, user="bob")
    await sessions.append_batch(first.session_id, [PlannerNote(note="n"), PlannerNote(note="n")])
    await sessions.end(first.session_id)

    assert await _listed(settings, "--app", app) == [
        [second.session_id, second.run.run_id, "active", "0"],
        [first.session_id, first.run.run_id, "ended", "2"],
    ]
    assert await _listed(settings, "--app", app, "--user", "bob") == [
        [second.session_id, second.run.run_id, "active", "0"]
    ]
    assert len(await _listed(settings, "--app", app, "--limit", "1")) == 1
    assert await _listed(settings, "--app", f"{app}-nobody's") == []


async def test_a_replay_takes_amendments_by_their_offsets(settings: Settings, runfold: Runfold):
    run = await run_of(runfold)
    hello = run.event(UserMessage(message="Hello"))
    await run.publish(hello)
    await run.publish(hello)
    wrong = await run.publish(UserMessage(message="not this"))
    await run.publish(EventAmended(offset=wrong.offset, reason="taken back"))

    async with command(settings, "replay", "--json", run.run_id) as replaying:
        assert await replaying.ends() == 0

    messages = json.loads("".join(replaying.lines))["messages"]
    assert [part["text"] for message in messages for part in message["parts"]] == ["Hello"]


async def test_a_replay_tells_what_the_request_needs_beside_its_messages(
    settings: Settings, runfold: Runfold
):
    run = await run_of(runfold)
    await run.publish(UserMessage(message="Compute it."))
    said: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "stop_reason": "end_turn"}
    content = {"content": [{"type": "text", "text": "42"}], "container": {"id": "container_1"}}
    await run.record(said | content, provider="anthropic")

    code, printed = await completed(settings, "replay", run.run_id, "--format", "anthropic")

    assert (code, '"42"' in printed) == (0, True)
    assert 'beside the messages: {"container": "container_1"}' in printed


async def _listed(settings: Settings, *arguments: str) -> list[list[str]]:
    """The rows of the table, without the time of the update."""
    async with command(settings, "sessions", *arguments) as listing:
        assert await listing.ends() == 0
    assert listing.lines[0].split() == ["session", "run", "status", "updated", "events"]
    rows: list[Any] = [line.split() for line in listing.lines[1:]]
    return [[session_id, run_id, status, events] for session_id, run_id, status, _, _, events in rows]


def _parted(line: str) -> tuple[int, str, str]:
    offset, _, _, who, what = line.split(maxsplit=4)
    return int(offset), who, what


async def _read(stream: asyncio.StreamReader | None, lines: list[str]) -> None:
    assert stream is not None
    async for line in stream:
        lines.append(line.decode().rstrip())  # noqa: PERF401 - each as it comes
