"""The example of an ADK agent, run as its README says: two processes hold a conversation, and a
third one watches it.
"""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from tests.processes import environment, projector, until

from runfold.local import Service, Supervisor, free_port, ready_url
from runfold.settings import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "examples" / "adk_support_agent" / "README.md").read_text()
CONVERSE = "examples/adk_support_agent/converse.py"
SECONDS = 240
"""Each process loads ADK, which takes a busy machine a while."""


@pytest.fixture
async def url(settings: Settings, tmp_path: Path) -> AsyncIterator[str]:
    """The API of a stack of real processes."""
    port = free_port()
    api = Service(
        "api",
        [sys.executable, "-m", "runfold.cli", "serve", "api", "--port", str(port)],
        ready=ready_url(f"http://127.0.0.1:{port}/health/ready"),
        log=tmp_path / "api.log",
        env=environment(settings),
    )
    async with Supervisor([projector(settings, tmp_path / "projector.log"), api], say=print):
        yield f"http://127.0.0.1:{port}"


async def test_the_example_does_what_its_readme_says(url: str, settings: Settings):
    (follow,), conversations = commands("runfold follow"), commands(CONVERSE)
    session_id = f"s-{uuid4().hex[:8]}"
    following = await started("-m", "runfold.cli", *renamed(follow, session_id)[1:], **environment(settings))
    try:
        said = ""
        for command in conversations:
            process = await started(*renamed(command, session_id)[1:], "--url", url)
            said += await output(process)
        async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60) as api:
            path = f"sessions/support%2Fann%2F{session_id}"
            ledger: list[dict] = []

            async def is_folded() -> bool:
                nonlocal ledger
                answer = await api.get(f"{path}/ledger")
                ledger = answer.json()["messages"] if answer.is_success else []
                return len(spoken(ledger)) >= len(SPOKEN)

            await until(is_folded, what="the whole conversation in the projections")
            session = (await api.get(path)).raise_for_status().json()
            shared = (await api.get("apps/support/users/ann/state")).json()["state"]
            await api.delete(path)
        shown = await output(following)
    finally:
        if following.returncode is None:
            following.kill()
            await following.communicate()

    assert shared == {"user:refunds": ["A17"]}
    assert session["state"] == {"order": "B02", **shared}
    assert spoken(ledger) == SPOKEN
    told = [what for who, what in spoken(ledger) if who in ("you", "agent")]
    assert [line.split(maxsplit=1)[1] for line in said.splitlines()] == told
    lines = [tuple(line.split(maxsplit=4)[3:]) for line in shown.splitlines()]
    assert [what for who, what in lines if who in ("user", "assistant")] == told
    assert [what.split()[0] for who, what in lines if who == "call"] == ["find_order", "refund", "find_order"]
    assert [what for who, what in lines if who == "state"] == [
        'order="A17"',
        'user:refunds=["A17"]',
        'order="B02"',
    ]


def test_what_the_readme_shows_is_what_the_agent_says():
    shown = re.findall(r"^agent  (.*)$", README, flags=re.MULTILINE)

    assert shown == ["Done: 41.50 for order A17 are on their way to you."]


def commands(name: str) -> list[list[str]]:
    """The README's commands that begin with a program of ours and have `name` in them."""
    lines = README.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.startswith(".venv/bin/") and name in line]


def renamed(command: list[str], session_id: str) -> list[str]:
    """The command for a session that no other test has."""
    return [re.sub(r"\bs-1$", session_id, word) for word in command]


def turn(asked: str, tool: str, answered: str) -> list[tuple[str, str]]:
    return [("you", asked), ("call", tool), ("result", tool), ("agent", answered)]


SPOKEN = [
    *turn("Where is order A17?", "find_order", "Order A17 (a kettle and two cups) is on its way."),
    *turn(
        "That is too late for me: I want a refund.",
        "refund",
        "Done: 41.50 for order A17 are on their way to you.",
    ),
    *turn("Thanks! And where is B02?", "find_order", "Order B02 (a lamp) is delivered."),
]


def spoken(ledger: list[dict]) -> list[tuple[str, str]]:
    """Who said what, and which tool was called and answered."""
    names = {
        part["id"]: part["name"] for one in ledger for part in one["parts"] if part["type"] == "tool_use"
    }
    found = []
    for message in ledger:
        for part in message["parts"]:
            match part["type"]:
                case "text":
                    found.append(("you" if message["role"] == "user" else "agent", part["text"]))
                case "tool_use":
                    found.append(("call", part["name"]))
                case "tool_result":
                    found.append(("result", names[part["tool_use_id"]]))
    return found


async def started(*arguments: str, **variables: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=ROOT,
        env=os.environ | {"NO_COLOR": "1"} | variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def output(process: asyncio.subprocess.Process) -> str:
    async with asyncio.timeout(SECONDS):
        said, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert not [line for line in errors.decode().splitlines() if not line.startswith("waiting for session ")]
    return said.decode()
