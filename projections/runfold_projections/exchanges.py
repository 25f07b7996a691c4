"""Which tool result answers which call. This is the first of the two passes that fold a log into its ledger:

    log ── pass 1: ResultPlanner ──> ResultPlan (offsets only)
                                         │
    log ── pass 2: LedgerStream ─────────┴──> messages

A result belongs to the latest earlier call with its id, because real conversations repeat ids; of several results of one
call the last counts (ARCHITECTURE.md, The ledger). A message can therefore not be written before the whole log was seen.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runfold_projections.validation import Fault, Rule
from runfold_schemas.events import AnyEvent, ToolCall, ToolResult


@dataclass(frozen=True, slots=True)
class ResultPlan:
    """The results of one stretch of a log, as offsets: small enough to keep for a log that is not.

    It is right for exactly the events that it was made from; more of them may change which result counts.
    """

    results: Mapping[int, int]
    """Offset of a call -> offset of the result that counts for it."""
    orphans: frozenset[int]
    """Offsets of results that no earlier call asked for."""


def plan_results(events: Iterable[tuple[int, AnyEvent]]) -> ResultPlan:
    """The plan of `(offset, event)` pairs in the order of their log."""
    return _planned(events).plan()


def inspect_results(events: Iterable[tuple[int, AnyEvent]]) -> list[Fault]:
    """Calls without a result and results without an earlier call, in the order of their log. See `ResultPlanner.faults`."""
    return _planned(events).faults()


class ResultPlanner:
    """Makes a plan from a log that is read bit by bit. It keeps one entry a call, and nothing of other events."""

    def __init__(self) -> None:
        self._latest: dict[str, int] = {}
        self._results: dict[int, int] = {}
        self._orphans: dict[int, str] = {}
        # Calls that had no result when their id was used again: from then on they cannot get one.
        self._overtaken: dict[int, str] = {}
        self._nameless: list[Fault] = []

    def feed(self, offset: int, event: AnyEvent) -> None:
        """Takes the next event of the log, of whatever kind."""
        match event.data:
            case ToolCall(tool_call_id=tool_id):
                self._call(offset, tool_id)
            case ToolResult(tool_call_id=tool_id):
                self._result(offset, tool_id)
            case _:
                # The other kinds need no list here: what they are to the ledger is the second pass's to say.
                pass

    def plan(self) -> ResultPlan:
        """What is known so far, independent of what is fed later."""
        return ResultPlan(results=dict(self._results), orphans=frozenset(self._orphans))

    def faults(self) -> list[Fault]:
        """What is missing so far, by offset.

        Rules: `call-has-result` (as long as a run goes on, a tool may still be at work), `result-has-call`,
        `result-after-call` (the id is called only later), `call-has-id` and `result-has-id` (without one, neither can find
        the other).
        """
        waiting = {offset: tool_id for tool_id, offset in self._latest.items() if offset not in self._results}
        faults = [
            *self._nameless,
            *(_unanswered(offset, tool_id) for offset, tool_id in (self._overtaken | waiting).items()),
            *(
                _orphan(offset, tool_id, called=tool_id in self._latest)
                for offset, tool_id in self._orphans.items()
            ),
        ]
        return sorted(faults, key=lambda fault: fault.offset or 0)

    def _call(self, offset: int, tool_id: str) -> None:
        if not tool_id:
            self._nameless.append(_fault("call-has-id", offset, tool_id, "the call has no id"))
            return
        earlier = self._latest.get(tool_id)
        if earlier is not None and earlier not in self._results:
            self._overtaken[earlier] = tool_id
        self._latest[tool_id] = offset

    def _result(self, offset: int, tool_id: str) -> None:
        if not tool_id:
            self._nameless.append(_fault("result-has-id", offset, tool_id, "the result names no call"))
        elif tool_id in self._latest:
            self._results[self._latest[tool_id]] = offset
        else:
            self._orphans[offset] = tool_id


def _planned(events: Iterable[tuple[int, AnyEvent]]) -> ResultPlanner:
    planner = ResultPlanner()
    for offset, event in events:
        planner.feed(offset, event)
    return planner


def _unanswered(offset: int, tool_id: str) -> Fault:
    return _fault("call-has-result", offset, tool_id, f"the call {tool_id!r} has no result")


def _orphan(offset: int, tool_id: str, *, called: bool) -> Fault:
    if called:
        return _fault("result-after-call", offset, tool_id, f"the result {tool_id!r} is before its call")
    return _fault("result-has-call", offset, tool_id, f"the result {tool_id!r} has no call")


def _fault(rule: Rule, offset: int, tool_id: str, text: str) -> Fault:
    return Fault(rule=rule, text=text, offset=offset, tool_use_id=tool_id)
