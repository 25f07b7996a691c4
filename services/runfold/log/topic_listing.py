"""One list of topics for all prefixes of a process: each list names all topics of Kafka, whosever
they are.
"""

import asyncio
import time
from typing import Final, NamedTuple

from runfold.log.driver import kafka_errors
from runfold.log.leaders import Leaders
from runfold.log.topic_list import topic_leaders
from runfold_schemas.topics import Partition, RunTopic, Topics, base_of

_FRESH_SECONDS: Final = 5.0
"""How long a list is used again. What is new since comes with the next sweep."""

_RUN: Final = ".run."


class RunTopics(NamedTuple):
    """The topics of runs of one prefix, by the names of the logs that they belong to."""

    logs: dict[str, RunTopic]
    leaders: dict[Partition, int]
    """The leaders of the topics that have one."""
    last: dict[str, str]
    """The last topic of each log that has a topic of a later segment."""

    @classmethod
    def none(cls) -> "RunTopics":
        return cls({}, {}, {})

    def add(self, topics: Topics, name: str, leader: int) -> None:
        """Adds a topic, if it is one of a run. One in whose name a hash stands for the run is left
        out, because only the catalog names the run.
        """
        segment = topics.parse_segment(name)
        if segment is None:
            return
        log = name if segment.base == 0 else topics.run(*segment.run)
        self.logs[log] = segment.run
        if segment.base > base_of(self.last.get(log, log)):
            self.last[log] = name
        if leader >= 0:
            self.leaders[Partition(name, 0)] = leader


class TopicListing:
    """The last list of topics, by prefix."""

    def __init__(self, leaders: Leaders) -> None:
        self._leaders = leaders
        self._listing = asyncio.Lock()
        self._names: dict[str, list[tuple[str, int]]] = {}
        self._listed_at = float("-inf")

    async def of(self, topics: Topics, *, timeout_seconds: float) -> RunTopics:
        """The topics of the runs of a prefix. Raises `UnavailableError`."""
        async with self._listing:
            if time.monotonic() - self._listed_at > _FRESH_SECONDS:
                await self._list(timeout_seconds)
        listed = RunTopics.none()
        for name, leader in self._names.get(topics.prefix, ()):
            listed.add(topics, name, leader)
        return listed

    async def _list(self, timeout_seconds: float) -> None:
        names: dict[str, list[tuple[str, int]]] = {}
        begun = time.monotonic()
        with kafka_errors():
            async with asyncio.timeout(timeout_seconds):
                async for name, leader in topic_leaders(self._leaders.client):
                    prefix, is_run, _ = name.partition(_RUN)
                    if is_run:
                        names.setdefault(prefix, []).append((name, leader))
        self._names, self._listed_at = names, begun
