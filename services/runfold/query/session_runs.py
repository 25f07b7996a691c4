"""The runs of a session, in the order of their first records in the log."""

import base64
import json
from collections.abc import AsyncIterator

from runfold.query.history import History
from runfold.query.runs import RunReader
from runfold.query.snapshots import Snapshots
from runfold.store.runs import RunFilter, RunState
from runfold_projections.run import RunRecord
from runfold_schemas.errors import InvalidEventError, RunNotFoundError
from runfold_schemas.topics import check_session_id

_BATCH = 1000

Place = tuple[int, str]
"""Of a run in its session: when its first record was appended, and its log's id, which sorts by its
opening.
"""


class SessionRuns:
    def __init__(self, snapshots: Snapshots, runs: RunReader) -> None:
        self._snapshots = snapshots
        self._runs = runs

    async def runs(
        self, session_id: str, *, limit: int, cursor: str | None = None
    ) -> tuple[list[RunRecord], str | None]:
        """A page of the session's runs, the oldest first, and the cursor of the next page.

        Raises `InvalidEventError` for a foreign cursor, `InvalidIdError`, `UnavailableError`.
        """
        after = _read_cursor(cursor) if cursor is not None else (0, "")
        following = [(place, state) for place, state in await self._placed(session_id) if place > after]
        more = len(following) > limit
        return (
            [state.record for _, state in following[:limit]],
            _write_cursor(following[limit - 1][0]) if more else None,
        )

    async def histories(self, session_id: str) -> AsyncIterator[History]:
        """The runs one after the other, each as it is when its turn comes."""
        for _, state in await self._placed(session_id):
            try:
                yield await self._runs.history(state.run_id)
            except RunNotFoundError:
                continue  # it was deleted meanwhile

    async def _placed(self, session_id: str) -> list[tuple[Place, RunState]]:
        check_session_id(session_id)
        wanted = RunFilter(session_id=session_id)
        states, cursor = await self._snapshots.runs(wanted, limit=_BATCH)
        while cursor is not None:
            found, cursor = await self._snapshots.runs(wanted, limit=_BATCH, cursor=cursor)
            states += found
        times = await self._snapshots.first_times([state.log_id for state in states])
        # A run whose first record is not projected yet is the session's newest.
        placed = [((times.get(state.log_id, _LAST), state.log_id), state) for state in states]
        return sorted(placed, key=lambda one: one[0])


_LAST = 2**63


def _write_cursor(place: Place) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def _read_cursor(cursor: str) -> Place:
    try:
        time, log_id = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        return int(time), str(log_id)
    except (ValueError, TypeError) as error:
        raise InvalidEventError("the cursor is not one that was given out here", field="cursor") from error
