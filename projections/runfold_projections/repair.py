"""Mending a ledger that no provider accepts, by events that are appended and that everybody can see.

A crash can end a run anywhere: after a call and before its result, within arguments, after thinking and before a word.
What is missing is published (a result that says that the call was interrupted); what is in the way is amended, so that
it stands otherwise in the ledger while the log keeps it.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from runfold_projections.amendments import amended, amendments_of
from runfold_projections.exchanges import ResultPlanner, plan_results
from runfold_projections.ledger import Fields, LedgerStream
from runfold_schemas.codec import TYPE_OF
from runfold_schemas.data import Data
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    EventAmended,
    ProviderPart,
    StandIn,
    SystemMessage,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)

INTERRUPTED: Final = "The call was interrupted: its result is not known."
CUT_OFF: Final = "The arguments of this call were cut off, or are no JSON object."
BEGINNING: Final = "(The assistant begins the conversation.)"

Pairs = Sequence[tuple[int, AnyEvent]]
"""Events that count, with their offsets, in the order of their log."""


def repair(events: Pairs) -> list[Data]:
    """What to append to a log so that every provider accepts its ledger; nothing where they do already.

    What no event can mend (an image that a provider does not take) is left to validation.
    """
    appended: list[Data] = []
    standing = _standing(events, appended)
    # Each rule sees the ledger as the rules before it left it. The beginning comes last, when it is known what remains.
    for rule in (_calls_without_objects, _unanswerable, _instructions_within, _thinking_alone, _beginning):
        appended += rule(standing)
        standing = _standing(events, appended)
    return appended + list(_interrupted(standing))


def _standing(events: Pairs, appended: Sequence[Data]) -> Pairs:
    """The events as they stand with what was appended so far."""
    amendments = amendments_of(events) | {
        data.offset: data for data in appended if isinstance(data, EventAmended)
    }
    return list(amended(events, amendments))


def _calls_without_objects(events: Pairs) -> Iterator[Data]:
    """Arguments that a crash cut off are kept as text, and only an object is taken by every provider."""
    for offset, event in events:
        if isinstance(event.data, ToolCall) and not isinstance(event.data.payload, dict):
            payload = {} if event.data.payload is None else {"arguments": event.data.payload}
            call = event.data.model_copy(update={"payload": payload, "provider_data": None})
            yield _amend(offset, call, reason=CUT_OFF)


def _unanswerable(events: Pairs) -> Iterator[Data]:
    """Calls that no result can reach any more, and results that no call waits for."""
    planner = ResultPlanner()
    last_of: dict[str, int] = {}
    for offset, event in events:
        planner.feed(offset, event)
        if isinstance(event.data, ToolCall):
            last_of[event.data.tool_call_id] = offset
    for fault in planner.faults():
        waits = fault.rule == "call-has-result" and last_of.get(fault.tool_use_id or "") == fault.offset
        if fault.offset is not None and not waits:
            yield _amend(fault.offset, reason=f"{fault.text}, and none can come")


def _instructions_within(events: Pairs) -> Iterator[Data]:
    """Most providers know instructions at the beginning only, and moving them would change what they are about."""
    spoken = False
    for offset, event in events:
        if isinstance(event.data, SystemMessage) and spoken and event.data.message:
            text = f"[Instructions] {event.data.message}"
            yield _amend(offset, UserMessage(message=text), reason="instructions within the conversation")
        spoken = spoken or _speaks(event) or _text_of(event) != ""


def _thinking_alone(events: Pairs) -> Iterator[Data]:
    """Thinking that no word followed: providers refuse a message of nothing else."""
    stream = LedgerStream(plan_results(events))
    drafts = [draft for offset, event in events for draft in stream.feed(offset, event)]
    for draft in [*drafts, *stream.finish()]:
        if draft.thinking and not any(isinstance(part, int) or _says_something(part) for part in draft.parts):
            for offset in draft.thinking:
                yield _amend(offset, reason="thinking that nothing followed")


def _beginning(events: Pairs) -> Iterator[Data]:
    """Most providers refuse a conversation that the assistant begins."""
    for offset, event in events:
        if isinstance(event.data, UserMessage) and _speaks(event):
            return
        if _speaks(event):
            said = event.data
            if isinstance(said, AssistantMessage | Thinking | ToolCall | ProviderPart):
                yield _amend(offset, UserMessage(message=BEGINNING), said, reason="the assistant began")
            return


def _interrupted(events: Pairs) -> Iterator[Data]:
    planner = ResultPlanner()
    calls: dict[int, ToolCall] = {}
    for offset, event in events:
        planner.feed(offset, event)
        if isinstance(event.data, ToolCall):
            calls[offset] = event.data
    for fault in planner.faults():
        if fault.rule == "call-has-result" and fault.offset is not None:
            call = calls[fault.offset]
            yield ToolResult(tool_call_id=call.tool_call_id, tool_name=call.tool_name, error=INTERRUPTED)


def _text_of(event: AnyEvent) -> str:
    return event.data.message if isinstance(event.data, UserMessage | AssistantMessage) else ""


def _speaks(event: AnyEvent) -> bool:
    """Whether the event puts something other than instructions into the ledger."""
    match event.data:
        case UserMessage(message=text, parts=parts):
            return bool(text.strip() if parts is None else parts)
        case AssistantMessage(message=text):
            return bool(text.strip())
        case ToolCall():
            return True
        case ProviderPart(finished=finished):
            return finished
        case Thinking() as thinking:
            return bool(thinking.redacted or thinking.signature or thinking.provider_data)
        case _:
            return False


def _says_something(part: Fields) -> bool:
    return part["type"] != "thinking" and (part["type"] != "text" or bool(part["text"].strip()))


def _amend(
    offset: int,
    *stand_ins: UserMessage | AssistantMessage | Thinking | ToolCall | ProviderPart,
    reason: str,
) -> EventAmended:
    return EventAmended(
        offset=offset,
        stand_ins=tuple(
            StandIn.model_validate({"type": TYPE_OF[type(one)], "data": one.model_dump(exclude_unset=True)})
            for one in stand_ins
        ),
        reason=reason,
    )
