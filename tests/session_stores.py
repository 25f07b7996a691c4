"""What projectors that are processes have stored of sessions, held against the log."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID

from tests.killing import FOLDED_SECONDS
from tests.partitions import topics_of
from tests.session_verbs import WAYS, opened

from runfold.client.session import SessionVerbs
from runfold.local import Service
from runfold.log.ends import LogEnds
from runfold.log.shared import shared_partitions
from runfold.settings import Settings
from runfold.store.database import Database, connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.store.state import own_scope
from runfold.verify.memories import verify_memories
from runfold.verify.runs import verify
from runfold.verify.sessions import verify_sessions


class Stored:
    """What the projectors have stored in the edition that is read."""

    def __init__(self, settings: Settings, database: Database, edition: str) -> None:
        self._log = settings.log()
        self._database = database
        self.edition = edition
        self.stores = Edition.of(database, edition)
        self.pages, self.runs = self.stores.pages, self.stores.runs
        self.sessions, self.values = self.stores.sessions, self.stores.values

    async def seen(self) -> int:
        return int(await self._database[f"seen.{self.edition}"].count_documents({}))

    async def has_only(self, run_ids: Collection[str]) -> bool:
        """Whether there are no pages and no values of other sessions' runs than these."""
        log_ids = [UUID(run_id).hex for run_id in run_ids]  # a session's own run is named after its log
        pages = self._database[f"pages.{self.edition}"]
        scopes = {own_scope(log_id) for log_id in log_ids}
        return not await pages.count_documents({"log_id": {"$nin": log_ids}}) and not any(
            one.scope.startswith(own_scope("")) and one.scope not in scopes for one in await self.values.all()
        )

    async def differences(self) -> list[Any]:
        found: list[Any] = []
        async for _, of_run in verify(self._log, self.stores, wait_seconds=FOLDED_SECONDS):
            found += of_run
        found += (await verify_sessions(self._log, self.stores, wait_seconds=FOLDED_SECONDS))[1]
        return found + (await verify_memories(self._log, self.stores, wait_seconds=FOLDED_SECONDS))[1]


@asynccontextmanager
async def stored(settings: Settings) -> AsyncIterator[Stored]:
    async with connect(settings.mongo, settings.database) as database:
        yield Stored(settings, database, await Editions(database).current_or_first())


@asynccontextmanager
async def at_work(workers: Sequence[Service]) -> AsyncIterator[None]:
    async with stopping(workers):
        await asyncio.gather(*(worker.start() for worker in workers))
        yield


@asynccontextmanager
async def stopping(workers: Sequence[Service]) -> AsyncIterator[None]:
    """Stops the workers at the end of the block."""
    try:
        yield
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))


@asynccontextmanager
async def all_ways(settings: Settings) -> AsyncIterator[dict[str, SessionVerbs]]:
    async with AsyncExitStack() as stack:
        yield {way: await stack.enter_async_context(opened(way, settings)) for way in WAYS}


async def shared_ends(settings: Settings) -> dict[Any, int]:
    async with LogEnds.connect(settings.log()) as ends:
        return await ends.ends_of(shared_partitions(topics_of(settings.prefix)))


async def only_topics_of(settings: Settings, run_ids: set[str]) -> bool:
    async with LogEnds.connect(settings.log()) as ends:
        return {topic.run_id for topic in (await ends.run_topics()).values()} == run_ids
