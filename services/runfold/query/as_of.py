"""Prefixes of histories. Their ends are found by reading as little as possible."""

from runfold.query.history import History, Source
from runfold.query.runs import RunReader
from runfold_projections.as_of import AsOf, CurrentTurn


async def end_of(as_of: AsOf, history: History) -> int:
    """As `AsOf.end`. Raises `InvalidEventError` for a turn that the run does not have."""
    if as_of.offset is not None:
        return min(as_of.offset + 1, history.end)
    if (milliseconds := as_of.milliseconds) is not None:
        return await _end_at(history, milliseconds)
    if (turn := as_of.named_turn) is None:
        return history.end
    async for slice_ in history.slices():
        if turn.turn_id in slice_.turns or (turn.is_open and slice_.turns):
            for admitted in slice_.admitted():
                turn.take(admitted)
        if turn.begin is not None and as_of.before_turn is not None:
            break
    return as_of.end_by(turn, history.run_id, log_end=history.end)


async def prefix_of(
    runs: RunReader, run_id: str, as_of: AsOf, *, min_offset: int | None, source: Source
) -> tuple[History, int]:
    """The run, and the end of the prefix. Raises as `RunReader.history` and `end_of` do."""
    # A prefix never changes, so a run that has not reached its end yet is waited for.
    offsets = (min_offset, as_of.offset)
    least = max((offset for offset in offsets if offset is not None), default=None)
    history = await runs.history(run_id, min_offset=least, source=source)
    return history, await end_of(as_of, history)


async def turn_before(history: History, offset: int) -> CurrentTurn:
    """The turn of the last event before `offset`."""
    # Only records near the end of a slice decide, and the last slice may have no turn before
    # `offset`.
    slices = [slice_ async for slice_ in history.slices(end=offset) if slice_.turns]
    for slice_ in reversed(slices):
        current = CurrentTurn()
        for admitted in slice_.admitted():
            current.take(admitted)
        if current.turn_id is not None:
            return current
    return CurrentTurn()


async def _end_at(history: History, milliseconds: int) -> int:
    """The first record that was appended later. A broker's clock may have been set back, so records
    after it are not looked at.
    """
    async for slice_ in history.slices():
        if slice_.max_time > milliseconds:
            for admitted in slice_.admitted():
                if admitted.record.log_time > milliseconds:
                    return admitted.record.offset
    return history.end
