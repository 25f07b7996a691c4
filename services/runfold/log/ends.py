"""Reads which runs have a topic, and the ends of many logs at once."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager

from aiokafka.errors import KafkaError

from runfold.log.driver import kafka_errors
from runfold.log.leaders import EARLIEST, LATEST, Leaders
from runfold.log.segments import SegmentBook
from runfold.log.settings import LogSettings
from runfold.log.topic_list import topic_leaders
from runfold.log.topic_listing import RunTopics, TopicListing
from runfold_schemas.topics import Partition, RunTopic, base_of


class LogEnds:
    """Reads the topics of runs and the ends of partitions. Concurrent calls share requests."""

    def __init__(
        self,
        settings: LogSettings,
        leaders: Leaders,
        *,
        timeout_seconds: float,
        listing: TopicListing | None = None,
    ) -> None:
        """With `listing`, the list of topics is that of all prefixes of the process."""
        self._listing = listing
        self._topics = settings.topics
        self.leaders = leaders
        self._timeout_seconds = timeout_seconds
        self._listed: dict[Partition, int] = {}
        """The leaders in the last list of topics, each until its partition is looked at: they may
        be more than `leaders` remembers.
        """
        self._last: dict[str, str] = {}
        """The last topics of logs with several segments, in that list."""

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        settings: LogSettings,
        *,
        timeout_seconds: float | None = None,
        leaders: Leaders | None = None,
        segments: SegmentBook | None = None,
    ) -> AsyncIterator["LogEnds"]:
        """A reader of ends, open for the length of the block, over the client of `leaders` if
        given. `leaders` or `segments` know the logs that lie in later segments. Each call returns
        within `timeout_seconds` (by default the publish timeout) or raises `UnavailableError`.
        """
        seconds = timeout_seconds or settings.publish_timeout_seconds
        if leaders is not None:
            yield cls(settings, leaders, timeout_seconds=seconds)
            return
        async with Leaders.connect(settings, timeout_seconds=seconds, segments=segments) as own:
            yield cls(settings, own, timeout_seconds=seconds)

    async def run_topics(self) -> dict[str, RunTopic]:
        """The logs of runs that have a topic, by the names of their first topics, each with its run
        and life. Raises `UnavailableError`.
        """
        if self._listing is not None:
            listed = await self._listing.of(self._topics, timeout_seconds=self._timeout_seconds)
        else:
            listed = RunTopics.none()
            with kafka_errors():
                async with asyncio.timeout(self._timeout_seconds):
                    async for name, leader in topic_leaders(self.leaders.client):
                        listed.add(self._topics, name, leader)
        self._listed, self._last = listed.leaders, listed.last
        return listed.logs

    async def ends(self, topics: Iterable[str]) -> dict[str, int]:
        """The offset that the next record of each run will get, by the topic of its first segment,
        0 for a missing topic. Raises `UnavailableError`.
        """
        partitions = [Partition(topic, 0) for topic in topics]
        ends = await self.ends_of(partitions)
        return {at.topic: ends.get(at, 0) for at in partitions}

    async def ends_of(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The offset that the next record of each partition will get. Partitions of missing topics
        are left out. Raises `UnavailableError`.
        """
        last = {at: self._last_of(at) for at in partitions}
        listed = {at: self._listed.pop(at) for at in last.values() if at in self._listed}
        self.leaders.note_leaders(listed)
        with kafka_errors():
            async with asyncio.timeout(self._timeout_seconds):
                return self._of_logs(last, await self.leaders.ends([*last.values()]))

    async def count(self, partition: Partition) -> int:
        """The number of offsets that the partition keeps, 0 if its topic is missing. Raises
        `UnavailableError`.
        """
        end = (await self.ends_of([partition])).get(partition)
        if end is None or self.leaders.entry(partition) is not None:
            return end or 0
        with kafka_errors():
            async with asyncio.timeout(self._timeout_seconds):
                return end - (await self.leaders.offsets([partition], EARLIEST))[partition]

    async def look(self, partitions: Collection[Partition]) -> tuple[dict[Partition, int], set[Partition]]:
        """The offsets that the next records of these partitions will get, and the partitions whose
        broker does not answer. Partitions of missing topics are in neither.
        """
        last = {at: self._last_of(at) for at in partitions}
        try:
            async with asyncio.timeout(self._timeout_seconds):
                search = await self.leaders.look([*last.values()], LATEST)
        except (KafkaError, TimeoutError):
            return {}, set(partitions)
        answered = {at for at in partitions if last[at] in search.offsets or last[at] in search.missing}
        return self._of_logs(last, search.offsets, missing=search.missing), set(partitions) - answered

    def _last_of(self, at: Partition) -> Partition:
        """The last topic of a log, which may not exist."""
        known = self.leaders.last(at)
        listed = self._last.get(at.topic)
        return known if listed is None or base_of(listed) < base_of(known.topic) else Partition(listed, 0)

    def _of_logs(
        self,
        last: Mapping[Partition, Partition],
        ends: Mapping[Partition, int],
        *,
        missing: Collection[Partition] | None = None,
    ) -> dict[Partition, int]:
        """The ends of logs by those of their last topics. An archived log that was not reopened
        has no last topic.
        """
        of_logs: dict[Partition, int] = {}
        for at, place in last.items():
            if place in ends:
                of_logs[at] = ends[place]
            elif (missing is None or place in missing) and (entry := self.leaders.entry(at)) is not None:
                of_logs[at] = entry.end
        return of_logs
