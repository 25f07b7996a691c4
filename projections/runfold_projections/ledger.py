"""The ledger: the messages to send back to a model provider, exactly as they were.

There are three ways to build it. All of them use the same open assistant message (`OpenMessage`):

- `Ledger`: the caller adds part after part, as in Goa-AI;
- `build_messages_from_events`: for a log that fits into memory;
- `LedgerStream`: for a log that does not fit, after a first pass over the log (`exchanges`).

ARCHITECTURE.md (The ledger) has the rules for the order of parts and messages. Values inside parts
(the input of a call, the content of a result) are shared and not copied, and no code changes them.
Parts stay dictionaries until their message is built, because one call of pydantic for a message
with all its parts takes half the time of one call for each part.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, assert_never

from pydantic import TypeAdapter

from runfold_projections.amendments import Place, expand_log
from runfold_projections.exchanges import ResultPlan, plan_results
from runfold_projections.open_message import Fields, OpenMessage, with_blobs, with_data
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
from runfold_schemas.ledger_events import LedgerEvent
from runfold_schemas.memories import BankFact, GenerationRequested, MemoriesGenerated, MemoryChange
from runfold_schemas.messages import Message, Provider, Role, ToolResultPart
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

_MESSAGE: Final[TypeAdapter[Message]] = TypeAdapter(Message)


def build_messages_from_events(events: Iterable[AnyEvent]) -> list[Message]:
    """The ledger of a run's events in the order of the log. Any prefix of a log has a ledger.

    The index of an event is taken for its offset, which amendments name. If the log has gaps, use
    `build_messages_from_log`.
    """
    return build_messages_from_log(enumerate(events))


def build_messages_from_log(log: Iterable[tuple[int, AnyEvent]]) -> list[Message]:
    """The ledger of a log of `(offset, event)` pairs."""
    return [message for _, message in build_placed_messages(expand_log(list(log)))]


def build_placed_messages(events: Sequence[tuple[Place, LedgerEvent]]) -> list[tuple[Place, Message]]:
    """The ledger of expanded events, each message with the place of its draft."""
    stream = LedgerStream(plan_results(events))
    drafts = [draft for place, event in events for draft in stream.feed(place, event)]
    drafts.extend(stream.finish())
    by_place = dict(events) if any(draft.late for draft in drafts) else {}
    return [(draft.place, draft.message(by_place)) for draft in drafts]


class Ledger:
    """Messages written part by part. Parts of the assistant gather in one open message until it is
    flushed.

    The operations and the parts that they omit are those of Goa-AI 0.38.0's ledger, with two
    differences: `append_user_text` and `append_system_text` exist, and both of them and results
    flush the assistant first.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._assistant = OpenMessage()

    def append_thinking(
        self,
        text: str = "",
        signature: str = "",
        redacted: str | None = None,
        index: int = 0,
        final: bool = False,
    ) -> None:
        """Adds a block of thinking at the head of the assistant message, after earlier thinking.

        A block with `redacted` (base64) loses text and signature. Any other block without text or
        signature is omitted, because no provider accepts thinking that it did not sign. Raises
        pydantic's `ValidationError` if `redacted` is not base64.
        """
        self._assistant.think(
            Thinking(text=text, signature=signature, redacted=redacted, content_index=index, final=final)
        )

    def append_text(self, text: str) -> None:
        """Adds text of the assistant. It joins the text part before it, if that is the last part.
        "" adds nothing.
        """
        if text:
            self._assistant.say(text)

    def declare_tool_use(self, id: str, name: str, args: Any) -> None:  # noqa: A002  # the part's own word, as upstream
        """Adds the assistant's call of a tool. `args` is any JSON."""
        self._assistant.call(id, name, args)

    def flush_assistant(self) -> None:
        """Ends the open assistant message. A message without parts is dropped."""
        self._messages.extend(_messages("assistant", self._assistant.parts()))
        self._assistant = OpenMessage()

    def append_user_tool_results(self, results: Iterable[ToolResultPart | Mapping[str, Any]]) -> None:
        """Adds a user message with `results` in this order. Each is a part or a mapping of its
        fields.

        Results without an id are omitted. If no result remains, nothing happens and the assistant
        message stays open. Raises pydantic's `ValidationError` for fields that are no result.
        """
        parts = [ToolResultPart.model_validate(result) for result in results]
        self._append("user", [dict(part) for part in parts if part.tool_use_id])

    def append_user_text(self, text: str) -> None:
        """Adds a user message, also if the last message is the user's. "" adds nothing."""
        self._append("user", _text(text))

    def append_system_text(self, text: str) -> None:
        """Adds a system message. "" adds nothing."""
        self._append("system", _text(text))

    def build_messages(self) -> list[Message]:
        """All messages, with the open message at the end. The ledger itself does not change."""
        return [*self._messages, *_messages("assistant", self._assistant.parts())]

    def _append(self, role: Role, parts: list[Fields]) -> None:
        if parts:
            self.flush_assistant()
            self._messages.extend(_messages(role, parts))


