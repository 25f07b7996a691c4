"""No command and no log prints what acts on a terminal, whatever agents and tools have stored."""

import asyncio
import json
import os
import re
from subprocess import PIPE
from typing import NamedTuple
from uuid import uuid4

import pytest
from tests.attacks import Stack
from tests.forking import runfold_process
from tests.processes import append_raw, environment, projections, reaches, until

from runfold import (
    AssistantMessage,
    PlannerNote,
    Run,
    SystemMessage,
    Thinking,
    TokenUsage,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold.settings import Settings
from runfold_schemas.memories import Memory

END_SECONDS = 180

TOGETHER = 4
"""Commands at once."""

ACTING = "\x1b\x07\x08\r\x0b\x0c\x0e\x7f\x9b\x9d\x90\x85\u202e\u2066\u200f\u061c\u2028\U000e0041"

HOSTILE = (
    "a\x1b[2J\x1b[31m\x1b]0;title\x07\x1b]52;c;ZXZpbA==\x1b\\\x9b2J\x9d0;t\x9c\x90q\x9c"
    "\rerased\x08\x08\x7f\x0b\x0c\x0e\x85\u202egnp.exe\u2066\u200f\u061c\u2028\U000e0041"
    "[link=https://evil.example]b[/link][/nothing]:boom:"
)

SHORT = HOSTILE[:30]

COLOR = re.compile(rb"\x1b\[[0-9;]*m")


class Names(NamedTuple):
    run_id: str
    session_id: str
    session_run_id: str
    bank_id: str
    memory_id: str
    letter_id: str


@pytest.fixture(scope="module")
async def names(under_attack: Stack) -> Names:
    """A run, a session and a memory whose every text is hostile."""
    runfold, unique = under_attack.runfold, uuid4().hex[:8]
    labels = {HOSTILE[:60]: HOSTILE}
    run = await runfold.open_run(run_id=f"{unique}{SHORT}", agent_id=SHORT, labels=labels)
    await fill(run)
    session = await runfold.sessions.create(
        app="shop", user="ann", session_id=f"s-{unique}{SHORT}", state={"k": HOSTILE, HOSTILE: 1}
    )
    await runfold.sessions.append(
        session.session_id, UserMessage(message=HOSTILE), state_delta={HOSTILE: HOSTILE}
    )
    bank = await runfold.memories.create_bank(f"b-{unique}{SHORT}")
    memory = await runfold.memories.create(
        bank.bank_id,
        Memory(
            fact=HOSTILE,
            scope={"user": HOSTILE[:40]},
            metadata={HOSTILE[:40]: HOSTILE},
            display_name=HOSTILE[:60],
        ),
    )
    await runfold.memories.update(bank.bank_id, memory.memory_id, {"fact": f"new {HOSTILE}"})
    session_run_id = session.record.run_id
    await (await runfold.get_run(session_run_id)).complete()
    letter_id = await buried(under_attack, f"{unique}-2{SHORT}")
    return Names(run.run_id, session.session_id, session_run_id, bank.bank_id, memory.memory_id, letter_id)


async def buried(stack: Stack, run_id: str) -> str:
    """The id of a dead letter whose record has a hostile text."""
    run = await stack.runfold.open_run(run_id=run_id, agent_id=SHORT)
    await append_raw(stack.runfold, run, HOSTILE.encode())
    await run.publish(UserMessage(message="behind"))

    async def letters() -> list[str]:
        listed = await stack.client.get("/v1/dead-letters", params={"run_id": run_id})
        return [letter["id"] for letter in listed.json()["dead_letters"]]

    async def is_there() -> bool:
        return await letters() != []

    await until(is_there, what="the dead letter")
    [letter_id] = await letters()
    return letter_id


async def fill(run: Run) -> None:
    await run.publish(SystemMessage(message=HOSTILE))
    await run.publish(UserMessage(message=HOSTILE))
    await run.publish(Thinking(text=HOSTILE, signature=HOSTILE, final=True))
    await run.publish(AssistantMessage(message=HOSTILE), state_delta={HOSTILE: [HOSTILE]})
    await run.publish(ToolCall(tool_call_id=HOSTILE, tool_name=HOSTILE, payload={HOSTILE: HOSTILE}))
    await run.publish(ToolResult(tool_call_id=HOSTILE, tool_name=HOSTILE, result={HOSTILE: HOSTILE}))
    await run.publish(ToolCall(tool_call_id=f"2{HOSTILE}", tool_name=HOSTILE, payload={}))
    await run.publish(ToolResult(tool_call_id=f"2{HOSTILE}", tool_name=HOSTILE, error=HOSTILE))
    await run.publish(ToolCall(tool_call_id=f"3{HOSTILE}", tool_name=HOSTILE, payload={}))
    await run.publish(PlannerNote(note=HOSTILE))
    await run.publish(TokenUsage(model=HOSTILE, input_tokens=1, output_tokens=1))
    await run.fail(HOSTILE)


class Ended(NamedTuple):
    code: int
    output: bytes
    errors: bytes


async def ended(settings: Settings, *arguments: str, colored: bool = False) -> Ended:
    plain = {"FORCE_COLOR": "1", "TERM": "xterm-256color"} if colored else {"NO_COLOR": "1"}
    process = await runfold_process(
        *arguments,
        stdout=PIPE,
        stderr=PIPE,
        env=os.environ | plain | {"COLUMNS": "200"} | environment(settings),
    )
    async with asyncio.timeout(END_SECONDS):
        output, errors = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, output, errors)


def acting(output: bytes) -> set[str]:
    """What in the output would act on a terminal, beside a command's own colors."""
    return set(ACTING) & set(COLOR.sub(b"", output).decode())


