"""Deletes the data of deleted runs: pages, values, blobs and topics."""

import asyncio
import logging
from collections.abc import Collection, Sequence

from runfold.blobs.store import BlobStore
from runfold.log.admin import LogAdmin
from runfold.log.tail import Tail
from runfold.projector.quarantine import defect
from runfold.projector.stuck import Steps
from runfold.projector.writer import Writer
from runfold.store.edition import Edition
from runfold_schemas.errors import UnavailableError
from runfold_schemas.topics import Partition, RunTopic, Topics

_CLEARING_MAX = 100

_log = logging.getLogger(__name__)


class Clearing:
    """The deleted runs of one worker whose data is still there."""

    def __init__(
        self,
        topics: Topics,
        admin: LogAdmin,
        tail: Tail,
        writer: Writer,
        *,
        stores: Edition,
        blobs: BlobStore | None,
        steps: Steps,
    ) -> None:
        self._topics = topics
        self._admin = admin
        self._tail = tail
        self._writer = writer
        self._pages = stores.pages
        self._runs = stores.runs
        self._segments = stores.segments
        self._blobs = blobs
        self._steps = steps
        self._deleted: asyncio.Queue[RunTopic] = asyncio.Queue()

    def add(self, run: RunTopic) -> None:
        """Has the run's data deleted."""
        self._deleted.put_nowait(run)

    async def work(self) -> None:
        """Endless: deletes the data of deleted runs. Their topics are last, so that the sweep finds
        the runs again if this worker dies.
        """
        while True:
            runs = [await self._deleted.get()]
            while not self._deleted.empty() and len(runs) < _CLEARING_MAX:
                runs.append(self._deleted.get_nowait())
            try:
                await self._steps.run(self._clear(runs))
            except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                _log.error("deleted runs could not be cleared; a sweep finds them", exc_info=defect(error))

    async def _clear(self, runs: Sequence[RunTopic]) -> None:
        for run in runs:  # the tail must not ask for a topic that is deleted
            self._tail.unfollow(Partition(self._topics.run(*run), 0))
        # The writer forgets the runs first. It deletes again what it is writing just now.
        log_ids = {run.log_id for run in runs}
        unshared = log_ids - await self._logs_of_others(log_ids)
        await self._writer.forget(sorted(unshared))
        # While the writer was busy, another run with one of these log ids may have been stored.
        unshared -= await self._logs_of_others(unshared)
        await self._pages.delete_logs(sorted(unshared))
        if await self._delete_blobs(sorted(unshared)):
            await self._delete_topics(runs)
            # A client may have stored a blob in between. From now on its append fails, and then the
            # client deletes the blob itself.
            await self._delete_blobs(sorted(unshared))

    async def _delete_topics(self, runs: Sequence[RunTopic]) -> None:
        sealed = await self._segments.get([run.run_id for run in runs])
        topics, reopened = {self._topics.run(*run) for run in runs}, set[str]()
        for run in runs:
            entry = sealed.get(run.run_id)
            if entry is not None and entry.log_id == run.log_id:
                bases = {entry.base, entry.sealed_base or 0}
                topics |= {self._topics.segment(*run, base) for base in bases}
                reopened.add(self._topics.segment(*run, entry.base).rpartition(".")[0])
        if reopened:  # a log that was reopened twice may have more topics than its entry names
            existing = await self._admin.list_run_topics()
            topics |= {name for name in existing if name.rpartition(".")[0] in reopened}
        await self._admin.delete_topics(sorted(topics))

    async def _delete_blobs(self, log_ids: Sequence[str]) -> bool:
        """Whether the logs have no blobs any more. If the blob store is away, the topics stay, and
        the next sweep finds the runs again.
        """
        try:
            if self._blobs is not None:
                await self._blobs.delete_logs(log_ids)
        except UnavailableError as error:
            _log.warning("the blobs of deleted runs stay until the next sweep: %s", error)
            return False
        return True

    async def _logs_of_others(self, log_ids: Collection[str]) -> set[str]:
        """Those of these log ids under which the data of another run is stored. Any program may
        write a life with the log id of a healthy run to the catalog, and delete this life.

        A life that has neither events nor a topic has no data, so that it cannot keep the data of a
        deleted run.
        """
        others = await self._runs.with_logs(log_ids)
        # A state is saved after the pages, so a position of 0 does not mean that there is no data.
        existing = await self._admin.list_run_topics() if 0 in others.values() else []
        return {
            run.log_id
            for run, position in others.items()
            if position > 0 or self._topics.run(*run) in existing
        }
