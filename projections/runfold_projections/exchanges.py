"""Finds the tool result that answers each call: the first of the two passes that fold a log into
its ledger.

    log ── pass 1: ResultPlanner ──> ResultPlan (places only)
                                         │
    log ── pass 2: LedgerStream ─────────┴──> messages

A result belongs to the latest earlier call with its id, because real conversations repeat ids. If a
call has several results, the last counts (ARCHITECTURE.md, The ledger). So no message can be
written before the whole log was read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runfold_projections.amendments import Place, expand_log, offset_of, order_key
from runfold_projections.validation import Fault, Rule
from runfold_schemas.events import ToolCall, ToolResult
from runfold_schemas.ledger_events import LedgerEvent


@dataclass(frozen=True, slots=True)
class ResultPlan:
    """The places of the results in a part of a log. A plan fits into memory also if its log does
    not.

    A plan is valid only for the events that it was made from. Further events may change which
    result counts.
    """

    results: Mapping[Place, Place]
    """The place of the result that counts, by the place of its call."""
    orphans: frozenset[Place]
    """The places of results without an earlier call."""


def plan_results(events: Iterable[tuple[Place, LedgerEvent]]) -> ResultPlan:
    """The plan for expanded events with their places, in the order of the log."""
    return _feed_planner(events).plan()


def inspect_results(events: Iterable[tuple[int, LedgerEvent]]) -> list[Fault]:
    """Calls without a result and results without an earlier call, in the order of the log. See
    `ResultPlanner.faults`.
    """
    return _feed_planner(expand_log(list(events))).faults()


class ResultPlanner:
    """Makes a plan from a log that is read piece by piece. It keeps one entry for each call and
    nothing of other events.
    """

    def __init__(self) -> None:
        self._latest: dict[str, Place] = {}
        self._results: dict[Place, Place] = {}
        self._orphans: dict[Place, str] = {}
        # Calls without a result whose id was used again: no later result can belong to them.
        self._unanswerable: dict[Place, str] = {}
        self._nameless: list[tuple[Place, Fault]] = []

    def feed(self, place: Place, event: LedgerEvent) -> None:
        """Takes the next expanded event of the log, of any kind."""
        # The second pass has the exhaustive list of kinds. For a class that does not match, `match`
        # takes five times as long as a comparison of types.
        data = event.data
        if type(data) is ToolCall:
            self.feed_call(place, data.tool_call_id)
        elif type(data) is ToolResult:
            self.feed_result(place, data.tool_call_id)

    def plan(self) -> ResultPlan:
        """The plan for the events so far. Later calls of `feed` do not change it."""
        return ResultPlan(results=dict(self._results), orphans=frozenset(self._orphans))

    def faults(self) -> list[Fault]:
        """The faults so far, in the order of the log.

        Rules: `call-has-result` (while the run goes on, the tool may still be working),
        `result-has-call`, `result-after-call` (a call with that id follows the result),
        `call-has-id` and `result-has-id` (without an id, call and result cannot be paired).
        """
        return [fault for _, fault in self.placed_faults()]

    def placed_faults(self) -> list[tuple[Place, Fault]]:
        """The same as `faults`, each fault with its place."""
        waiting = {place: tool_id for tool_id, place in self._latest.items() if place not in self._results}
        faults = [
            *self._nameless,
            *(_unanswered(place, tool_id) for place, tool_id in (self._unanswerable | waiting).items()),
            *(
                _orphan(place, tool_id, called=tool_id in self._latest)
                for place, tool_id in self._orphans.items()
            ),
        ]
        return sorted(faults, key=lambda placed: order_key(placed[0]))

    def feed_call(self, place: Place, tool_id: str) -> None:
        """As `feed`, for a call of a tool."""
        if not tool_id:
            self._nameless.append(_fault("call-has-id", place, tool_id, "the call has no id"))
            return
        earlier = self._latest.get(tool_id)
        if earlier is not None and earlier not in self._results:
            self._unanswerable[earlier] = tool_id
        self._latest[tool_id] = place

    def feed_result(self, place: Place, tool_id: str) -> None:
        """As `feed`, for a result."""
        if not tool_id:
            self._nameless.append(_fault("result-has-id", place, tool_id, "the result names no call"))
        elif tool_id in self._latest:
            self._results[self._latest[tool_id]] = place
        else:
            self._orphans[place] = tool_id


def _feed_planner(events: Iterable[tuple[Place, LedgerEvent]]) -> ResultPlanner:
    planner = ResultPlanner()
    for place, event in events:
        planner.feed(place, event)
    return planner


def _unanswered(place: Place, tool_id: str) -> tuple[Place, Fault]:
    return _fault("call-has-result", place, tool_id, f"the call {tool_id!r} has no result")


def _orphan(place: Place, tool_id: str, *, called: bool) -> tuple[Place, Fault]:
    if called:
        return _fault("result-after-call", place, tool_id, f"the result {tool_id!r} is before its call")
    return _fault("result-has-call", place, tool_id, f"the result {tool_id!r} has no call")


def _fault(rule: Rule, place: Place, tool_id: str, text: str) -> tuple[Place, Fault]:
    return place, Fault(rule=rule, text=text, offset=offset_of(place), tool_use_id=tool_id)
