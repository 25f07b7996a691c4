"""The runs of a session, in the order of their first records in the log."""

from collections.abc import AsyncIterator
from operator import itemgetter
from typing import Final

from pydantic import TypeAdapter

from runfold.query.history import History
from runfold.query.runs import RunReader
from runfold.query.stored_runs import StoredRuns
from runfold.store.runs import RunFilter, RunState
from runfold_schemas.cursors import decode_cursor, encode_cursor
from runfold_schemas.errors import RunNotFoundError
from runfold_schemas.topics import check_session_id

_BATCH = 1000

_NOT_STORED: Final = 2**63
"""The time of a first record that is not projected yet: its run is the newest of the session."""

RunOrder = tuple[int, str]
"""The place of a run in its session: the time of its first record, and its log's id. Ids of logs
sort by the time of the opening.
"""

_RUN_ORDER: Final = TypeAdapter[RunOrder](RunOrder)


class SessionRuns:
    def __init__(self, stored_runs: StoredRuns, runs: RunReader) -> None:
        self._stored_runs = stored_runs
        self._runs = runs

    async def runs(
        self, session_id: str, *, limit: int, cursor: str | None = None
    ) -> tuple[list[RunState], str | None]:
        """A page of the session's runs, the oldest first, and the cursor of the next page.

        Raises `InvalidEventError` for a foreign cursor, `InvalidIdError`, `UnavailableError`.
        """
        after = decode_cursor(cursor, _RUN_ORDER) if cursor is not None else (0, "")
        following = [(order, state) for order, state in await self._sorted(session_id) if order > after]
        next_cursor = encode_cursor(*following[limit - 1][0]) if len(following) > limit else None
        return [state for _, state in following[:limit]], next_cursor

    async def histories(self, session_id: str) -> AsyncIterator[History]:
        """The runs one after the other. Each is read as it is when the caller asks for it."""
        for _, state in await self._sorted(session_id):
            try:
                yield await self._runs.history(state.run_id)
            except RunNotFoundError:
                continue  # deleted meanwhile

    async def _sorted(self, session_id: str) -> list[tuple[RunOrder, RunState]]:
        check_session_id(session_id)
        of_session = RunFilter(session_id=session_id)
        states, cursor = await self._stored_runs.runs(of_session, limit=_BATCH)
        while cursor is not None:
            more, cursor = await self._stored_runs.runs(of_session, limit=_BATCH, cursor=cursor)
            states += more
        states = await self._runs.sound(states)
        times = await self._stored_runs.first_times([state.log_id for state in states])
        orders = [(times.get(state.log_id, _NOT_STORED), state.log_id) for state in states]
        return sorted(zip(orders, states, strict=True), key=itemgetter(0))
