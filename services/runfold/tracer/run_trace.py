"""The trace of a run, made of its log in order.

    invoke_agent               the run
    ├── invoke_agent           each turn, if the run has turns
    │   ├── chat               each response of a model
    │   └── execute_tool       each call of a tool, from the call to its result
    └── ...

A response begins after what was before it in its turn, because the log has no event for a request.
Everything here follows from the log, so exporting a run again gives equal spans.
"""

from datetime import UTC, datetime
from typing import Final

from runfold.prices import PriceTable
from runfold.telemetry.request_context import ids_of, valid_traceparent
from runfold.tracer import conventions as names
from runfold.tracer.contents import messages_json, text_part, value_json
from runfold.tracer.responses import Responses
from runfold.tracer.trace_span import Kind, TraceSpan, span_id_of, trace_id_of
from runfold_projections.admission import Admitted
from runfold_projections.frameworks import expand
from runfold_schemas.catalog import Life
from runfold_schemas.events import AnyEvent, ToolCall, ToolResult, UserMessage
from runfold_schemas.runs import ENDINGS, RunFailed, RunLabeled, RunOpened

TRACEPARENT: Final = "traceparent"

SPANS_MAX: Final = 10_000
"""The number of spans of a run beside its own. They wait in memory until the log is read."""


class RunTrace:
    """Takes the records of a run's log. `with_contents` adds what was said and what tools were
    given.
    """

    def __init__(self, life: Life, *, prices: PriceTable | None = None, with_contents: bool = False) -> None:
        self._life: Final = life
        self._with_contents: Final = with_contents
        self.trace_id = trace_id_of(life.log_id)
        self.ended = False
        self.next_offset = 0
        self._root: TraceSpan | None = None
        self._turns: dict[str, TraceSpan] = {}
        self._turn: TraceSpan | None = None
        self._tools: dict[str, TraceSpan] = {}
        """By the id of the call. A later call of the same id takes the place of the earlier one."""
        self._finished: list[TraceSpan] = []
        self._responses = Responses(life.log_id, prices=prices, with_contents=with_contents)
        self._before: datetime | None = None
        """The time of the event before."""
        self._copies_end = 0
        """The offset after the copies of a fork, whose spans are in the trace of its source."""
        self.last_log_time: datetime | None = None
        """When the last record was appended."""

    def take(self, admitted: Admitted) -> None:
        """Takes the next record of the log."""
        offset = admitted.record.offset
        self.next_offset = offset + 1
        self.last_log_time = datetime.fromtimestamp(admitted.record.log_time / 1_000, UTC)
        event = admitted.event
        if event is None or not admitted.counts:
            return
        traceparent = _traceparent_of(admitted)
        if offset < self._copies_end:
            return
        root = self._root or self._begin(event, offset, traceparent)
        root.extend(event.timestamp, offset)
        self._take_life(root, event)
        if isinstance(event.data, RunOpened) and event.data.forked_from is not None:
            self._copies_end = offset + 1 + event.data.forked_from.events
            root.attributes[names.FORKED_FROM] = event.data.forked_from.run_id
        for index, each in enumerate(expand(event)):
            if self._is_full(root):
                if isinstance(each.data, ToolResult):
                    self._end_tool(each.data, event.timestamp, offset)
                continue
            parent = self._enter_turn(root, each, offset, traceparent)
            self._take_event(parent, each, offset, (event.event_id, str(index)))
        self._before = event.timestamp

    def spans(self) -> list[TraceSpan]:
        """The spans of the log so far. A call without a result has a span if the run has ended."""
        if self._root is None:
            return []
        open_tools = list(self._tools.values()) if self.ended else []
        for span in open_tools:
            span.end, span.error = max(span.start, self._root.end), "no_result"
        turns = [*self._turns.values()] if self._turns else []
        return [self._root, *turns, *self._responses.spans(), *self._finished, *open_tools]

    def _is_full(self, root: TraceSpan) -> bool:
        count = len(self._turns) + len(self._tools) + len(self._finished) + len(self._responses)
        if count < SPANS_MAX:
            return False
        root.attributes[names.TRUNCATED] = True
        return True

    def _begin(self, event: AnyEvent, offset: int, traceparent: str | None) -> TraceSpan:
        parent_id = None
        if traceparent is not None:
            self.trace_id, parent_id = ids_of(traceparent)
        self._root = self._agent_span(("run",), parent_id, event.timestamp, offset)
        return self._root

    def _agent_span(
        self, what: tuple[str, ...], parent_id: str | None, time: datetime, offset: int
    ) -> TraceSpan:
        life = self._life
        attributes = {
            **self._common("invoke_agent"),
            names.AGENT_ID: life.agent_id,
            names.AGENT_NAME: life.agent_id,
        }
        span_id = span_id_of(life.log_id, *what)
        name = f"invoke_agent {life.agent_id}"
        return TraceSpan(
            "invoke_agent", name, span_id, parent_id, time, time, offset, offset, dict(attributes)
        )

    def _common(self, kind: Kind) -> dict[str, str]:
        life = self._life
        attributes = {
            names.OPERATION: kind,
            names.OPENINFERENCE_KIND: names.KINDS[kind],
            names.RUN: life.run_id,
            names.CONVERSATION: life.session_id or life.run_id,
        }
        if life.session_id is not None:
            attributes[names.SESSION] = life.session_id
        if life.user_id is not None:
            attributes[names.USER] = life.user_id
        return attributes

    def _take_life(self, root: TraceSpan, event: AnyEvent) -> None:
        match event.data:
            case RunOpened() | RunLabeled():
                root.attributes |= {f"{names.LABEL}{key}": text for key, text in event.data.labels.items()}
            case RunFailed():
                # The error may quote what was said.
                root.error = "run_failed"
                if self._with_contents:
                    root.attributes["exception.message"] = event.data.error
            case _:
                pass
        if event.type in ENDINGS:
            self.ended = True
            root.attributes[names.STATUS] = ENDINGS[event.type]

    def _enter_turn(
        self, root: TraceSpan, event: AnyEvent, offset: int, traceparent: str | None
    ) -> TraceSpan:
        """The span of the event's turn. An event without a turn belongs to the turn before it."""
        if event.turn_id is not None and event.turn_id not in self._turns:
            turn = self._agent_span(("turn", event.turn_id), root.span_id, event.timestamp, offset)
            turn.attributes[names.TURN] = event.turn_id
            # The request of this turn may belong to another trace than that of the run's opening.
            turn.link = traceparent if traceparent and ids_of(traceparent)[0] != self.trace_id else None
            self._turns[event.turn_id] = turn
        if event.turn_id is not None:
            self._turn = self._turns[event.turn_id]
        if self._turn is None:
            return root
        self._turn.extend(event.timestamp, offset)
        return self._turn

    def _take_event(self, parent: TraceSpan, event: AnyEvent, offset: int, what: tuple[str, str]) -> None:
        if self._with_contents and isinstance(event.data, UserMessage):
            parent.attributes.setdefault(
                names.INPUT_MESSAGES,
                messages_json([("user", text_part(event.data.message))]),
            )
        self._responses.take(
            parent, event, offset, what, began=self._before or event.timestamp, common=self._common("chat")
        )
        match event.data:
            case ToolCall():
                self._begin_tool(parent, event.data, event, offset, what)
            case ToolResult():
                self._end_tool(event.data, event.timestamp, offset)
            case _:
                pass

    def _begin_tool(
        self, parent: TraceSpan, call: ToolCall, event: AnyEvent, offset: int, what: tuple[str, str]
    ) -> None:
        attributes = {
            **self._common("execute_tool"),
            names.TOOL_NAME: call.tool_name,
            names.TOOL_CALL_ID: call.tool_call_id,
            names.TOOL_TYPE: "function",
        }
        if self._with_contents:
            attributes[names.TOOL_ARGUMENTS] = value_json(call.payload)
        outer = self._tools.get(call.parent_tool_call_id or "")
        self._tools[call.tool_call_id] = TraceSpan(
            "execute_tool",
            f"execute_tool {call.tool_name}",
            span_id_of(self._life.log_id, "tool", *what),
            (outer or parent).span_id,
            event.timestamp,
            event.timestamp,
            offset,
            offset,
            dict(attributes),
        )

    def _end_tool(self, result: ToolResult, time: datetime, offset: int) -> None:
        span = self._tools.pop(result.tool_call_id, None)
        if span is None:
            return
        span.end, span.last_offset = max(span.start, time), offset
        if result.error is not None:
            span.error = "tool_error"
        if self._with_contents:
            span.attributes[names.TOOL_RESULT] = value_json(
                result.result if result.error is None else result.error
            )
        self._finished.append(span)


def _traceparent_of(admitted: Admitted) -> str | None:
    value = dict(admitted.record.headers).get(TRACEPARENT)
    return None if value is None else valid_traceparent(value.decode("ascii", errors="replace"))
