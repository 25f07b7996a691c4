"""The ledger: the messages to hand back to a model provider, exactly as they were.

Three ways lead to it, all through the same open assistant message (`_Assistant`):

- `Ledger`, written by hand, one part after another, as in Goa-AI;
- `build_messages_from_events`, for a log that fits into memory;
- `LedgerStream`, for one that does not, after a first pass over the log (`exchanges`).

Where parts and messages go is DESIGN, section 6. Values inside parts (a call's input, a result's content) are those that
came in, shared and not copied: nobody changes them. Parts and messages are made the validating way throughout, because
pydantic's `model_construct` takes twice as long.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, assert_never

from runfold_projections.exchanges import ResultPlan, plan_results
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    PhaseChanged,
    PlannerNote,
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
from runfold_schemas.messages import Message, Part, Role, TextPart, ThinkingPart, ToolResultPart, ToolUsePart


def build_messages_from_events(events: Iterable[AnyEvent]) -> list[Message]:
    """The ledger of a run's events, given in the order of their log. Any prefix of a log has one."""
    log = list(events)
    stream = LedgerStream(plan_results(enumerate(log)))
    drafts = [draft for offset, event in enumerate(log) for draft in stream.feed(offset, event)]
    drafts.extend(stream.finish())
    return [draft.message({offset: log[offset] for offset in draft.late}) for draft in drafts]


class Ledger:
    """Messages written part by part. What the assistant says gathers in one open message until it is flushed.

    The operations and what they leave out are those of Goa-AI 0.38.0's ledger. Two things are ours: results and the
    user's or the system's text flush the assistant first, and the latter two exist.
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
        """Adds a block of thinking at the head of the assistant message, behind those already there.

        A block with `redacted` (base64) loses text and signature. Without it, one that lacks text or signature is left
        out, because no provider takes back what it did not sign. Raises pydantic's `ValidationError` if it is no base64.
        """
        self._assistant.think(
            Thinking(text=text, signature=signature, redacted=redacted, content_index=index, final=final)
        )

    def append_text(self, text: str) -> None:
        """Adds to what the assistant says: to the text before if nothing is between, else a new part. "" adds nothing."""
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

        Results without an id are left out; if none is left, nothing happens, and the assistant message stays open. Raises
        pydantic's `ValidationError` for fields that are no result.
        """
        parts = [ToolResultPart.model_validate(result) for result in results]
        self._append("user", tuple(part for part in parts if part.tool_use_id))

    def append_user_text(self, text: str) -> None:
        """Adds a user message, also where the message before is the user's. "" adds nothing."""
        self._append("user", _text(text))

    def append_system_text(self, text: str) -> None:
        """Adds a system message. "" adds nothing."""
        self._append("system", _text(text))

    def build_messages(self) -> list[Message]:
        """All messages, the open one at the end. Changes nothing, so building twice gives the same."""
        return [*self._messages, *_messages("assistant", self._assistant.parts())]

    def _append(self, role: Role, parts: tuple[Part, ...]) -> None:
        if parts:
            self.flush_assistant()
            self._messages.extend(_messages(role, parts))


class Draft(NamedTuple):
    """A message of a streamed ledger, complete but for tool results that lie further on in the log."""

    role: Role
    parts: tuple[Part | int, ...]
    """An int stands for a tool result: it is the offset of the event that carries it."""
    late: tuple[int, ...] = ()
    """The ints among `parts`: what to read before `message`. Mostly none."""

    def message(self, events: Mapping[int, AnyEvent]) -> Message:
        """The message, given the event at each offset in `late`. Raises `TypeError` if one is no tool result."""
        if not self.late:
            return Message(role=self.role, parts=self.parts)
        parts = tuple(_late_result(events[part]) if isinstance(part, int) else part for part in self.parts)
        return Message(role=self.role, parts=parts)


class LedgerStream:
    """The second pass over a log: events go in one at a time, and messages come out as soon as nothing can join them.

        stream = LedgerStream(planner.plan())              # made from the same events
        async for offset, event in read():
            for draft in stream.feed(offset, event):       # and after the last event: stream.finish()
                yield draft.message({late: await read_one(late) for late in draft.late})

    It holds one exchange: an assistant message and the results that came while it was open. What closes the message:

    - a user or a system message, and the end of the log;
    - an event of the assistant with another `message_id`;
    - after a result for it, an event of the assistant that has not the same `message_id`.

    So the result of a fast tool does not part a message whose events carry their id. An event without an id goes by the
    last rule alone, and a message without one takes that of the first event that has it. A result that comes after its
    message was closed is a late part of a draft, and ends no other message. A result without an earlier call stands
    behind the results of the message that is open, or alone.
    """

    def __init__(self, plan: ResultPlan) -> None:
        self._plan = plan
        self._exchange = _Exchange()

    def feed(self, offset: int, event: AnyEvent) -> tuple[Draft, ...]:
        """Takes the next event of the log and gives the messages, mostly none, that it closes, in their order."""
        # Each case that does not match costs 0.1 us, and a stream's deltas are most of a log: they come first.
        match event.data:
            case AssistantMessage(message=text):
                closed = self._turn_to(event.message_id)
                self._exchange.assistant.say(text)
                return closed
            case Thinking() as thinking:
                closed = self._turn_to(event.message_id)
                self._exchange.assistant.think(thinking)
                return closed
            case ToolCall() as call:
                closed = self._turn_to(event.message_id)
                self._exchange.call(offset, call)
                return closed
            case ToolResult() as result:
                self._exchange.answer(offset, result, self._plan)
                return ()
            case UserMessage(message=text):
                return (*self.finish(), *_drafts("user", _text(text)))
            case SystemMessage(message=text):
                return (*self.finish(), *_drafts("system", _text(text)))
            case (
                PlannerNote()
                | TokenUsage()
                | PhaseChanged()
                | RunOpened()
                | RunStarted()
                | RunPaused()
                | RunResumed()
            ):
                return ()
            case RunCompleted() | RunFailed() | RunCanceled() | RunLabeled():
                return ()
            case _:
                assert_never(event.data)

    def finish(self) -> tuple[Draft, ...]:
        """Closes the open message, as the end of the log does, and gives what is left."""
        drafts = self._exchange.drafts(self._plan)
        self._exchange = _Exchange()
        return drafts

    def _turn_to(self, message_id: str | None) -> tuple[Draft, ...]:
        """Sees to it that the open message is the one that an event of the assistant belongs to."""
        closed = () if self._exchange.takes(message_id) else self.finish()
        self._exchange.message_id = self._exchange.message_id or message_id
        return closed


