"""Reads all of Runfold's topics under a prefix, record by record as they are."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Self

from runfold.log.admin import LogAdmin
from runfold.log.fetch_answer import FetchedRecords
from runfold.log.leaders import Leaders
from runfold.log.partition_counts import partition_counts
from runfold.log.reader import read_fetches
from runfold.log.restored_topics import configs_of
from runfold.log.settings import LogSettings
from runfold_schemas.topics import Partition

_AT_ONCE: Final = 500
"""Topics in one request."""


class CopiedPartition(NamedTuple):
    """A partition, and its end when the copy began."""

    at: Partition
    end: int


class TopicReader:
    """The topics of a prefix, over connections that are open for the length of `connect`."""

    def __init__(self, settings: LogSettings, admin: LogAdmin, leaders: Leaders) -> None:
        self._settings = settings
        self._admin = admin
        self._leaders = leaders

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: LogSettings) -> AsyncIterator[Self]:
        async with LogAdmin.connect(settings) as admin, Leaders.connect(settings) as leaders:
            yield cls(settings, admin, leaders)

    async def topics(self) -> list[str]:
        """The names, those of runs last: what a run has changed elsewhere can be applied again, and
        a run that others refer to is never missing.
        """
        names = await self._admin.list_topics()
        run_prefix = self._settings.topics.run_prefix
        return sorted(names, key=lambda name: (name.startswith(run_prefix), name))

    async def partitions(self, topics: Iterable[str]) -> Mapping[str, int]:
        """The number of partitions of each topic that still exists."""
        counts: dict[str, int] = {}
        names = list(topics)
        for first in range(0, len(names), _AT_ONCE):
            counts |= await partition_counts(self._leaders.client, names[first : first + _AT_ONCE])
        return counts

    async def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings of the topics that are not of runs, which all have the same."""
        run_prefix = self._settings.topics.run_prefix
        return await configs_of(self._admin, [name for name in topics if not name.startswith(run_prefix)])

    async def ends(self, counts: Mapping[str, int]) -> list[CopiedPartition]:
        """All partitions of these topics with their present ends."""
        places = [Partition(name, number) for name, count in counts.items() for number in range(count)]
        ends = await self._leaders.ends(places)
        return [CopiedPartition(at, ends[at]) for at in places if at in ends]

    async def records(self, copied: CopiedPartition) -> AsyncIterator[FetchedRecords]:
        """The records of a partition up to its end. Raises `LogGoneError` if the topic is gone."""
        async for fetched in read_fetches(self._settings, copied.at, end=copied.end, leaders=self._leaders):
            yield fetched
