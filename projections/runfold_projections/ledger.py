"""The ledger: the messages to hand back to a model provider, exactly as they were.

Three ways lead to it, all through the same open assistant message (`_Assistant`):

- `Ledger`, written by hand, one part after another, as in Goa-AI;
- `build_messages_from_events`, for a log that fits into memory;
- `LedgerStream`, for one that does not, after a first pass over the log (`exchanges`).

Where parts and messages go is in ARCHITECTURE.md (The ledger). Values inside parts (a call's input,
a result's content) are those that came in, shared and not copied: nobody changes them. Parts are
kept as their fields until their message is built, because pydantic makes a message with all its
parts in one call in half the time of a call for each.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, assert_never

from pydantic import TypeAdapter

from runfold_projections.amendments import Place, expand_log
from runfold_projections.exchanges import ResultPlan, plan_results
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    EventAmended,
    PlannerNote,
    ProviderPart,
    ResponseRecorded,
    SystemMessage,
    Thinking,
    TokenUsage,
    ToolCall,
    ToolResult,
    UserMessage,
)
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
    SessionCreated,
    SessionDeleted,
    SessionUpdated,
    StateChanged,
)

Fields = dict[str, Any]
"""A part or a message that is not built yet."""

_MESSAGE: Final[TypeAdapter[Message]] = TypeAdapter(Message)


def build_messages_from_events(events: Iterable[AnyEvent]) -> list[Message]:
    """The ledger of a run's events, given in the order of their log. Any prefix of a log has one.

    An amendment names an offset: where the log has gaps, `build_messages_from_log` knows what it
    means.
    """
    return build_messages_from_log(enumerate(events))


def build_messages_from_log(log: Iterable[tuple[int, AnyEvent]]) -> list[Message]:
    """The ledger of a log of `(offset, event)` pairs."""
    standing = expand_log(list(log))
    stream = LedgerStream(plan_results(standing))
    drafts = [draft for place, event in standing for draft in stream.feed(place, event)]
    drafts.extend(stream.finish())
    by_place = dict(standing) if any(draft.late for draft in drafts) else {}
    return [draft.message(by_place) for draft in drafts]


class Ledger:
    """Messages written part by part. What the assistant says gathers in one open message until it
    is flushed.

    The operations and what they leave out are those of Goa-AI 0.38.0's ledger. Two things are ours:
    results and the user's or the system's text flush the assistant first, and the latter two exist.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._assistant = _Assistant()

    def append_thinking(
        self,
        text: str = "",
        signature: str = "",
        redacted: str | None = None,
        index: int = 0,
        final: bool = False,
    ) -> None:
        """Adds a block of thinking at the head of the assistant message, behind those already
        there.

        A block with `redacted` (base64) loses text and signature. Without it, one that lacks text
        or signature is left out, because no provider takes back what it did not sign. Raises
        pydantic's `ValidationError` if it is no base64.
        """
        self._assistant.think(
            Thinking(text=text, signature=signature, redacted=redacted, content_index=index, final=final)
        )

    def append_text(self, text: str) -> None:
        """Adds to what the assistant says: to the text before if nothing is between, else a new
        part. "" adds nothing.
        """
        self._assistant.say(text)

    def declare_tool_use(self, id: str, name: str, args: Any) -> None:  # noqa: A002  # the part's own word, as upstream
        """Adds the assistant's call of a tool. `args` is any JSON."""
        self._assistant.call(id, name, args)

    def flush_assistant(self) -> None:
        """Ends the open assistant message. One without parts leaves no trace."""
        self._messages.extend(_messages("assistant", self._assistant.parts()))
        self._assistant = _Assistant()

    def append_user_tool_results(self, results: Iterable[ToolResultPart | Mapping[str, Any]]) -> None:
        """Adds a user message with these results in this order, given as parts or as their fields.

        Results without an id are left out; if none is left, nothing happens, and the assistant
        message stays open. Raises pydantic's `ValidationError` for fields that are no result.
        """
        parts = [ToolResultPart.model_validate(result) for result in results]
        self._append("user", [dict(part) for part in parts if part.tool_use_id])

    def append_user_text(self, text: str) -> None:
        """Adds a user message, also where the message before is the user's. "" adds nothing."""
        self._append("user", _text(text))

    def append_system_text(self, text: str) -> None:
        """Adds a system message. "" adds nothing."""
        self._append("system", _text(text))

    def build_messages(self) -> list[Message]:
        """All messages, the open one at the end. Changes nothing, so building twice gives the
        same.
        """
        return [*self._messages, *_messages("assistant", self._assistant.parts())]

    def _append(self, role: Role, parts: list[Fields]) -> None:
        if parts:
            self.flush_assistant()
            self._messages.extend(_messages(role, parts))


