"""How an event looks in a terminal: a line for each thing that it says."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, assert_never

from rich.text import Text

from runfold_projections.frameworks import expand
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    EventAmended,
    PhaseChanged,
    PlannerNote,
    ProviderPart,
    ResponseRecorded,
    RunCanceled,
    RunCompleted,
    RunFailed,
    RunLabeled,
    RunOpened,
    RunPaused,
    RunResumed,
    RunStarted,
    SystemMessage,
    Thinking,
    TokenUsage,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.memories import BankFact, GenerationRequested, MemoriesGenerated, MemoryChange
from runfold_schemas.sessions import (
    FrameworkEvent,
    SessionCreated,
    SessionDeleted,
    SessionUpdated,
    StateChanged,
)

_COLORS: Final = {
    "system": "magenta",
    "user": "cyan",
    "assistant": "green",
    "call": "yellow",
    "result": "yellow",
    "error": "red",
    "state": "blue",
}


class Said(NamedTuple):
    """Who says or does something, in a word, and what."""

    who: str
    text: str


def lines(offset: int, event: AnyEvent, *, width: int | None) -> Iterator[Text]:
    """The event's lines, each at most `width` wide; None for all of it."""
    time = event.timestamp.astimezone().strftime("%m-%d %H:%M:%S")
    for one in [*_all_said(event), *_state(event.state_delta)]:
        line = Text.assemble(
            (f"{offset:>5}  {time}  ", "dim"),
            (f"{one.who:<9}  ", _COLORS.get(one.who, "dim")),
            on_one_line(one.text),
        )
        if width is not None:
            line.truncate(width, overflow="ellipsis")
        yield line


def on_one_line(text: str) -> str:
    """Without what would move the cursor, or color what comes after: a tool may answer anything."""
    return "".join(char if char.isprintable() else " " for char in text)


def _all_said(event: AnyEvent) -> list[Said]:
    standing = expand(event)
    if not standing and not event.state_delta:
        standing = [event]
    return [found for one in standing if (found := _said(one)) is not None]


def _state(delta: Mapping[str, Any] | None) -> list[Said]:
    return [Said("state", " ".join(f"{key}={_json(value)}" for key, value in delta.items()))] if delta else []


def _said(event: AnyEvent) -> Said | None:  # noqa: C901, PLR0912  # a case for each kind
    match event.data:
        case SystemMessage(message=text):
            return Said("system", text)
        case UserMessage(message=text, parts=parts):
            others = [part.type for part in parts or () if part.type != "text"]
            return Said("user", " ".join([text, *(f"({kind})" for kind in others)]))
        case AssistantMessage(message=text):
            return Said("assistant", text)
        case Thinking(text=text, redacted=redacted):
            return Said("thinking", "(redacted)" if redacted else text)
        case ToolCall(tool_name=name, payload=payload):
            return Said("call", f"{name} {_json(payload)}")
        case ToolResult() as result:
            return _result(result)
        case PlannerNote(note=text):
            return Said("note", text)
        case TokenUsage() as usage:
            tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
            return Said("usage", f"{usage.model}: {tokens}" if usage.model else tokens)
        case ProviderPart(content=content, finished=finished):
            return Said("part", _json(content) if finished else f"{_json(content)} (unfinished)")
        case ResponseRecorded() as response:
            ends = response.stop_reason if response.finished else "broke off"
            return Said("response", ", ".join(filter(None, [response.model, ends, *response.faults])))
        case EventAmended(offset=offset, stand_ins=stand_ins, reason=reason):
            stands = " and ".join(one.type for one in stand_ins) or "nothing"
            return Said("amended", f"{offset} stands for {stands}: {reason}")
        case FrameworkEvent(framework=framework, body=body):
            return Said("event", f"of {framework}, with nothing for a model: {_json(body)}")
        case StateChanged():
            return None
        case SessionCreated() | SessionUpdated() | SessionDeleted():
            return Said("session", event.type.removeprefix("session_"))
        case MemoryChange(memory_id=memory_id):
            fact = getattr(getattr(event.data, "memory", None), "fact", None)
            did = f"{memory_id} {event.type.removeprefix('memory_')}"
            return Said("memory", f"{did}: {fact}" if fact else did)
        case GenerationRequested(scope=scope, reason=reason):
            return Said("memory", f"to be generated for {_json(scope)}: {reason}")
        case MemoriesGenerated(error=error) as generated:
            counts = len(generated.created), len(generated.updated), len(generated.deleted)
            told = "{} created, {} updated, {} deleted".format(*counts)
            return Said("memory", f"nothing generated: {error}" if error else told)
        case BankFact(bank_id=bank_id):
            return Said("bank", f"{bank_id} {event.type.removeprefix('bank_')}")
        case RunOpened(agent_id=agent_id):
            return Said("run", f"opened for {agent_id}")
        case RunFailed(error=error):
            return Said("run", f"failed: {error}")
        case RunPaused(reason=reason) | RunCanceled(reason=reason):
            did = event.type.removeprefix("run_")
            return Said("run", f"{did}: {reason}" if reason else did)
        case RunStarted() | RunResumed() | RunCompleted():
            return Said("run", event.type.removeprefix("run_"))
        case RunLabeled(labels=labels):
            return Said("labels", " ".join(f"{key}={value}" for key, value in labels.items()))
        case PhaseChanged(phase=phase):
            return Said("phase", phase)
        case _:
            assert_never(event.data)


def _result(result: ToolResult) -> Said:
    name = result.tool_name or result.tool_call_id
    if result.error is not None:
        return Said("error", f"{name} {_json(result.error)}")
    attached = "".join(f" ({part.type})" for part in result.attachments)
    return Said("result", f"{name} {_json(result.result)}{attached}")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
