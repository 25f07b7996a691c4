"""What the API has open of one tenant: its connections, the readers and the verbs on them, and its
caches.
"""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Self, TypeVar

from runfold.client.memories import Memories
from runfold.client.runfold import Runfold
from runfold.client.sessions import Sessions
from runfold.encryption.sealing import Sealing, sealing_of
from runfold.erasure.erasures import Erasures
from runfold.generation.model import MemoryModel
from runfold.generation.service import Generation
from runfold.ingest.connection import Connection
from runfold.log.clients import LogClients
from runfold.permissions.owners import Owners
from runfold.query.dead_letters import DeadLetters
from runfold.query.operations import OperationsReader
from runfold.query.quarantine import QuarantineReader
from runfold.query.reading import Reading
from runfold.settings import Settings
from runfold_schemas.catalog import Life

VerbsT = TypeVar("VerbsT")


class ApiParts:
    """Use it as an async context manager. `model` replaces the language model that the settings
    name. The parts of a further tenant stand `beside` those of the installation's own, and use its
    connection to MongoDB, its models and these `clients` for Kafka.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        model: MemoryModel | None = None,
        beside: "ApiParts | None" = None,
        clients: LogClients | None = None,
    ) -> None:
        log, leaders = settings.log("runfold/ingest"), None if clients is None else clients.leaders
        self._sealing: Sealing | None = None
        if clients is not None and settings.encryption_key is not None:
            # One follower of the keys of each tenant is enough.
            self._sealing = sealing_of(log, clients.publisher, leaders=leaders)
        self.connection = Connection(log, clients=clients, sealing=self._sealing)
        self.reading: Reading = Reading(
            settings,
            beside=None if beside is None else beside.reading,
            leaders=leaders,
            sealing=self._sealing,
        )
        self.owners = _owners(self.connection, self.reading)
        self.quarantine = QuarantineReader(self.reading.stored_runs)
        self.dead_letters = DeadLetters(settings.log("runfold/query"), leaders=leaders)
        self.operations = OperationsReader(
            settings,
            installation=(beside or self).reading.stored_runs,
            stored=self.reading.stored_runs,
            ends=self.reading.log_ends,
            dead_letters=self.dead_letters,
        )
        self.sessions = _verbs_of(self.connection, self._new_sessions)
        self.memories = _verbs_of(self.connection, self._new_memories)
        self.generation: Generation = Generation(
            settings,
            runfold=self.connection.runfold,
            memories=self.memories,
            sessions=self.sessions,
            model=model if beside is None else beside.generation.model,
        )
        self.erasures = Erasures(settings, lambda: self.connection.runfold().connection)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._sealing is not None:
                await stack.enter_async_context(self._sealing.keys)
            for part in (self.connection, self.reading, self.generation, self.erasures):
                await stack.enter_async_context(part)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    @property
    def is_busy(self) -> bool:
        """Whether memories are being generated, or will be when their time comes, or a user is
        being erased.
        """
        return self.generation.is_busy or self.erasures.is_busy

    async def check_ready(self) -> list[str]:
        """Raises `UnavailableError`, or returns what does not work."""
        await self.connection.check()
        return await self.reading.check_ready()

    def _new_sessions(self, runfold: Runfold) -> Sessions:
        return Sessions(runfold.connection, self.reading.stored_sessions)

    def _new_memories(self, runfold: Runfold) -> Memories:
        reading = self.reading
        return Memories(runfold.connection, reading.stored_memories, similarity=reading.similarity)


def _owners(connection: Connection, reading: Reading) -> Owners:
    async def scope_of_memory(bank_id: str, memory_id: str) -> Mapping[str, str] | None:
        head = await reading.stored_memories.head(bank_id, memory_id)
        return head.scope if head is not None else None

    async def life(run_id: str) -> Life | None:
        return await connection.runfold().connection.catalog.lookup(run_id)

    return Owners(life, lambda: reading.stored_sessions, scope_of_memory)


def _verbs_of(connection: Connection, make: Callable[[Runfold], VerbsT]) -> Callable[[], VerbsT]:
    """A function that returns one client object for each connection, because the object remembers
    the runs that it opened. The function raises as `Connection.runfold` does.
    """
    made: list[tuple[Runfold, VerbsT]] = []

    def verbs() -> VerbsT:
        runfold = connection.runfold()
        if not made or made[0][0] is not runfold:
            made[:] = [(runfold, make(runfold))]
        return made[0][1]

    return verbs