class Draft(NamedTuple):
    """A message of a streamed ledger, complete but for tool results that lie further on in the
    log.
    """

    role: Role
    parts: Sequence[Fields | Place]
    """A place stands for a tool result: it is that of the event that carries it."""
    late: tuple[Place, ...] = ()
    """The places among `parts`: what to read before `message`. Mostly none."""
    thinking: tuple[Place, ...] = ()
    """The places of the thinking in it."""
    repeated: tuple[Place, ...] = ()
    """The places of calls in it whose id an earlier call of it has."""

    def message(self, events: Mapping[Place, AnyEvent]) -> Message:
        """The message, given the event at each place in `late`. Raises `TypeError` if one is no
        tool result.
        """
        return _MESSAGE.validate_python(self.fields(events))

    def fields(self, events: Mapping[Place, AnyEvent]) -> Fields:
        """The fields of `message`, all of them and in their order, so that both are the same JSON;
        for who only writes that.
        """
        if not self.late:
            return {"role": self.role, "parts": self.parts}
        parts = [part if isinstance(part, dict) else _late_result(events[part]) for part in self.parts]
        return {"role": self.role, "parts": parts}


class LedgerStream:
    """The second pass over a log: events go in one at a time, and messages come out as soon as
    nothing can join them.

        stream = LedgerStream(planner.plan())              # made from the same events
        async for place, event in read():                  # as they stand (`amendments`)
            for draft in stream.feed(place, event):        # and after the last event: stream.finish()
                yield draft.message({late: await read_one(late) for late in draft.late})

    It holds one exchange: an assistant message and the results that came while it was open. What
    closes the message:

    - a user or a system message, and the end of the log;
    - an event of the assistant with another `message_id`;
    - after a result for it, an event of the assistant that has not the same `message_id`.

    So the result of a fast tool does not part a message whose events carry their id. An event
    without an id goes by the last rule alone, and a message without one takes that of the first
    event that has it. A result that comes after its message was closed is a late part of a draft,
    and ends no other message. A result without an earlier call stands behind the results of the
    message that is open, or alone.
    """

    def __init__(self, plan: ResultPlan) -> None:
        self._plan = plan
        self._exchange: _Exchange | None = None

    def feed(self, place: Place, event: AnyEvent) -> Sequence[Draft]:
        """Takes the next event of the log and gives the messages, mostly none, that it closes, in
        their order.
        """
        # Each case that does not match costs 0.1 us, and a stream's deltas are most of a log: they
        # come first.
        match event.data:
            case AssistantMessage() | Thinking() | ToolCall() | ProviderPart() as said:
                exchange, closed = self._turn_to(event)
                exchange.add(place, said)
                return closed
            case ToolResult() as result:
                self._answer(place, result)
                return ()
            case UserMessage() as asked:
                return [*self.finish(), *_drafts("user", _asked(asked))]
            case SystemMessage(message=text):
                return [*self.finish(), *_drafts("system", _text(text))]
            case PlannerNote() | TokenUsage() | PhaseChanged() | RunLabeled() | RunOpened() | RunStarted():
                return ()
            case ResponseRecorded() | EventAmended():
                # An amendment has done its work before the fold.
                return ()
            case RunPaused() | RunResumed() | RunCompleted() | RunFailed() | RunCanceled():
                return ()
            case FrameworkEvent():
                # What it says stands in its place before the fold, as with an amendment.
                return ()
            case StateChanged() | SessionCreated() | SessionUpdated() | SessionDeleted():
                return ()
            case MemoryChange() | GenerationRequested() | MemoriesGenerated() | BankFact():
                return ()
            case _:
                assert_never(event.data)

    def finish(self) -> Sequence[Draft]:
        """Closes the open message, as the end of the log does, and gives what is left."""
        exchange, self._exchange = self._exchange, None
        return exchange.drafts(self._plan) if exchange else ()

    def _turn_to(self, event: AnyEvent) -> "tuple[_Exchange, Sequence[Draft]]":
        """The exchange that an event of the assistant belongs to, and the messages that this
        closes.
        """
        if self._exchange and self._exchange.takes(event.message_id):
            return self._exchange, ()
        closed = self.finish()
        self._exchange = _Exchange(event.message_id, provider=event.provider)
        return self._exchange, closed

    def _answer(self, place: Place, result: ToolResult) -> None:
        if place in self._plan.orphans:
            self._exchange = self._exchange or _Exchange(None)
            self._exchange.answer_nothing(result)
        elif self._exchange:
            self._exchange.answer(place, result, self._plan)


