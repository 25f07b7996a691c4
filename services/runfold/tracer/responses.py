"""The spans of the responses of models in one run."""

from datetime import datetime
from typing import Final

from runfold.prices import PriceTable
from runfold.tracer import conventions as names
from runfold.tracer.contents import Part, messages_json, part_of
from runfold.tracer.trace_span import TraceSpan, span_id_of
from runfold_projections.admission import Admitted
from runfold_projections.usage import NO_USAGE, fold_usage, tokens_of
from runfold_schemas.codec import Record
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    ProviderPart,
    ResponseRecorded,
    Thinking,
    ToolCall,
)
from runfold_schemas.usage import TokenUsage

_OF_RESPONSES: Final = (AssistantMessage, Thinking, ToolCall, ProviderPart, ResponseRecorded, TokenUsage)

_NO_RECORD: Final = Record(0, 0, None, (), b"")


class Responses:
    """A response has the events of one `message_id`. Without message ids, it has the events of the
    model that follow each other.
    """

    def __init__(self, log_id: str, *, prices: PriceTable | None, with_contents: bool) -> None:
        self._log_id: Final = log_id
        self._prices: Final = prices
        self._with_contents: Final = with_contents
        self._by_message: dict[str, TraceSpan] = {}
        self._all: list[TraceSpan] = []
        self._parts: dict[str, list[tuple[str, Part]]] = {}
        """The parts of each response, by the id of its span."""
        self._inputs: list[tuple[str, Part]] = []
        """What came since the last response."""
        self._current: TraceSpan | None = None

    def __len__(self) -> int:
        return len(self._all)

    def spans(self) -> list[TraceSpan]:
        if self._with_contents:
            for span in self._all:
                reasons = span.attributes.get(names.FINISH_REASONS)
                reason = reasons[0] if isinstance(reasons, tuple) else None
                parts = self._parts[span.span_id]
                span.attributes[names.OUTPUT_MESSAGES] = messages_json(parts, finish_reason=reason)
        return self._all

    def take(
        self,
        parent: TraceSpan,
        event: AnyEvent,
        offset: int,
        what: tuple[str, str],
        *,
        began: datetime,
        common: dict[str, str],
    ) -> None:
        """Takes an event of the run. `began` is the time of the event before it."""
        if not isinstance(event.data, _OF_RESPONSES):
            self._take_input(event)
            return
        span = self._span_of(event)
        if span is None:
            span = self._begin(parent, event, offset, what, began=began, common=common)
        span.extend(event.timestamp, offset)
        if event.message_id is not None:
            self._by_message[event.message_id] = span
        self._current = span
        self._describe(span, event)

    def _take_input(self, event: AnyEvent) -> None:
        if (part := part_of(event.data)) is not None:
            # A result or a message ends what the model said before.
            self._current = None
            if self._with_contents:
                self._inputs.append(part)

    def _span_of(self, event: AnyEvent) -> TraceSpan | None:
        if event.message_id is not None and event.message_id in self._by_message:
            return self._by_message[event.message_id]
        if event.message_id is None or isinstance(event.data, TokenUsage):
            # Many programs publish the tokens last, after the results.
            return self._current or (
                self._all[-1] if isinstance(event.data, TokenUsage) and self._all else None
            )
        return None

    def _begin(
        self,
        parent: TraceSpan,
        event: AnyEvent,
        offset: int,
        what: tuple[str, str],
        *,
        began: datetime,
        common: dict[str, str],
    ) -> TraceSpan:
        start = min(began, event.timestamp)
        span_id = span_id_of(self._log_id, "chat", *what)
        span = TraceSpan(
            "chat", "chat", span_id, parent.span_id, start, event.timestamp, offset, offset, {**common}
        )
        self._all.append(span)
        if self._with_contents:
            self._parts[span_id] = []
            if self._inputs:
                span.attributes[names.INPUT_MESSAGES] = messages_json(self._inputs)
                self._inputs.clear()
        return span

    def _describe(self, span: TraceSpan, event: AnyEvent) -> None:
        attributes = span.attributes
        if event.provider is not None:
            attributes[names.PROVIDER] = names.PROVIDERS[event.provider]
        match event.data:
            case TokenUsage():
                self._add_tokens(span, event, event.data)
            case ResponseRecorded():
                _set_model(span, event.data.model)
                if event.data.response_id:
                    attributes[names.RESPONSE_ID] = event.data.response_id
                if event.data.stop_reason:
                    attributes[names.FINISH_REASONS] = (event.data.stop_reason,)
                if not event.data.finished:
                    span.error = "incomplete"
            case _:
                part = part_of(event.data) if self._with_contents else None
                if part is not None:
                    self._parts[span.span_id].append(part)

    def _add_tokens(self, span: TraceSpan, event: AnyEvent, usage: TokenUsage) -> None:
        _set_model(span, usage.model)
        tokens = tokens_of(event, usage)
        for name, count in (
            (names.INPUT_TOKENS, tokens.input_tokens),
            (names.OUTPUT_TOKENS, tokens.output_tokens),
            (names.CACHE_READ_TOKENS, tokens.cache_read_tokens),
            (names.CACHE_CREATION_TOKENS, tokens.cache_write_tokens),
            (names.REASONING_TOKENS, tokens.reasoning_tokens),
        ):
            if count or name in (names.INPUT_TOKENS, names.OUTPUT_TOKENS):
                before = span.attributes.get(name, 0)
                span.attributes[name] = count + (before if isinstance(before, int) else 0)
        if self._prices is not None:
            rows = fold_usage(NO_USAGE, [Admitted(_NO_RECORD, "accepted", event)]).models
            if (amount := self._prices.cost(rows).amount) is not None:
                before = span.attributes.get(names.COST, 0.0)
                span.attributes[names.COST] = float(amount) + (before if isinstance(before, float) else 0.0)


def _set_model(span: TraceSpan, model: str | None) -> None:
    if model:
        span.name = f"chat {model}"
        span.attributes[names.REQUEST_MODEL] = span.attributes[names.RESPONSE_MODEL] = model