class Draft(NamedTuple):
    """A message of a streamed ledger, without the tool results that follow later in the log."""

    role: Role
    parts: Sequence[Fields | Place]
    """A place among the parts refers to a tool result: the place of the event that carries it."""
    late: tuple[Place, ...] = ()
    """The places among `parts`, whose events `message` needs. Mostly there are none."""
    thinking: tuple[Place, ...] = ()
    """The places of the thinking in the message."""
    repeated: tuple[Place, ...] = ()
    """The places of calls that repeat the id of an earlier call in the message."""
    opaque: tuple[Place, ...] = ()
    """The places of the opaque parts, in their order."""
    origin: Fields = {}  # noqa: RUF012  # a shared default that nobody changes
    """`maker` and `next_request` of the message, if it has them."""
    place: Place = 0
    """The place of the first event of the message. Results have that of the message with the calls.
    """

    def message(self, events: Mapping[Place, LedgerEvent]) -> Message:
        """The message, given the event at each place in `late`. Raises `TypeError` if one of these
        events is not a tool result.
        """
        return _MESSAGE.validate_python(self.fields(events))

    def fields(self, events: Mapping[Place, LedgerEvent]) -> Fields:
        """The fields of `message` in the same order, for callers that only write JSON."""
        if not self.late:
            return {"role": self.role, "parts": self.parts, **self.origin}
        parts = [part if isinstance(part, dict) else _late_result(events[part]) for part in self.parts]
        return {"role": self.role, "parts": parts, **self.origin}


class LedgerStream:
    """The second pass over a log. It takes one event at a time and returns each message as soon as
    no further event can join it.

        stream = LedgerStream(planner.plan())              # made from the same events
        async for place, event in read():                  # expanded (`amendments`)
            for draft in stream.feed(place, event):        # after the last event: stream.finish()
                yield draft.message({late: await read_one(late) for late in draft.late})

    It holds one exchange: an assistant message and the results that arrived while the message was
    open. These events close the message:

    - a user or a system message, and the end of the log;
    - an event of the assistant with another `message_id`;
    - after a result for the message, an event of the assistant without the same `message_id`.

    So the result of a fast tool does not split a message whose events carry a `message_id`. Only
    the last rule applies to events without an id. A message takes its id from its first event with
    an id. If a result arrives after its message was closed, it is a late part of a draft and closes
    no other message. A result without an earlier call follows the results of the open message; if
    no message is open, it is a message of its own.
    """

    def __init__(self, plan: ResultPlan) -> None:
        self._plan = plan
        self._exchange: _Exchange | None = None

    def feed(self, place: Place, event: LedgerEvent) -> Sequence[Draft]:
        """Takes the next event of the log. Returns the messages that it closes, mostly none."""
        # Each case that does not match costs 0.1 us. The deltas of streams are most of a log, so
        # their case is the first.
        match event.data:
            case AssistantMessage() | Thinking() | ToolCall() | ProviderPart() as block:
                exchange, closed = self._exchange_for(place, event)
                exchange.add(place, block)
                return closed
            case ToolResult() as result:
                self._add_result(place, result)
                return ()
            case UserMessage() as message:
                return [*self.finish(), *_drafts(place, "user", _user_parts(message))]
            case SystemMessage() as instructions:
                return [*self.finish(), *_drafts(place, "system", _system_parts(instructions))]
            case (
                PlannerNote()
                | TokenUsage()
                | PhaseChanged()
                | PromptRendered()
                | PolicyDecided()
                | RunScored()
                | RunLabeled()
                | RunOpened()
                | RunStarted()
            ):
                return ()
            case ResponseRecorded() as response:
                if self._exchange:
                    self._exchange.end_response(event.message_id, response)
                return ()
            case RunPaused() | RunResumed() | RunCompleted() | RunFailed() | RunCanceled():
                return ()
            case EventAmended() | FrameworkEvent() | Summary():
                # The first two were expanded before the fold. Summaries are used by `fitting`.
                return ()
            case (
                StateChanged()
                | StateDeleted()
                | RunDeleted()
                | SubjectErased()
                | SessionCreated()
                | SessionUpdated()
                | SessionDeleted()
            ):
                return ()
            case MemoryChange() | GenerationRequested() | MemoriesGenerated() | BankFact():
                return ()
            case _:
                assert_never(event.data)

    def finish(self) -> Sequence[Draft]:
        """Closes the open message at the end of the log, and returns the last messages."""
        exchange, self._exchange = self._exchange, None
        return exchange.drafts(self._plan) if exchange else ()

    def _exchange_for(self, place: Place, event: LedgerEvent) -> "tuple[_Exchange, Sequence[Draft]]":
        """The exchange of an event of the assistant, and the messages that the event closes."""
        if self._exchange and self._exchange.takes(event.message_id):
            return self._exchange, ()
        closed = self.finish()
        self._exchange = _Exchange(place, event.message_id, provider=event.provider, maker=event.maker)
        return self._exchange, closed

    def _add_result(self, place: Place, result: ToolResult) -> None:
        if place in self._plan.orphans:
            self._exchange = self._exchange or _Exchange(place, None)
            self._exchange.add_orphan(result)
        elif self._exchange:
            self._exchange.add_result(place, result, self._plan)


