"""Writes the verdicts of projectors: see `verdicts`."""

from collections.abc import Iterable, Sequence

from pydantic import BaseModel

from runfold.log.admin import LogAdmin
from runfold.log.leaders import Leaders
from runfold.log.publisher import Outgoing, Publisher
from runfold.log.settings import LogSettings
from runfold.log.verdicts import CATALOG, DELETED, Deletion, Verdicts
from runfold_schemas.catalog import Life
from runfold_schemas.topics import Partition


class VerdictLog:
    """Writes for one process. `verdicts` knows at once what it has written."""

    def __init__(
        self,
        settings: LogSettings,
        verdicts: Verdicts,
        *,
        admin: LogAdmin,
        publisher: Publisher,
        leaders: Leaders,
    ) -> None:
        self._topics = settings.topics
        self._verdicts = verdicts
        self._admin = admin
        self._publisher = publisher
        self._leaders = leaders
        self._exists = False

    async def delete(self, lives: Iterable[Life]) -> None:
        """Returns when it is durable that these lives are deleted."""
        deletions = [Deletion(run_id=life.run_id, log_id=life.log_id) for life in lives]
        await self._append([(_key_of(deletion), deletion) for deletion in deletions])
        for deletion in deletions:
            self._verdicts.add(deletion)

    async def require(self) -> None:
        """Has each claim of the catalog that is written from now on need a verdict."""
        await self._verdicts.read(self._leaders)
        catalog = [Partition(self._topics.catalog, number) for number in range(self._topics.partitions)]
        if begins := self._verdicts.new_begins(await self._leaders.ends(catalog)):
            await self._append([(CATALOG + str(begin.partition).encode(), begin) for begin in begins])
            await self._verdicts.read(self._leaders)

    async def _append(self, records: Sequence[tuple[bytes, BaseModel]]) -> None:
        if not records:
            return
        if not self._exists:
            # The first deletion of an installation makes the topic, because most have none.
            await self._admin.create_compacted_topic(self._topics.verdicts, {})
            self._exists = True
        acks = [
            await self._publisher.send(
                self._topics.verdicts, Outgoing(key=key, value=value.model_dump_json().encode())
            )
            for key, value in records
        ]
        for ack in acks:
            await self._publisher.wait(ack)


def _key_of(deletion: Deletion) -> bytes:
    """The key has the log too: compaction keeps the verdicts of all logs of a run."""
    return DELETED + f"{deletion.log_id}:{deletion.run_id}".encode()
