"""`runfold demo`: what Runfold does, in a minute, on a real Kafka and a real MongoDB.

Publishes a run, reads its record and its ledger from the query service, drops all projections,
waits until the projector has rebuilt them from the log, and compares.
"""

import asyncio
import json
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from runfold import (
    AssistantMessage,
    PhaseChanged,
    Run,
    Runfold,
    RunfoldError,
    SystemMessage,
    Thinking,
    TokenUsage,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold.cli.services import service_process
from runfold.cli.show import show_ledger, show_record
from runfold.cli.terminal import new_console
from runfold.documents.runs import RunDocument
from runfold.local import LocalStack, StartError, Supervisor, free_port
from runfold.store.database import connect
from runfold.store.editions import Editions
from runfold_schemas.messages import Message

_DEADLINE_SECONDS = 30.0
_NAME = "runfold"


class DemoError(RunfoldError):
    """The demo did not show what it promises."""


async def demo() -> None:
    """Runs the demo. Raises `DemoError` if the rebuilt run differs."""
    console = new_console(soft_wrap=True)

    def say(line: str) -> None:
        console.print(f"[dim]{escape(line)}[/]", highlight=False)

    with tempfile.TemporaryDirectory(prefix="runfold-demo-", ignore_cleanup_errors=True) as folder:
        say("starting Kafka and MongoDB (the first time, Maven downloads Kafka)")
        async with LocalStack(data_dir=Path(folder), progress=say) as stack:
            say("starting ingest, projector and query")
            async with AsyncExitStack() as running:
                ports = await _start_services(running, stack, Path(folder), say=say)
                await _show_all(
                    console,
                    stack,
                    query=f"http://127.0.0.1:{ports['query']}",
                    ingest=f"http://127.0.0.1:{ports['ingest']}",
                )


async def _start_services(
    running: AsyncExitStack, stack: LocalStack, folder: Path, *, say: Callable[[str], None]
) -> dict[str, int]:
    """Starts the services until `running` ends, and returns their ports."""
    names = {"RUNFOLD_PREFIX": _NAME, "RUNFOLD_DATABASE": _NAME}  # not those of the environment
    while True:
        ports = {name: free_port() for name in ("ingest", "query", "projector")}
        services = [
            service_process(name, stack, log_dir=folder, port=port, **names) for name, port in ports.items()
        ]
        try:
            await running.enter_async_context(Supervisor(services, say=say))
        except StartError as error:
            if not error.is_port_taken:
                raise
        else:
            return ports


async def _show_all(console: Console, stack: LocalStack, *, query: str, ingest: str) -> None:
    async with Runfold(stack.kafka, prefix=_NAME, create_topics=True) as runfold:
        console.rule("publish")
        async with runfold.run(agent_id="travel-desk", session_id="s-1", labels={"channel": "chat"}) as run:
            await _first_turn(run)
            await _second_turn(run, ingest)
        history = [admitted async for admitted in run.history()]
    console.print(f"published {len(history)} events to the topic of run {run.run_id}")

    console.rule("read")
    before = await _read(query, run.run_id, end=len(history))
    show_record(console, RunDocument.model_validate(before["run"]))
    show_ledger(console, [Message.model_validate(message) for message in before["ledger"]])

    console.rule("drop the projections, rebuild them from the log")
    async with connect(stack.mongo, _NAME) as database:
        await Editions(database).drop_all()
    console.print("dropped every page and every run record from MongoDB")
    after = await _read(query, run.run_id, end=len(history))
    if after != before:
        raise DemoError("the rebuilt run differs from the run as it was first read")
    console.print(
        f"[bold green]identical[/]: record and ledger of all {len(history)} events, rebuilt from Kafka"
    )


async def _first_turn(run: Run) -> None:
    turn: dict[str, Any] = {"turn_id": "turn-1"}
    await run.publish(SystemMessage(message="You book trips. Use the tools."), **turn)
    await run.publish(UserMessage(message="Is there a train to Lyon on Friday, and will it rain?"), **turn)
    await run.publish(PhaseChanged(phase="planning"), **turn)
    await run.publish(
        Thinking(
            text="Two look-ups, they do not depend on each other.", signature="EqQBCkYIBxgCKkD", final=True
        ),
        **turn,
    )
    await run.publish(AssistantMessage(message="Let me look up both."), **turn)
    await run.publish_batch(
        [
            run.event(
                ToolCall(tool_call_id="call-1", tool_name="trains", payload={"to": "Lyon", "day": "Friday"}),
                **turn,
            ),
            run.event(ToolCall(tool_call_id="call-2", tool_name="weather", payload={"city": "Lyon"}), **turn),
        ]
    )
    await run.publish(
        ToolResult(tool_call_id="call-2", tool_name="weather", error="upstream timed out"), **turn
    )
    trains = {"departures": ["07:04", "09:04"], "fare_id": 2**70}
    await run.publish(
        ToolResult(tool_call_id="call-1", tool_name="trains", result=trains, duration_ms=412), **turn
    )
    await run.publish(AssistantMessage(message="Trains leave at 07:04 and 09:04. "), **turn)
    await run.publish(AssistantMessage(message="The weather service did not answer."), **turn)
    await run.publish(TokenUsage(model="some-model", input_tokens=812, output_tokens=96), **turn)


async def _second_turn(run: Run, ingest: str) -> None:
    """Publishes over HTTP, as an agent in any language can."""
    events = [
        {"type": "user_message", "turn_id": "turn-2", "data": {"message": "Take the 09:04."}},
        {
            "type": "assistant_message",
            "turn_id": "turn-2",
            "data": {"message": "Booked: Friday, 09:04 to Lyon."},
        },
    ]
    request = urllib.request.Request(  # noqa: S310  # our own service on loopback
        f"{ingest}/v1/runs/{run.run_id}/events",
        json.dumps(events).encode(),
        {"Content-Type": "application/json"},
    )
    await asyncio.to_thread(_fetch, request)


async def _read(query: str, run_id: str, *, end: int) -> dict[str, Any]:
    """Reads record and ledger as soon as the projections contain all `end` events."""
    deadline = asyncio.get_running_loop().time() + _DEADLINE_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        try:
            run = await asyncio.to_thread(_fetch, f"{query}/v1/runs/{run_id}")
            if run["next_offset"] >= end:
                ledger = await asyncio.to_thread(_fetch, f"{query}/v1/runs/{run_id}/ledger")
                return {"run": run, "ledger": ledger["messages"]}
        except urllib.error.HTTPError as error:
            # Right after the projections are dropped, there is nothing to read for a moment.
            if error.code not in (404, 503, 504):
                raise DemoError(
                    f"the query service answered {error.code}: {error.read().decode()}"
                ) from error
        await asyncio.sleep(0.1)
    raise DemoError(f"the run could not be read up to offset {end} within {_DEADLINE_SECONDS} s")


def _fetch(request: str | urllib.request.Request) -> Any:
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  # our own service on loopback
        return json.load(answer)
