"""Mending a ledger that no provider accepts, by events that are appended and that everybody can
see.

A crash can end a run anywhere: after a call and before its result, within arguments, after thinking
and before a word. What is missing is published (a result that says that the call was interrupted);
what is in the way is amended, so that it stands otherwise in the ledger while the log keeps it.
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
"""Events that count, with their offsets, in the order of their log."""

Standing = Sequence[tuple[Place, AnyEvent]]
"""The same as they stand in the ledger."""


class Change(NamedTuple):
    """What shall stand in a place instead of what stands there."""

    place: Place
    instead: tuple[Data, ...]
    reason: str


def repair(events: Log) -> list[Data]:
    """What to append to a log so that every provider accepts its ledger; nothing where they do
    already.

    What no event can mend (an image that a provider does not take) is left to validation.
    """
    appended: list[Data] = []
    ledger = _standing(events, appended)
    # Each rule sees the ledger as the rules before it left it. The beginning comes last, when it is
    # known what remains.
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
        ledger = _standing(events, appended)
    return appended + list(_interrupted(ledger))


def _standing(events: Log, appended: Sequence[Data]) -> Standing:
    """The events as they stand with what was appended so far."""
    amendments = amendments_of(events) | {
        data.offset: data for data in appended if isinstance(data, EventAmended)
    }
    return list(expand_events(events, amendments))


def _amendments(ledger: Standing, changes: Iterable[Change]) -> Iterator[EventAmended]:
    """One amendment for each record that has a change: what else stands for it is told again."""
    changed = {change.place: change for change in changes}
    offsets = {offset_of(place) for place in changed}
    for offset, parts in groupby(ledger, key=lambda part: offset_of(part[0])):
        if offset in offsets:
            stand_ins: list[StandIn] = []
            reasons: dict[str, None] = {}
            for place, event in parts:
                change = changed.get(place, Change(place, (event.data,), ""))
                stand_ins += map(_stand_in, change.instead)
                reasons[change.reason] = None
            reason = "; ".join(filter(None, reasons))
            yield EventAmended(offset=offset, stand_ins=tuple(stand_ins), reason=reason)


def _stand_in(data: Data) -> StandIn:
    fields = data.model_dump(mode="json", exclude_unset=True)
    return StandIn.model_validate({"type": TYPE_OF[type(data)], "data": fields})


def _calls_without_objects(ledger: Standing) -> Iterator[Change]:
    """Arguments that a crash cut off are kept as text, and only an object is taken by every
    provider.
    """
    for place, event in ledger:
        if isinstance(event.data, ToolCall) and not isinstance(event.data.payload, dict):
            payload = {} if event.data.payload is None else {"arguments": event.data.payload}
            call = event.data.model_copy(update={"payload": payload, "provider_data": None})
            yield Change(place, (call,), CUT_OFF)


def _unanswerable(ledger: Standing) -> Iterator[Change]:
    """Calls that no result can reach any more, and results that no call waits for."""
    planner = ResultPlanner()
    last_of: dict[str, Place] = {}
    for place, event in ledger:
        planner.feed(place, event)
        if isinstance(event.data, ToolCall):
            last_of[event.data.tool_call_id] = place
    for place, fault in planner.faulty():
        if fault.rule != "call-has-result" or last_of.get(fault.tool_use_id or "") != place:
            yield Change(place, (), f"{fault.text}, and none can come")


def _repeated_within(ledger: Standing) -> Iterator[Change]:
    """Providers take an id once a message. What repeats it gets one of its own, and so do the
    results for it.
    """
    repeated = {place for draft in _drafts(ledger) for place in draft.repeated}
    known = {event.data.tool_call_id for _, event in ledger if isinstance(event.data, ToolCall)}
    renamed: dict[str, str] = {}
    for place, event in ledger:
        if not isinstance(event.data, ToolCall | ToolResult):
            continue
        tool_id = event.data.tool_call_id
        if place in repeated:
            renamed[tool_id] = next(new for n in count(2) if (new := f"{tool_id}-{n}") not in known)
            known.add(renamed[tool_id])
        elif isinstance(event.data, ToolCall):
            renamed.pop(tool_id, None)
        if tool_id in renamed:
            said = event.data.model_copy(update={"tool_call_id": renamed[tool_id]})
            yield Change(place, (said,), f"the id {tool_id!r} stands twice in a message")


def _instructions_within(ledger: Standing) -> Iterator[Change]:
    """Most providers know instructions at the beginning only, and moving them would change what
    they are about.
    """
    spoken = False
    for place, event in ledger:
        if isinstance(event.data, SystemMessage) and spoken and event.data.message:
            text = f"[Instructions] {event.data.message}"
            yield Change(place, (UserMessage(message=text),), "instructions within the conversation")
        spoken = spoken or _speaks(event) or _text_of(event) != ""


def _thinking_alone(ledger: Standing) -> Iterator[Change]:
    """Thinking that no word followed: providers refuse a message of nothing else."""
    for draft in _drafts(ledger):
        if draft.thinking and not any(map(_says_something, draft.parts)):
            for place in draft.thinking:
                yield Change(place, (), "thinking that nothing followed")


def _beginning(ledger: Standing) -> Iterator[Change]:
    """Most providers refuse a conversation that the assistant begins."""
    for place, event in ledger:
        if isinstance(event.data, UserMessage) and _speaks(event):
            return
        if _speaks(event):
            yield Change(place, (UserMessage(message=BEGINNING), event.data), "the assistant began")
            return


def _interrupted(ledger: Standing) -> Iterator[Data]:
    planner = ResultPlanner()
    calls: dict[Place, ToolCall] = {}
    for place, event in ledger:
        planner.feed(place, event)
        if isinstance(event.data, ToolCall):
            calls[place] = event.data
    for place, fault in planner.faulty():
        if fault.rule == "call-has-result":
            call = calls[place]
            yield ToolResult(tool_call_id=call.tool_call_id, tool_name=call.tool_name, error=INTERRUPTED)


def _drafts(ledger: Standing) -> list[Draft]:
    stream = LedgerStream(plan_results(ledger))
    drafts = [draft for place, event in ledger for draft in stream.feed(place, event)]
    return [*drafts, *stream.finish()]


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


def _says_something(part: Fields | Place) -> bool:
    if not isinstance(part, dict):
        return True
    return part["type"] != "thinking" and (part["type"] != "text" or bool(part["text"].strip()))
