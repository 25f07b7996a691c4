"""Folds what a fetch of the tail has."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from runfold.log.fetch_answer import FetchedRecords
from runfold.projector.active import ActiveRun, Folded

_UNBROKEN_MAX: Final = 500
"""The number of records that are folded without a pause: about 10 ms. The records of one run in a
fetch are always folded without a pause.
"""


async def fold_fetched(
    fetch: Sequence[FetchedRecords],
    by_topic: Mapping[str, ActiveRun],
    *,
    went_back: Callable[[ActiveRun], None],
    failed: Callable[[ActiveRun, Exception], None],
) -> list[Folded]:
    """Folds the records of runs. `went_back` is told a run whose log ends before its position, and
    `failed` a run whose records cannot be folded.
    """
    # The runs of the records are looked up before the first pause. A run that is loaded again
    # during a pause begins at another offset.
    parts = [(part, by_topic.get(part.partition.topic)) for part in fetch]
    batch = []
    unbroken = 0
    for part, run in parts:
        if run is not None and part.next_offset < run.next_offset:
            went_back(run)
        elif run is not None and part.next_offset > run.next_offset:
            try:
                batch.append(run.take_fetched(part))
            except Exception as error:  # noqa: BLE001  # `failed` raises errors of servers again
                failed(run, error)
            unbroken += len(part.records)
            if unbroken >= _UNBROKEN_MAX:
                # Other tasks, for example the next fetch, get a turn.
                await asyncio.sleep(0)
                unbroken = 0
    return batch