class _Exchange:
    """An assistant message that is still open, and the user message of its results."""

    __slots__ = ("_answers", "_assistant", "_calls", "_interrupted", "_message_id", "_orphans", "_thinking")

    def __init__(self, message_id: str | None, *, provider: Provider | None = None) -> None:
        self._assistant = _Assistant(provider)
        self._message_id = message_id
        self._interrupted = False
        # Places of calls by id, each id at its first call's place: results follow in the order of
        # this dictionary.
        self._calls: dict[str, list[Place]] = {}
        self._answers: dict[Place, Fields] = {}
        self._orphans: list[Fields] = []
        self._thinking: list[Place] = []

    def takes(self, message_id: str | None) -> bool:
        """Whether an event of the assistant with this `message_id` is part of the message, whose id
        it then is.
        """
        if message_id and self._message_id:
            return message_id == self._message_id
        if not self._interrupted:
            self._message_id = self._message_id or message_id
        return not self._interrupted

    def add(self, place: Place, said: AssistantMessage | Thinking | ToolCall | ProviderPart) -> None:
        match said:
            case AssistantMessage(message=text):
                self._assistant.say(text, said.content_index, said.provider_data)
            case Thinking():
                if self._assistant.think(said):
                    self._thinking.append(place)
            case ProviderPart():
                self._assistant.keep(said)
            case ToolCall(tool_call_id=tool_id):
                self._assistant.call(tool_id, said.tool_name, said.payload, said.provider_data)
                self._calls.setdefault(tool_id, []).append(place)
            case _:
                assert_never(said)

    def answer(self, place: Place, result: ToolResult, plan: ResultPlan) -> None:
        calls = self._calls.get(result.tool_call_id)
        if not calls or not result.tool_call_id:
            return
        self._interrupted = True
        # Only the result that counts is kept, so an exchange is no larger than its two messages.
        if plan.results.get(calls[-1]) == place:
            self._answers[place] = _result(result)

    def answer_nothing(self, result: ToolResult) -> None:
        self._interrupted = True
        self._orphans.append(_result(result))

    def drafts(self, plan: ResultPlan) -> list[Draft]:
        parts = self._assistant.parts()
        repeated = tuple(call for calls in self._calls.values() for call in calls[1:])
        said = [Draft("assistant", parts, (), tuple(self._thinking), repeated)] if parts else []
        if not self._calls and not self._orphans:
            return said
        answers = [
            plan.results[call] for calls in self._calls.values() for call in calls if call in plan.results
        ]
        results = [*(self._answers.get(answer, answer) for answer in answers), *self._orphans]
        late = tuple(answer for answer in answers if answer not in self._answers)
        return said + _drafts("user", results, late)


