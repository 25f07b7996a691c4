"""Repairs a ledger that no provider accepts by appending events, which every reader can see.

A crash can end a run anywhere: after a call and before its result, within arguments, after thinking
and before the first word. Missing events are appended, for example a result with the error that the
call was interrupted. Events that providers refuse are amended: the ledger shows their stand-ins,
and the log keeps the original.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, groupby
from typing import Final, NamedTuple

from runfold_projections.amendments import Place, amendments_of, expand_events, offset_of
from runfold_projections.exchanges import ResultPlanner, plan_results
from runfold_projections.ledger import Draft, Fields, LedgerStream
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

Log = Sequence[tuple[int, AnyEvent]]
"""Events that count, with their offsets, in the order of the log."""

LedgerEvents = Sequence[tuple[Place, AnyEvent]]
"""The expanded events of a log, with their places."""


class Change(NamedTuple):
    """Replaces the event at `place` by `replacements`."""

    place: Place
    replacements: tuple[Data, ...]
    reason: str


def repair(events: Log) -> list[Data]:
    """The events to append to a log so that every provider accepts its ledger. Empty if the ledger
    needs no repair.

    Events cannot repair every fault, for example an image that a provider does not accept.
    Validation reports such faults.
    """
    appended: list[Data] = []
    ledger = _ledger_events(events, appended)
    # Each rule sees the ledger after the changes of the rules before it. `_beginning` is the last,
    # because it depends on what remains.
    rules = (
        _calls_without_objects,
        _unanswerable,
        _repeated_within,
        _instructions_within,
        _thinking_alone,
        _beginning,
    )
    for rule in rules:
        appended += _amendments(ledger, rule(ledger))
        ledger = _ledger_events(events, appended)
    return appended + list(_interrupted(ledger))


def _ledger_events(events: Log, appended: Sequence[Data]) -> LedgerEvents:
    """The expanded events, with the amendments in the log and those `appended` so far."""
    amendments = amendments_of(events) | {
        data.offset: data for data in appended if isinstance(data, EventAmended)
    }
    return list(expand_events(events, amendments))


def _amendments(ledger: LedgerEvents, changes: Iterable[Change]) -> Iterator[EventAmended]:
    """One amendment for each record with a change. It repeats the unchanged events of the record,
    because an amendment replaces all of them.
    """
    by_place = {change.place: change for change in changes}
    offsets = {offset_of(place) for place in by_place}
    for offset, group in groupby(ledger, key=lambda placed: offset_of(placed[0])):
        if offset in offsets:
            stand_ins: list[StandIn] = []
            reasons: dict[str, None] = {}
            for place, event in group:
                change = by_place.get(place, Change(place, (event.data,), ""))
                stand_ins += map(_stand_in, change.replacements)
                reasons[change.reason] = None
            reason = "; ".join(filter(None, reasons))
            yield EventAmended(offset=offset, stand_ins=tuple(stand_ins), reason=reason)


def _stand_in(data: Data) -> StandIn:
    fields = data.model_dump(mode="json", exclude_unset=True)
    return StandIn.model_validate({"type": TYPE_OF[type(data)], "data": fields})


def _calls_without_objects(ledger: LedgerEvents) -> Iterator[Change]:
    """Wraps arguments that are not an object. A crash can leave cut arguments as text, and only an
    object is accepted by every provider.
    """
    for place, event in ledger:
        if isinstance(event.data, ToolCall) and not isinstance(event.data.payload, dict):
            payload = {} if event.data.payload is None else {"arguments": event.data.payload}
            call = event.data.model_copy(update={"payload": payload, "provider_data": None})
            yield Change(place, (call,), CUT_OFF)


def _unanswerable(ledger: LedgerEvents) -> Iterator[Change]:
    """Removes calls that no later result can belong to, and results without a call."""
    planner = ResultPlanner()
    last_of: dict[str, Place] = {}
    for place, event in ledger:
        planner.feed(place, event)
        if isinstance(event.data, ToolCall):
            last_of[event.data.tool_call_id] = place
    for place, fault in planner.placed_faults():
        if fault.rule != "call-has-result" or last_of.get(fault.tool_use_id or "") != place:
            yield Change(place, (), f"{fault.text}, and none can come")


def _repeated_within(ledger: LedgerEvents) -> Iterator[Change]:
    """Renames ids that repeat within a message, in calls and in their results, because providers
    accept an id once in a message.
    """
    repeated = {place for draft in _drafts(ledger) for place in draft.repeated}
    used_ids = {event.data.tool_call_id for _, event in ledger if isinstance(event.data, ToolCall)}
    renamed: dict[str, str] = {}
    for place, event in ledger:
        if not isinstance(event.data, ToolCall | ToolResult):
            continue
        tool_id = event.data.tool_call_id
        if place in repeated:
            renamed[tool_id] = next(new for n in count(2) if (new := f"{tool_id}-{n}") not in used_ids)
            used_ids.add(renamed[tool_id])
        elif isinstance(event.data, ToolCall):
            renamed.pop(tool_id, None)
        if tool_id in renamed:
            replacement = event.data.model_copy(update={"tool_call_id": renamed[tool_id]})
            yield Change(place, (replacement,), f"the id {tool_id!r} stands twice in a message")


def _instructions_within(ledger: LedgerEvents) -> Iterator[Change]:
    """Turns instructions within the conversation into user messages. Most providers accept
    instructions only at the beginning, and moving them there would change their meaning.
    """
    has_begun = False
    for place, event in ledger:
        if isinstance(event.data, SystemMessage) and has_begun and event.data.message:
            text = f"[Instructions] {event.data.message}"
            yield Change(place, (UserMessage(message=text),), "instructions within the conversation")
        has_begun = has_begun or _has_content(event) or _text_of(event) != ""


def _thinking_alone(ledger: LedgerEvents) -> Iterator[Change]:
    """Removes thinking from messages without any other content, because providers refuse them."""
    for draft in _drafts(ledger):
        if draft.thinking and not any(map(_is_more_than_thinking, draft.parts)):
            for place in draft.thinking:
                yield Change(place, (), "thinking that nothing followed")


def _beginning(ledger: LedgerEvents) -> Iterator[Change]:
    """Puts a user message before a conversation that the assistant begins, because most providers
    refuse such a conversation.
    """
    for place, event in ledger:
        if isinstance(event.data, UserMessage) and _has_content(event):
            return
        if _has_content(event):
            yield Change(place, (UserMessage(message=BEGINNING), event.data), "the assistant began")
            return


def _interrupted(ledger: LedgerEvents) -> Iterator[Data]:
    """Results for the calls that have none."""
    planner = ResultPlanner()
    calls: dict[Place, ToolCall] = {}
    for place, event in ledger:
        planner.feed(place, event)
        if isinstance(event.data, ToolCall):
            calls[place] = event.data
    for place, fault in planner.placed_faults():
        if fault.rule == "call-has-result":
            call = calls[place]
            yield ToolResult(tool_call_id=call.tool_call_id, tool_name=call.tool_name, error=INTERRUPTED)


def _drafts(ledger: LedgerEvents) -> list[Draft]:
    stream = LedgerStream(plan_results(ledger))
    drafts = [draft for place, event in ledger for draft in stream.feed(place, event)]
    return [*drafts, *stream.finish()]


def _text_of(event: AnyEvent) -> str:
    return event.data.message if isinstance(event.data, UserMessage | AssistantMessage) else ""


def _has_content(event: AnyEvent) -> bool:
    """Whether the event adds something other than instructions to the ledger."""
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


def _is_more_than_thinking(part: Fields | Place) -> bool:
    if not isinstance(part, dict):
        return True
    return part["type"] != "thinking" and (part["type"] != "text" or bool(part["text"].strip()))
