"""The owners of runs, sessions and memories, looked up for principals that are limited."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Protocol

from runfold.client.memory_log import LogMemoryReader
from runfold.client.runfold import Runfold
from runfold.client.session_log import LogSessionReader
from runfold_projections.session import SessionRecord
from runfold_schemas.catalog import Life

_RUNS_MAX: Final = 10_000


class SessionFinder(Protocol):
    """Finds sessions, as a `SessionReader` does."""

    async def find(self, session_id: str) -> SessionRecord | None: ...


class RunOwner(NamedTuple):
    """The agent, the session and the user of a run."""

    agent_id: str
    session_id: str | None
    user_id: str | None


class Owners:
    """Looks owners up.

    `find_life` returns the life of a run, or None. `sessions` returns the reader of the current
    connection, or raises while there is none.
    """

    def __init__(
        self,
        find_life: Callable[[str], Awaitable[Life | None]],
        sessions: Callable[[], SessionFinder],
        scope_of_memory: Callable[[str, str], Awaitable[Mapping[str, str] | None]],
    ) -> None:
        self._find_life = find_life
        self._sessions = sessions
        self._scope_of_memory = scope_of_memory
        self._runs: OrderedDict[str, RunOwner] = OrderedDict()

    async def run(self, run_id: str) -> RunOwner | None:
        """The owner of a run, who never changes: an id is not used again after its run."""
        if run_id not in self._runs:
            life = await self._find_life(run_id)
            if life is None or life.deleted:
                return None
            self._runs[run_id] = RunOwner(life.agent_id, life.session_id, life.user_id)
            if len(self._runs) > _RUNS_MAX:
                self._runs.popitem(last=False)
        return self._runs[run_id]

    async def session(self, session_id: str) -> SessionRecord | None:
        return await self._sessions().find(session_id)

    async def scope_of_memory(self, bank_id: str, memory_id: str) -> Mapping[str, str] | None:
        """The scope of a memory, also of a deleted one. None if there was none."""
        return await self._scope_of_memory(bank_id, memory_id)


def owners_in_log(runfold: Callable[[], Runfold]) -> Owners:
    """The owners as the log has them. `runfold` returns the client, or raises while there is no
    connection.
    """

    async def scope_of_memory(bank_id: str, memory_id: str) -> Mapping[str, str] | None:
        head = await LogMemoryReader(runfold().connection).head(bank_id, memory_id)
        return head.scope if head is not None else None

    async def life(run_id: str) -> Life | None:
        return await runfold().connection.catalog.lookup(run_id)

    return Owners(life, lambda: LogSessionReader(runfold().connection), scope_of_memory)