class _Assistant:
    """The parts of an assistant message, as they gather. With a provider, they keep that provider's
    order.
    """

    __slots__ = ("_parts", "_provider", "_text", "_text_data", "_text_index", "_thinking")

    def __init__(self, provider: Provider | None = None) -> None:
        self._provider = provider
        self._thinking: list[Fields] = []
        self._parts: list[Fields] = []
        # The pieces of the last text, joined once: appending piece by piece would copy a long
        # stream over and over.
        self._text: list[str] = []
        self._text_index: int | None = None
        self._text_data: Mapping[str, Any] | None = None

    def think(self, thinking: Thinking) -> bool:
        """Whether the thinking is part of the message: nobody takes back what nobody signed."""
        kept = thinking.redacted or (thinking.signature and (thinking.text or self._provider))
        if not kept and thinking.provider_data is None:
            return False
        part = {
            "type": "thinking",
            "text": "" if thinking.redacted else thinking.text,
            "signature": "" if thinking.redacted else thinking.signature,
            "redacted": thinking.redacted or None,
            "index": thinking.content_index,
            "final": thinking.final,
        }
        if self._provider:
            self._end_text()
            self._parts.append(_with(part, thinking.provider_data))
        else:
            self._thinking.append(_with(part, thinking.provider_data))
        return True

    def say(
        self, text: str, index: int | None = None, provider_data: Mapping[str, Any] | None = None
    ) -> None:
        if not text and provider_data is None:
            return
        if index != self._text_index:
            self._end_text()
            self._text_index = index
        self._text.append(text)
        if provider_data is not None:
            self._text_data = {**(self._text_data or {}), **provider_data}

    def call(
        self, tool_id: str, name: str, args: Any, provider_data: Mapping[str, Any] | None = None
    ) -> None:
        self._end_text()
        self._parts.append(
            _with({"type": "tool_use", "id": tool_id, "name": name, "input": args}, provider_data)
        )

    def keep(self, block: ProviderPart) -> None:
        if block.finished and self._provider:
            self._end_text()
            self._parts.append({"type": "opaque", "provider": self._provider, "content": block.content})

    def parts(self) -> list[Fields]:
        return self._thinking + self._parts + self._open_text()

    def _end_text(self) -> None:
        self._parts += self._open_text()
        self._text.clear()
        self._text_data = None

    def _open_text(self) -> list[Fields]:
        text = "".join(self._text)
        if not text and self._text_data is None:
            return []
        return [_with({"type": "text", "text": text}, self._text_data)]


def _with(part: Fields, provider_data: Mapping[str, Any] | None) -> Fields:
    return part if provider_data is None else {**part, "provider_data": provider_data}


def _asked(asked: UserMessage) -> list[Fields]:
    return _text(asked.message) if asked.parts is None else [part.model_dump() for part in asked.parts]


def _text(text: str) -> list[Fields]:
    return [{"type": "text", "text": text}] if text else []


def _result(result: ToolResult) -> Fields:
    content, failed = result.result, result.error is not None
    if failed:
        content = {"error": result.error} if content is None else {"result": content, "error": result.error}
    part = {"type": "tool_result", "tool_use_id": result.tool_call_id, "content": content, "is_error": failed}
    if result.attachments:
        part["attachments"] = [attachment.model_dump() for attachment in result.attachments]
    return part


def _late_result(event: AnyEvent) -> Fields:
    if not isinstance(event.data, ToolResult):
        raise TypeError(
            f"event {event.event_id} is a {event.type}, the ledger needs the tool_result at its place"
        )
    return _result(event.data)


def _drafts(role: Role, parts: Sequence[Fields | Place], late: tuple[Place, ...] = ()) -> list[Draft]:
    return [Draft(role, parts, late)] if parts else []


def _messages(role: Role, parts: list[Fields]) -> list[Message]:
    return [_MESSAGE.validate_python({"role": role, "parts": parts})] if parts else []