class _Exchange:
    """An open assistant message, and the user message with its results."""

    __slots__ = (
        "_assistant",
        "_calls",
        "_has_result",
        "_message_id",
        "_opaque",
        "_origin",
        "_orphans",
        "_place",
        "_results",
        "_thinking",
    )

    def __init__(
        self,
        place: Place,
        message_id: str | None,
        *,
        provider: Provider | None = None,
        maker: str | None = None,
    ) -> None:
        self._place = place
        self._assistant = OpenMessage(provider)
        self._origin: Fields = {"maker": maker} if maker else {}
        self._message_id = message_id
        self._has_result = False
        # The places of the calls, by id. Results follow in the order of this dictionary, so in the
        # order of the first calls with each id.
        self._calls: dict[str, list[Place]] = {}
        self._results: dict[Place, Fields] = {}
        self._orphans: list[Fields] = []
        self._thinking: list[Place] = []
        self._opaque: list[Place] = []

    def takes(self, message_id: str | None) -> bool:
        """Whether an event of the assistant with this `message_id` belongs to the message. If so,
        the message takes over the id.
        """
        if message_id and self._message_id:
            return message_id == self._message_id
        if not self._has_result:
            self._message_id = self._message_id or message_id
        return not self._has_result

    def add(self, place: Place, block: AssistantMessage | Thinking | ToolCall | ProviderPart) -> None:
        match block:
            case AssistantMessage():
                self._assistant.add_text(block)
            case Thinking():
                if self._assistant.think(block):
                    self._thinking.append(place)
            case ProviderPart():
                if self._assistant.keep(block):
                    self._opaque.append(place)
            case ToolCall(tool_call_id=tool_id):
                self._assistant.call(
                    tool_id, block.tool_name, block.payload, block.provider_data, block.blobs
                )
                self._calls.setdefault(tool_id, []).append(place)
            case _:
                assert_never(block)

    def end_response(self, message_id: str | None, response: ResponseRecorded) -> None:
        """Takes what the next request needs from the end of the message's response."""
        if response.next_request is not None and message_id == self._message_id:
            self._origin["next_request"] = response.next_request

    def add_result(self, place: Place, result: ToolResult, plan: ResultPlan) -> None:
        calls = self._calls.get(result.tool_call_id)
        if not calls or not result.tool_call_id:
            return
        self._has_result = True
        # Only the result that counts is kept, so an exchange is no larger than its two messages.
        if plan.results.get(calls[-1]) == place:
            self._results[place] = _result(result)

    def add_orphan(self, result: ToolResult) -> None:
        self._has_result = True
        self._orphans.append(_result(result))

    def drafts(self, plan: ResultPlan) -> list[Draft]:
        parts = self._assistant.parts()
        repeated = tuple(call for calls in self._calls.values() for call in calls[1:])
        thinking, opaque = tuple(self._thinking), tuple(self._opaque)
        drafts = []
        if parts:
            drafts.append(
                Draft("assistant", parts, (), thinking, repeated, opaque, self._origin, self._place)
            )
        if not self._calls and not self._orphans:
            return drafts
        places = [
            plan.results[call] for calls in self._calls.values() for call in calls if call in plan.results
        ]
        results = [*(self._results.get(place, place) for place in places), *self._orphans]
        late = tuple(place for place in places if place not in self._results)
        return drafts + _drafts(self._place, "user", results, late)


def _user_parts(message: UserMessage) -> list[Fields]:
    return _text(message.message) if message.parts is None else [part.model_dump() for part in message.parts]


def _system_parts(message: SystemMessage) -> list[Fields]:
    return [with_data(part, message.provider_data) for part in _text(message.message)]


def _text(text: str) -> list[Fields]:
    return [{"type": "text", "text": text}] if text else []


def _result(result: ToolResult) -> Fields:
    content, failed = result.result, result.error is not None
    if failed:
        content = {"error": result.error} if content is None else {"result": content, "error": result.error}
    part = {"type": "tool_result", "tool_use_id": result.tool_call_id, "content": content, "is_error": failed}
    if result.attachments:
        part["attachments"] = [attachment.model_dump() for attachment in result.attachments]
    return with_blobs(with_data(part, result.provider_data), result.blobs)


def _late_result(event: LedgerEvent) -> Fields:
    if not isinstance(event.data, ToolResult):
        raise TypeError(f"the ledger needs a tool_result, and the event at its place is a {event.type}")
    return _result(event.data)


def _drafts(
    place: Place, role: Role, parts: Sequence[Fields | Place], late: tuple[Place, ...] = ()
) -> list[Draft]:
    return [Draft(role, parts, late, place=place)] if parts else []


def _messages(role: Role, parts: list[Fields]) -> list[Message]:
    return [_MESSAGE.validate_python({"role": role, "parts": parts})] if parts else []
