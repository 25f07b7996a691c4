"""Repairs a ledger that no provider accepts by appending events, which every reader can see.

A crash can end a run anywhere: after a call and before its result, within arguments, after thinking
and before the first word. Missing events are appended, for example a result with the error that the
call was interrupted. Events that providers refuse are amended: the ledger shows their stand-ins,
and the log keeps the original.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

from runfold_projections.amendments import Place, expand_events, offset_of, order_key
from runfold_projections.call_ids import distinct_ids
from runfold_projections.endings import has_broken_off
from runfold_projections.exchanges import ResultPlanner, plan_results
from runfold_projections.ledger import Draft, LedgerStream
from runfold_projections.live import LivePlanner
from runfold_projections.open_message import Fields
from runfold_projections.providers.open_calls import refused_blocks, unanswered_items
from runfold_projections.providers.openai_responses_tools import failed_output
from runfold_projections.providers.values import is_blank
from runfold_projections.validation import Rule
from runfold_schemas.codec import TYPE_OF
from runfold_schemas.data import Data
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    EventAmended,
    ProviderPart,
    StandIn,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.messages import Message, OpaquePart, TextPart

INTERRUPTED: Final = "The call was interrupted: its result is not known."
CUT_OFF: Final = "The arguments of this call were cut off, or are no JSON object."
CONTINUE: Final = "[Interrupted] Continue."
BEGINNING: Final = "(The assistant begins the conversation.)"

_ROUNDS_MAX: Final = 10
"""Two rounds are enough for most logs. The limit is for logs that nobody has thought of."""

_CUT_OFF_BLOCKS: Final[Mapping[Rule, str]] = {
    "server-call-has-result": "the call of the provider's tool was cut off from its result",
    "server-result-has-call": "the result of the provider's tool was cut off from its call",
}

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
    broken_off = has_broken_off(events)
    # Each rule sees the ledger after the changes of the rules before it.
    rules = (
        _calls_without_objects,
        _orphaned_results,
        partial(_cut_off_blocks, has_ended=broken_off),
        _unanswered_items,
        partial(_thinking_last, has_ended=broken_off),
        _ambiguous_ids,
        _beginning,
    )
    # A change may join two messages or divide one, so the rules look until they find nothing.
    for _ in range(_ROUNDS_MAX):
        count = len(appended)
        for rule in rules:
            if changes := list(_amendments(ledger, rule(ledger))):
                appended += changes
                ledger = _ledger_events(events, appended)
        if len(appended) == count:
            break
    results = list(_interrupted(ledger))
    return [*appended, *results, *_continuation(ledger, results, broken_off=broken_off)]


def _ledger_events(events: Log, appended: Sequence[Data]) -> LedgerEvents:
    """The expanded events, with the amendments in the log and those `appended` so far."""
    planner = LivePlanner()
    for offset, event in events:
        planner.feed(offset, event)
    for data in appended:
        if isinstance(data, EventAmended):
            planner.amend(data)
    return list(expand_events(events, planner.replacements()))


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
    object is accepted by every provider. A call without arguments has an empty one in requests.
    """
    for place, event in ledger:
        if isinstance(event.data, ToolCall) and not isinstance(event.data.payload, dict | None):
            payload = {"arguments": event.data.payload}
            call = event.data.model_copy(update={"payload": payload, "provider_data": None})
            yield Change(place, (call,), CUT_OFF)


def _ambiguous_ids(ledger: LedgerEvents) -> Iterator[Change]:
    """Renames calls whose id is missing or is used again, and their results."""
    repeated = {place for draft in _drafts(ledger) for place in draft.repeated}
    new_ids = distinct_ids(ledger, repeated)
    for place, event in ledger:
        if place in new_ids and isinstance(event.data, ToolCall | ToolResult):
            replacement = event.data.model_copy(update={"tool_call_id": new_ids[place]})
            yield Change(place, (replacement,), f"{event.data.tool_call_id!r} is no id of one call alone")


def _orphaned_results(ledger: LedgerEvents) -> Iterator[Change]:
    """Removes results without a call. `_ambiguous_ids` names those without an id, if their call has
    none either.
    """
    nameless = [
        place for place, event in ledger if isinstance(event.data, ToolCall) and not event.data.tool_call_id
    ]
    for place, fault in _plan(ledger).placed_faults():
        is_nameless = fault.rule == "result-has-id" and nameless and order_key(nameless[0]) < order_key(place)
        if fault.rule.startswith("result-") and not is_nameless:
            yield Change(place, (), f"{fault.text}, and none can come")


