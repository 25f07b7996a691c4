"""Opens the next topic of a log that was sealed, for publishers."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple

from runfold.log.admin import LogAdmin
from runfold.log.archived_logs import NoArchiveError
from runfold.log.catalog import bell_record, partition_of
from runfold.log.catalog_view import CatalogView
from runfold.log.publisher import Outgoing, Publisher
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold_schemas.archive_errors import ArchiveDamagedError
from runfold_schemas.catalog import Segments
from runfold_schemas.codec import Headers
from runfold_schemas.topics import RunTopic

_PAUSE_SECONDS, _PAUSE_MAX_SECONDS = 0.01, 0.5
"""The pauses until the catalog is asked again: an archiver announces the base right after it has
sealed the topic.
"""


class _Content(NamedTuple):
    """What a record has from its sender. An event has an id, so no two events have the same."""

    key: bytes | None
    value: bytes | None
    headers: Headers


class CatalogReopener:
    """Opens topics by the entries of the catalog."""

    def __init__(
        self, settings: LogSettings, *, catalog: CatalogView, admin: LogAdmin, publisher: Publisher
    ) -> None:
        self._settings = settings
        self._topics = settings.topics
        self._catalog = catalog
        self._admin = admin
        self._publisher = publisher

    async def is_moved(self, log: str, base: int) -> bool:
        """Whether the log goes on behind the topic of this base, by the catalog as it is now."""
        run = self._topics.parse_run(log)
        return run is not None and await self._entry_behind(run, base) is not None

    async def next_topic(self, log: str, base: int) -> str:
        """Creates the topic that follows the one of this base, wakes the projector, and returns the
        topic's name. It waits for the entry of the catalog, so call it with a deadline.
        """
        run = self._topics.parse_run(log)
        assert run is not None
        pause = _PAUSE_SECONDS
        while (entry := await self._entry_behind(run, base)) is None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_SECONDS)
        topic = self._topics.segment(run.run_id, run.log_id, entry.base)
        await self._admin.create_run_topic(topic)
        await self._publisher.send(
            self._topics.catalog, bell_record(run.run_id), partition=partition_of(self._topics, run.run_id)
        )
        return topic

    async def find(self, log: str, base: int, firsts: Sequence[Outgoing]) -> list[int | None]:
        """The offsets of these records in the log from `base` on. None for a record that the log
        does not have, as far as the process can read it.
        """
        offsets: dict[_Content, int] = {}
        reading = read(self._settings, log, first_offset=base, segments=self._catalog.segments)
        contents = [_Content(each.key, each.value, tuple(each.headers)) for each in firsts]
        wanted = frozenset(contents)
        with suppress(NoArchiveError, ArchiveDamagedError):
            async with aclosing(reading) as batches:
                async for records in batches:
                    for record in records:
                        content = _Content(record.key, record.value, record.headers)
                        if content in wanted:
                            offsets.setdefault(content, record.offset)
        return [offsets.get(each) for each in contents]

    async def _entry_behind(self, run: RunTopic, base: int) -> Segments | None:
        entry = await self._catalog.look_up_segments(run.run_id)
        if entry is None or entry.log_id != run.log_id:
            return None
        self._catalog.segments.take(entry)
        return entry if entry.base > base else None
