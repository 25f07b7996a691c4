"""Which tool result answers which call. This is the first of the two passes that fold a log into
its ledger:

    log ── pass 1: ResultPlanner ──> ResultPlan (places only)
                                         │
    log ── pass 2: LedgerStream ─────────┴──> messages

A result belongs to the latest earlier call with its id, because real conversations repeat ids; of
several results of one call the last counts (ARCHITECTURE.md, The ledger). A message can therefore
not be written before the whole log was seen.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runfold_projections.amendments import Place, expand_log, in_order, offset_of
from runfold_projections.validation import Fault, Rule
from runfold_schemas.events import AnyEvent, ToolCall, ToolResult


@dataclass(frozen=True, slots=True)
class ResultPlan:
    """The results of one stretch of a log, as places: small enough to keep for a log that is not.

    It is right for exactly the events that it was made from; more of them may change which result
    counts.
    """

    results: Mapping[Place, Place]
    """Place of a call -> place of the result that counts for it."""
    orphans: frozenset[Place]
    """Places of results that no earlier call asked for."""


def plan_results(events: Iterable[tuple[Place, AnyEvent]]) -> ResultPlan:
    """The plan of `(place, event)` pairs, which are events as they stand, in the order of their
    log.
    """
    return _planned(events).plan()


def inspect_results(events: Iterable[tuple[int, AnyEvent]]) -> list[Fault]:
    """Calls without a result and results without an earlier call, in the order of their log. See
    `ResultPlanner.faults`.
    """
    return _planned(expand_log(list(events))).faults()


class ResultPlanner:
    """Makes a plan from a log that is read bit by bit. It keeps one entry a call, and nothing of
    other events.
    """

    def __init__(self) -> None:
        self._latest: dict[str, Place] = {}
        self._results: dict[Place, Place] = {}
        self._orphans: dict[Place, str] = {}
        # Calls that had no result when their id was used again: from then on they cannot get one.
        self._overtaken: dict[Place, str] = {}
        self._nameless: list[tuple[Place, Fault]] = []

    def feed(self, place: Place, event: AnyEvent) -> None:
        """Takes the next event of the log, of whatever kind."""
        match event.data:
            case ToolCall(tool_call_id=tool_id):
                self._call(place, tool_id)
            case ToolResult(tool_call_id=tool_id):
                self._result(place, tool_id)
            case _:
                # The other kinds need no list here: what they are to the ledger is the second
                # pass's to say.
                pass

    def plan(self) -> ResultPlan:
        """What is known so far, independent of what is fed later."""
        return ResultPlan(results=dict(self._results), orphans=frozenset(self._orphans))

    def faults(self) -> list[Fault]:
        """What is missing so far, by offset.

        Rules: `call-has-result` (as long as a run goes on, a tool may still be at work),
        `result-has-call`, `result-after-call` (the id is called only later), `call-has-id` and
        `result-has-id` (without one, neither can find the other).
        """
        return [fault for _, fault in self.faulty()]

    def faulty(self) -> list[tuple[Place, Fault]]:
        """As `faults`, each with its place."""
        waiting = {place: tool_id for tool_id, place in self._latest.items() if place not in self._results}
        faults = [
            *self._nameless,
            *(_unanswered(place, tool_id) for place, tool_id in (self._overtaken | waiting).items()),
            *(
                _orphan(place, tool_id, called=tool_id in self._latest)
                for place, tool_id in self._orphans.items()
            ),
        ]
        return sorted(faults, key=lambda faulty: in_order(faulty[0]))

    def _call(self, place: Place, tool_id: str) -> None:
        if not tool_id:
            self._nameless.append(_fault("call-has-id", place, tool_id, "the call has no id"))
            return
        earlier = self._latest.get(tool_id)
        if earlier is not None and earlier not in self._results:
            self._overtaken[earlier] = tool_id
        self._latest[tool_id] = place

    def _result(self, place: Place, tool_id: str) -> None:
        if not tool_id:
            self._nameless.append(_fault("result-has-id", place, tool_id, "the result names no call"))
        elif tool_id in self._latest:
            self._results[self._latest[tool_id]] = place
        else:
            self._orphans[place] = tool_id


def _planned(events: Iterable[tuple[Place, AnyEvent]]) -> ResultPlanner:
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
