"""What a run did beside its record: when it ended, and statistics of the tools that it called.

A duration is counted in a bucket of a histogram, so the statistics of many runs can be added up.
The size is limited for any log.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from runfold_projections.admission import Admitted
from runfold_projections.tally import Tally, ToolFact, tally_of

TOOLS_MAX: Final = 50
"""The number of tools with statistics of their own, beside the row of all further tools."""

OPEN_CALLS_MAX: Final = 200
"""The number of calls that are remembered until their results come. The oldest is forgotten."""

BOUNDS_US: Final = tuple(1_000 * 2 ** (step // 2) * (1_000, 1_414)[step % 2] // 1_000 for step in range(50))
"""The upper bounds of the buckets in microseconds: from a millisecond to 6 hours, each larger by
the root of 2. Longer durations are in one more bucket.
"""

_NAME_LENGTH_MAX: Final = 200
_ID_LENGTH_MAX: Final = 200
_MICROSECOND: Final = timedelta(microseconds=1)


def _is_nothing(value: object) -> bool:
    return not value


class ToolStatistics(BaseModel):
    """The calls of one tool. `name` is None for the further tools."""

    model_config = ConfigDict(frozen=True)

    name: str | None
    calls: int = 0
    results: int = 0
    errors: int = 0
    buckets: Annotated[tuple[tuple[int, int], ...], Field(exclude_if=_is_nothing)] = ()
    """The numbers of durations by the index of their bucket, in ascending order."""


class OpenCall(NamedTuple):
    """A call without a result."""

    tool_call_id: str
    tool_name: str
    timestamp: datetime


class RunActivity(BaseModel):
    """The tools are in the order of their first calls."""

    model_config = ConfigDict(frozen=True)

    ended_at: Annotated[datetime | None, Field(exclude_if=lambda value: value is None)] = None
    """The time of the event that ended the run."""
    tools: Annotated[tuple[ToolStatistics, ...], Field(exclude_if=_is_nothing)] = ()
    open_calls: Annotated[tuple[OpenCall, ...], Field(exclude_if=_is_nothing)] = ()
    copies: Annotated[tuple[int, int] | None, Field(exclude_if=_is_nothing)] = None
    """The offsets of a fork's first and last copy. Their tools count in the source only."""


NO_ACTIVITY: Final = RunActivity()


def fold_activity(activity: RunActivity, admitted: Iterable[Admitted]) -> RunActivity:
    """The activity after further records of the log, which may be divided in any way."""
    return activity_after(activity, tally_of(admitted))


def activity_after(activity: RunActivity, tally: Tally) -> RunActivity:
    """As `fold_activity`, of records whose outcomes are decided already."""
    if tally.ended_at is not None and activity.ended_at is None:
        activity = activity.model_copy(update={"ended_at": tally.ended_at})
    if tally.copies is not None and activity.copies is None:
        activity = activity.model_copy(update={"copies": tally.copies})
    facts = tally.tools
    if activity.copies is not None:
        first, last = activity.copies
        facts = [fact for fact in facts if not first <= fact.offset <= last]
    return _with_tools(activity, facts) if facts else activity


def bucket_of(duration_us: int) -> int:
    """The index of a duration's bucket."""
    return bisect_left(BOUNDS_US, duration_us)


def quantile(buckets: Sequence[tuple[int, int]], share: float) -> float | None:
    """The duration in seconds that `share` of the durations do not exceed, from the numbers of
    durations by bucket, in ascending order. Within a bucket the durations count as evenly spread.
    """
    left = share * sum(count for _, count in buckets)
    for index, count in buckets:
        if left <= count and count:
            low = BOUNDS_US[index - 1] if index else 0
            high = BOUNDS_US[index] if index < len(BOUNDS_US) else low
            return (low + (high - low) * left / count) / 1_000_000
        left -= count
    return None


class _Counts:
    """The statistics of a tool while they grow."""

    __slots__ = ("buckets", "calls", "errors", "results")

    def __init__(self, tool: ToolStatistics | None = None) -> None:
        self.calls = tool.calls if tool else 0
        self.results = tool.results if tool else 0
        self.errors = tool.errors if tool else 0
        self.buckets = dict(tool.buckets) if tool else {}

    def frozen(self, name: str | None) -> ToolStatistics:
        return ToolStatistics.model_construct(
            name=name,
            calls=self.calls,
            results=self.results,
            errors=self.errors,
            buckets=tuple(sorted(self.buckets.items())),
        )


def _with_tools(activity: RunActivity, facts: Sequence[ToolFact]) -> RunActivity:
    stored = {tool.name: tool for tool in activity.tools}
    changed: dict[str | None, _Counts] = {}
    open_calls = {call.tool_call_id: call for call in activity.open_calls}

    def counts_of(tool_name: str) -> _Counts:
        known = tool_name in stored or tool_name in changed
        number = len(stored) + sum(name not in stored for name in changed)
        is_own = known or (number < TOOLS_MAX and len(tool_name) <= _NAME_LENGTH_MAX)
        name = tool_name if is_own else None
        if name not in changed:
            changed[name] = _Counts(stored.get(name))
        return changed[name]

    for fact in facts:
        if fact.is_call:
            counts_of(fact.tool_name).calls += 1
            if len(fact.tool_call_id) <= _ID_LENGTH_MAX:
                open_calls.pop(fact.tool_call_id, None)
                open_calls[fact.tool_call_id] = OpenCall(fact.tool_call_id, fact.tool_name, fact.timestamp)
            if len(open_calls) > OPEN_CALLS_MAX:
                del open_calls[next(iter(open_calls))]
        else:
            call = open_calls.pop(fact.tool_call_id, None)
            tool_name = call.tool_name if call is not None else fact.tool_name
            if tool_name:
                _count_result(counts_of(tool_name), fact, call)
    rows = [changed.pop(name).frozen(name) if name in changed else tool for name, tool in stored.items()]
    rows += [counts.frozen(name) for name, counts in changed.items()]
    return activity.model_copy(update={"tools": tuple(rows), "open_calls": tuple(open_calls.values())})


def _count_result(counts: _Counts, fact: ToolFact, call: OpenCall | None) -> None:
    counts.results += 1
    counts.errors += fact.is_error
    if fact.duration_ms is not None:
        duration_us = int(min(fact.duration_ms * 1_000, 2.0**62))
    elif call is not None:
        duration_us = (fact.timestamp - call.timestamp) // _MICROSECOND
    else:
        return
    if duration_us >= 0:
        bucket = bucket_of(duration_us)
        counts.buckets[bucket] = counts.buckets.get(bucket, 0) + 1