def commands(names: Names) -> list[list[str]]:
    memory = ["--bank", names.bank_id]
    return [
        ["follow", names.run_id],
        ["follow", "--session", names.session_id],
        ["replay", names.run_id],
        ["replay", names.run_id, "--format", "anthropic", "--lossy"],
        ["repair", names.run_id],
        ["quarantine", "ls"],
        ["quarantine", "show", HOSTILE],
        ["sessions"],
        ["sessions", "--app", HOSTILE],
        ["session", names.session_id],
        ["session", HOSTILE],
        ["runs"],
        ["runs", "--agent", SHORT],
        ["runs", "--label", HOSTILE],
        ["runs", "--text", HOSTILE],
        ["agents"],
        ["agents", SHORT],
        ["agents", "--tools"],
        ["status"],
        ["dead-letters", "list"],
        ["dead-letters", "show", names.letter_id],
        ["dead-letters", "show", HOSTILE],
        ["dead-letters", "requeue", names.letter_id],
        ["keys", "add", SHORT, "--scope", "read"],
        ["keys", "list"],
        ["keys", "revoke", HOSTILE],
        ["tenants", "quota", HOSTILE],
        ["erased", HOSTILE],
        ["fork", names.run_id],
        ["fork", HOSTILE],
        ["proof", HOSTILE, "1"],
        ["rebuild", HOSTILE],
        ["memory", "ls"],
        ["memory", "ls", *memory],
        ["memory", "show", names.memory_id, *memory],
        ["memory", "history", names.memory_id, *memory],
        ["memory", "diff", names.memory_id, *memory],
        ["memory", "show", HOSTILE, *memory],
        ["memory", "show", names.memory_id, "--bank", HOSTILE],
        ["memory", "rollback", names.memory_id, HOSTILE, *memory],
        ["memory", "ls", "--scope", HOSTILE],
        ["follow", HOSTILE],
        ["follow", "--session", HOSTILE],
        ["replay", HOSTILE],
        ["verify", HOSTILE],
        ["serve", HOSTILE],
        [HOSTILE],
        ["replay", "--format", HOSTILE, "r"],
    ]


@pytest.mark.parametrize("colored", [False, True])
async def test_no_command_prints_what_acts_on_a_terminal(under_attack: Stack, names: Names, colored: bool):
    # A terminal gets colors, and progress bars that move the cursor.
    shown = [each for each in commands(names) if not colored or each[0] in ("follow", "replay", "memory")]
    free = asyncio.Semaphore(TOGETHER)

    async def run(arguments: list[str]) -> Ended:
        async with free:
            return await ended(under_attack.settings, *arguments, colored=colored)

    results = await asyncio.gather(*(run(arguments) for arguments in shown))
    for arguments, result in zip(shown, results, strict=True):
        assert acting(result.output) == set(), (arguments, result.output)
        assert acting(result.errors) == set(), (arguments, result.errors)
        assert b"Traceback" not in result.errors, (arguments, result.errors)
        assert result.output or result.errors


async def test_verify_prints_differences_that_act_on_nothing(under_attack: Stack, names: Names):
    run = await under_attack.runfold.get_run(names.run_id)
    async with projections(under_attack.settings) as stored:
        await until(lambda: reaches(stored, run, 11), what="the run's record")
        runs = stored.database[f"runs.{stored.edition}"]
        async for stored_run in runs.find({}):
            record = json.loads(stored_run["record"])
            if record["run_id"] == names.run_id:
                changed = json.dumps({**record, "agent_id": f"{SHORT}!"})
                await runs.update_one({"_id": stored_run["_id"]}, {"$set": {"record": changed}})

    result = await ended(under_attack.settings, "verify")

    assert result.code == 1
    assert b"differences" in result.output
    assert acting(result.output + result.errors) == set(), (result.output, result.errors)
    assert b"Traceback" not in result.errors


@pytest.mark.parametrize(
    "arguments",
    [["follow", "--json"], ["replay", "--json"], ["replay", "--format", "anthropic", "--lossy"]],
)
async def test_json_is_exact_and_acts_on_nothing(under_attack: Stack, names: Names, arguments: list[str]):
    command, *options = arguments
    result = await ended(under_attack.settings, command, names.run_id, *options)

    assert acting(result.output) == set()
    documents = [result.output] if command == "replay" else result.output.splitlines()
    assert HOSTILE in texts_in([json.loads(document) for document in documents])


async def test_no_log_of_a_service_has_what_acts_on_a_terminal(under_attack: Stack, names: Names):
    run = await under_attack.runfold.open_run(agent_id=SHORT)
    text = json.dumps(HOSTILE, ensure_ascii=False).encode()

    async with under_attack.attacked("records and requests full of escape sequences"):
        for value in (HOSTILE.encode(), text, b'{"type": %b}' % text, b'{"data": {"%b": 1}}' % text):
            await append_raw(under_attack.runfold, run, value)
        await run.publish(PlannerNote(note="n"))
        for path in ("/v1/runs/\x9b", "/v1/banks/\x9b", "/v1beta1/reasoningEngines/\x9b"):
            await under_attack.client.get(path, params={"cursor": HOSTILE, "filter": HOSTILE})
            await under_attack.client.post(path, json={HOSTILE: HOSTILE}, headers=[(b"X-Y", b"\x9b")])

    for process in under_attack.processes:
        assert acting(process.logged().encode()) == set()


def texts_in(value: object) -> set[str]:
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        return {text for each in (*value, *value.values()) for text in texts_in(each)}
    if isinstance(value, list):
        return {text for each in value for text in texts_in(each)}
    return set()
