"""Has keys of the shared topics folded anew by their owners: sessions, shared state, memories and
banks. Only the owner does this, because it alone can hold back new events of a key meanwhile.
"""

import asyncio
from collections.abc import Callable, Collection

from runfold.log.catalog import partition_of
from runfold.projector.shared import REFOLDED
from runfold.store.edition import Edition
from runfold.store.quarantine import key_id_of
from runfold_schemas.topics import Topics

_LOOK_SECONDS = 0.5

PATIENCE_SECONDS = 20.0
"""How long to wait without any progress."""


async def refold_keys(
    topics: Topics,
    stores: Edition,
    keys: Collection[str],
    *,
    report: Callable[[int], None],
    patience_seconds: float = PATIENCE_SECONDS,
) -> int:
    """Requests that keys are folded anew, and waits for it. Keys in quarantine are left alone.
    `report` is called with the number of keys that are left. Returns this number when it is 0, or
    when it has not changed for `patience_seconds`: then no projector runs. The requests remain.
    """
    clock = asyncio.get_running_loop().time
    ids = {key_id_of(key): partition_of(topics, key) for key in keys}
    left = ids.keys() - await stores.quarantine.existing(ids)
    for entry_id in left:
        await stores.quarantine.request(entry_id, "refold", owner=ids[entry_id])
    seen: set[str] = set(left)
    deadline = clock() + patience_seconds
    while left and clock() < deadline:
        report(len(left))
        await asyncio.sleep(_LOOK_SECONDS)
        requested = await stores.quarantine.requests({ids[entry_id] for entry_id in left})
        refolding = {
            entry.id for entry in await stores.quarantine.all(kind="key") if entry.reason == REFOLDED
        }
        # The owner ends a request before the quarantine begins, so one look may see neither.
        seen, before = requested.keys() | refolding, seen
        waiting = left & (seen | before)
        if waiting != left:
            left, deadline = waiting, clock() + patience_seconds
    return len(left)