class _Exchange:
    """An assistant message that is still open, and the user message of its results."""

    __slots__ = ("_answers", "_calls", "_interrupted", "_orphans", "assistant", "message_id")

    def __init__(self) -> None:
        self.message_id: str | None = None
        self.assistant = _Assistant()
        self._interrupted = False
        # Offsets of calls by id, each id at its first call's place: results follow in the order of this dictionary.
        self._calls: dict[str, list[int]] = {}
        self._answers: dict[int, ToolResultPart] = {}
        self._orphans: list[ToolResultPart] = []

    def takes(self, message_id: str | None) -> bool:
        """Whether an event of the assistant with this `message_id` is part of the message."""
        if message_id and self.message_id:
            return message_id == self.message_id
        return not self._interrupted

    def call(self, offset: int, call: ToolCall) -> None:
        self.assistant.call(call.tool_call_id, call.tool_name, call.payload)
        self._calls.setdefault(call.tool_call_id, []).append(offset)

    def answer(self, offset: int, result: ToolResult, plan: ResultPlan) -> None:
        if offset in plan.orphans:
            self._orphans.append(_result_part(result))
            self._interrupted = True
        elif result.tool_call_id and result.tool_call_id in self._calls:
            # Only the result that counts is kept, so an exchange is no larger than its two messages.
            if plan.results.get(self._calls[result.tool_call_id][-1]) == offset:
                self._answers[offset] = _result_part(result)
            self._interrupted = True

    def drafts(self, plan: ResultPlan) -> tuple[Draft, ...]:
        said = self.assistant.parts()
        if not self._calls and not self._orphans:
            return _drafts("assistant", said)
        answers = [
            plan.results[call] for calls in self._calls.values() for call in calls if call in plan.results
        ]
        results = (*[self._answers.get(answer, answer) for answer in answers], *self._orphans)
        late = tuple(answer for answer in answers if answer not in self._answers)
        return (*_drafts("assistant", said), *_drafts("user", results, late))


class _Assistant:
    """The parts of an assistant message, as they gather."""

    __slots__ = ("_parts", "_text", "_thinking")

    def __init__(self) -> None:
        self._thinking: list[ThinkingPart] = []
        self._parts: list[TextPart | ToolUsePart] = []
        # The pieces of the last text, joined once: appending piece by piece would copy a long stream over and over.
        self._text: list[str] = []

    def think(self, thinking: Thinking) -> None:
        index, final = thinking.content_index, thinking.final
        if thinking.redacted:
            self._thinking.append(ThinkingPart(redacted=thinking.redacted, index=index, final=final))
        elif thinking.text and thinking.signature:
            self._thinking.append(
                ThinkingPart(text=thinking.text, signature=thinking.signature, index=index, final=final)
            )

    def say(self, text: str) -> None:
        if text:
            self._text.append(text)

    def call(self, tool_id: str, name: str, args: Any) -> None:
        if self._text:
            self._parts.append(TextPart(text="".join(self._text)))
            self._text.clear()
        self._parts.append(ToolUsePart(id=tool_id, name=name, input=args))

    def parts(self) -> tuple[ThinkingPart | TextPart | ToolUsePart, ...]:
        return (*self._thinking, *self._parts, *_text("".join(self._text)))


def _text(text: str) -> tuple[TextPart, ...]:
    return (TextPart(text=text),) if text else ()


def _messages(role: Role, parts: tuple[Part, ...]) -> tuple[Message, ...]:
    return (Message(role=role, parts=parts),) if parts else ()


def _drafts(role: Role, parts: tuple[Part | int, ...], late: tuple[int, ...] = ()) -> tuple[Draft, ...]:
    return (Draft(role, parts, late),) if parts else ()


def _late_result(event: AnyEvent) -> ToolResultPart:
    if not isinstance(event.data, ToolResult):
        raise TypeError(
            f"event {event.event_id} is a {event.type}, the ledger needs the tool_result at its offset"
        )
    return _result_part(event.data)


def _result_part(result: ToolResult) -> ToolResultPart:
    content, failed = result.result, result.error is not None
    if failed:
        content = {"error": result.error} if content is None else {"result": content, "error": result.error}
    return ToolResultPart(tool_use_id=result.tool_call_id, content=content, is_error=failed)