def _cut_off_blocks(ledger: LedgerEvents, *, has_ended: bool) -> Iterator[Change]:
    """Removes calls of the provider's own tools without their result, and results without their
    call. The last turn of the assistant may go on, unless `has_ended`.
    """
    drafts, messages = _messages(ledger)
    more = [Message(role="user", parts=(TextPart(text=CONTINUE),))] if has_ended else []
    for (index, at), rule in refused_blocks([*messages, *more]):
        yield Change(_opaque_place(drafts[index], messages[index], at), (), _CUT_OFF_BLOCKS[rule])


def _unanswered_items(ledger: LedgerEvents) -> Iterator[Change]:
    """Puts outputs behind opaque calls without one, and removes calls whose output is an image."""
    by_place = dict(ledger)
    drafts, messages = _messages(ledger)
    for (index, at), _ in unanswered_items(messages):
        place = _opaque_place(drafts[index], messages[index], at)
        call = by_place[place].data
        if isinstance(call, ProviderPart):
            output = failed_output(call.content, INTERRUPTED)
            outputs = () if output is None else (call, ProviderPart(content=output))
            yield Change(place, outputs, INTERRUPTED)


def _thinking_last(ledger: LedgerEvents, *, has_ended: bool) -> Iterator[Change]:
    """Removes thinking from messages without any other content, because providers refuse them. At
    the end of a message, OpenAI refuses reasoning too, and Anthropic in a response that broke off.
    """
    drafts, by_place = _drafts(ledger), dict(ledger)
    for draft in drafts:
        followed = max(
            (at for at, part in enumerate(draft.parts) if _is_more_than_thinking(part)), default=-1
        )
        last = sum(not _is_blank(part) for part in draft.parts[followed + 1 :])
        for place in draft.thinking[len(draft.thinking) - last :]:
            is_refused = followed < 0 or by_place[place].provider == "openai-responses"
            if is_refused or (has_ended and draft is drafts[-1]):
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


def _interrupted(ledger: LedgerEvents) -> Iterator[ToolResult]:
    """Results for the calls that have none."""
    calls = {place: event.data for place, event in ledger if isinstance(event.data, ToolCall)}
    for place, fault in _plan(ledger).placed_faults():
        if fault.rule == "call-has-result":
            call = calls[place]
            yield ToolResult(tool_call_id=call.tool_call_id, tool_name=call.tool_name, error=INTERRUPTED)


def _continuation(
    ledger: LedgerEvents, results: Sequence[ToolResult], *, broken_off: bool
) -> Iterator[UserMessage]:
    """A message of the user after a response that broke off, because many models refuse a request
    that ends with the assistant. A finished answer waits for the user, and gets nothing.
    """
    drafts = _drafts(ledger)
    if broken_off and drafts and drafts[-1].role == "assistant":
        answered = {data.tool_call_id for data in results}
        calls = {
            part["id"] for part in drafts[-1].parts if isinstance(part, dict) and part["type"] == "tool_use"
        }
        if answered.isdisjoint(calls):
            yield UserMessage(message=CONTINUE)


def _plan(ledger: LedgerEvents) -> ResultPlanner:
    planner = ResultPlanner()
    for place, event in ledger:
        planner.feed(place, event)
    return planner


def _drafts(ledger: LedgerEvents) -> list[Draft]:
    stream = LedgerStream(plan_results(ledger))
    drafts = [draft for place, event in ledger for draft in stream.feed(place, event)]
    return [*drafts, *stream.finish()]


def _messages(ledger: LedgerEvents) -> tuple[list[Draft], list[Message]]:
    """The messages if any of them has an opaque part, each with its draft. Otherwise none, because
    messages take more time than drafts.
    """
    if not any(isinstance(event.data, ProviderPart) for _, event in ledger):
        return [], []
    drafts, by_place = _drafts(ledger), dict(ledger)
    return drafts, [draft.message(by_place) for draft in drafts]


def _opaque_place(draft: Draft, message: Message, part_index: int) -> Place:
    """The place of the event of an opaque part."""
    earlier = (isinstance(part, OpaquePart) for part in message.parts[:part_index])
    return draft.opaque[sum(earlier)]


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
    return not isinstance(part, dict) or (part["type"] != "thinking" and not _is_blank(part))


def _is_blank(part: Fields | Place) -> bool:
    return isinstance(part, dict) and part["type"] == "text" and is_blank(part["text"])
