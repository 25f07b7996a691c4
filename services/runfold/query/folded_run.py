"""All that is folded of a run for its record: from what is stored, and from the records behind
it.
"""

import asyncio
from typing import NamedTuple

from runfold.query.history import History
from runfold_projections.activity import NO_ACTIVITY, RunActivity, fold_activity
from runfold_projections.run import RunRecord, fold
from runfold_projections.usage import RunUsage, fold_usage


class FoldedRun(NamedTuple):
    record: RunRecord
    usage: RunUsage
    activity: RunActivity
    log_id: str


async def folded_run(history: History, record: RunRecord) -> FoldedRun:
    """The run at the history's end. `record` is the history's base, revealed."""
    usage, activity = history.base_usage, history.base_activity or NO_ACTIVITY
    if usage is None:
        usage = await _usage(history, end=record.next_offset)
        record = record.model_copy(update={"usage": usage.totals})
    return await _folded(history, FoldedRun(record, usage, activity, history.log_id), end=history.end)


async def run_as_of(history: History, *, end: int) -> FoldedRun:
    """The run as it was after its first `end` offsets."""
    unfolded = FoldedRun(RunRecord(run_id=history.run_id), RunUsage(), NO_ACTIVITY, history.log_id)
    return await _folded(history, unfolded, end=end)


async def _folded(history: History, folded: FoldedRun, *, end: int) -> FoldedRun:
    """The run with the records up to `end`."""
    record, usage, activity, log_id = folded
    async for slice_ in history.slices(first_offset=record.next_offset, end=end):
        admitted = slice_.admitted()
        record = fold(record, admitted).model_copy(update={"next_offset": slice_.next_offset})
        usage, activity = fold_usage(usage, admitted), fold_activity(activity, admitted)
        await asyncio.sleep(0)
    return FoldedRun(record, usage, activity, log_id)


async def _usage(history: History, *, end: int) -> RunUsage:
    """The usage of the records before `end`."""
    usage = RunUsage()
    async for slice_ in history.slices(end=end):
        if "token_usage" in slice_.types:
            usage = fold_usage(usage, slice_.admitted())
        await asyncio.sleep(0)
    return usage
