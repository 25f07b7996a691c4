"""Events as lines of a terminal: a line for each message, call, result or change in an event."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, assert_never

from rich.text import Text

from runfold.printable import on_one_line
from runfold_projections.frameworks import expand
from runfold_projections.usage import tokens_of
from runfold_schemas.erasures import SubjectErased
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    EventAmended,
    PlannerNote,
    ProviderPart,
    ResponseRecorded,
    SystemMessage,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.judgements import PolicyDecided, PromptRendered, RunScored
from runfold_schemas.memories import BankFact, GenerationRequested, MemoriesGenerated, MemoryChange
from runfold_schemas.runs import (
    PhaseChanged,
    RunCanceled,
    RunCompleted,
    RunFailed,
    RunLabeled,
    RunOpened,
    RunPaused,
    RunResumed,
    RunStarted,
)
from runfold_schemas.sessions import (
    FrameworkEvent,
    RunDeleted,
    SessionCreated,
    SessionDeleted,
    SessionUpdated,
    StateChanged,
    StateDeleted,
)
from runfold_schemas.summaries import Summary
from runfold_schemas.usage import TokenUsage

_COLORS: Final = {
    "system": "magenta",
    "user": "cyan",
    "assistant": "green",
    "call": "yellow",
    "result": "yellow",
    "error": "red",
    "state": "blue",
}


class Entry(NamedTuple):
    """The content of one line: a word for who acts or what happens, and a text."""

    actor: str
    text: str


def lines(offset: int, event: AnyEvent, *, width: int | None) -> Iterator[Text]:
    """The event's lines, each cut to `width` columns; None: nothing is cut."""
    time = event.timestamp.astimezone().strftime("%m-%d %H:%M:%S")
    for entry in [*_entries(event), *_state_entries(event.state_delta)]:
        line = Text.assemble(
            (f"{offset:>5}  {time}  ", "dim"),
            (f"{entry.actor:<9}  ", _COLORS.get(entry.actor, "dim")),
            on_one_line(entry.text),
        )
        if width is not None:
            line.truncate(width, overflow="ellipsis")
        yield line


def _entries(event: AnyEvent) -> list[Entry]:
    expanded = expand(event)
    if not expanded and not event.state_delta:
        expanded = [event]
    return [entry for each in expanded if (entry := _entry(each)) is not None]


def _state_entries(delta: Mapping[str, Any] | None) -> list[Entry]:
    if not delta:
        return []
    return [Entry("state", " ".join(f"{key}={_json(value)}" for key, value in delta.items()))]


def _entry(event: AnyEvent) -> Entry | None:  # noqa: C901, PLR0912  # a case for each kind
    match event.data:
        case SystemMessage(message=text):
            return Entry("system", text)
        case UserMessage(message=text, parts=parts):
            others = [part.type for part in parts or () if part.type != "text"]
            return Entry("user", " ".join([text, *(f"({kind})" for kind in others)]))
        case AssistantMessage(message=text):
            return Entry("assistant", text)
        case Thinking(text=text, redacted=redacted):
            return Entry("thinking", "(redacted)" if redacted else text)
        case ToolCall(tool_name=name, payload=payload):
            return Entry("call", f"{name} {_json(payload)}")
        case ToolResult() as result:
            return _result(result)
        case PlannerNote(note=text):
            return Entry("note", text)
        case TokenUsage() as usage:
            tokens = f"{tokens_of(event, usage).input_tokens} tokens in, {usage.output_tokens} out"
            return Entry("usage", f"{usage.model}: {tokens}" if usage.model else tokens)
        case ProviderPart(content=content, finished=finished):
            return Entry("part", _json(content) if finished else f"{_json(content)} (unfinished)")
        case ResponseRecorded() as response:
            end = response.stop_reason if response.finished else "broke off"
            return Entry("response", ", ".join(filter(None, [response.model, end, *response.faults])))
        case EventAmended(offset=offset, stand_ins=stand_ins, reason=reason):
            replacement = " and ".join(stand_in.type for stand_in in stand_ins) or "nothing"
            return Entry("amended", f"{offset} is replaced by {replacement}: {reason}")
        case Summary(text=text, end_offset=end):
            return Entry("summary", f"of everything before {end}: {text}")
        case FrameworkEvent(framework=framework, body=body):
            return Entry("event", f"of {framework}, with nothing for a model: {_json(body)}")
        case StateChanged() | StateDeleted() | RunDeleted() | SubjectErased():
            return None
        case SessionCreated() | SessionUpdated() | SessionDeleted():
            return Entry("session", event.type.removeprefix("session_"))
        case MemoryChange(memory_id=memory_id):
            fact = getattr(getattr(event.data, "memory", None), "fact", None)
            change = f"{memory_id} {event.type.removeprefix('memory_')}"
            return Entry("memory", f"{change}: {fact}" if fact else change)
        case GenerationRequested(scope=scope, reason=reason):
            return Entry("memory", f"generation requested for {_json(scope)}: {reason}")
        case MemoriesGenerated(error=error) as generated:
            counts = len(generated.created), len(generated.updated), len(generated.deleted)
            changes = "{} created, {} updated, {} deleted".format(*counts)
            return Entry("memory", f"nothing generated: {error}" if error else changes)
        case BankFact(bank_id=bank_id):
            return Entry("bank", f"{bank_id} {event.type.removeprefix('bank_')}")
        case RunOpened(agent_id=agent_id):
            return Entry("run", f"opened for {agent_id}")
        case RunFailed(error=error):
            return Entry("run", f"failed: {error}")
        case RunPaused(reason=reason) | RunCanceled(reason=reason):
            change = event.type.removeprefix("run_")
            return Entry("run", f"{change}: {reason}" if reason else change)
        case RunStarted() | RunResumed() | RunCompleted():
            return Entry("run", event.type.removeprefix("run_"))
        case RunLabeled(labels=labels):
            return Entry("labels", " ".join(f"{key}={value}" for key, value in labels.items()))
        case PhaseChanged(phase=phase):
            return Entry("phase", phase)
        case PromptRendered(prompt_id=prompt_id, version=version):
            return Entry("prompt", f"{prompt_id} {version}" if version else prompt_id)
        case PolicyDecided() as decided:
            return Entry("policy", _policy(decided))
        case RunScored() as scored:
            return Entry("score", _score(scored))
        case _:
            assert_never(event.data)


def _policy(decided: PolicyDecided) -> str:
    tools = "any tool" if decided.allowed_tools is None else ", ".join(decided.allowed_tools) or "no tool"
    return "; ".join([tools, *(f"{name}={cap}" for name, cap in decided.caps.items())])


def _score(scored: RunScored) -> str:
    part = scored.scored_turn_id if scored.scored_offset is None else f"offset {scored.scored_offset}"
    said = [scored.score, scored.label, scored.reason]
    judgement = ", ".join(str(each) for each in said if each is not None)
    return f"{scored.scorer}{f' of {part}' if part else ''}: {judgement}"


def _result(result: ToolResult) -> Entry:
    name = result.tool_name or result.tool_call_id
    if result.error is not None:
        return Entry("error", f"{name} {_json(result.error)}")
    attached = "".join(f" ({part.type})" for part in result.attachments)
    return Entry("result", f"{name} {_json(result.result)}{attached}")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
