"""The folds of the shared topics in a worker. A worker folds the partitions with the same numbers
as its partitions of the catalog.

    fetched records --> dead letters --> the topic's fold, and seen events --> heads, position

A crash between two steps repeats work and loses nothing, and so does a second owner of the
partition, because each write replaces only older data.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from runfold.log.shared import Keyed, decided_event, partitions_of
from runfold.log.tail import FetchedRecords, Tail
from runfold.projector.writer import Writer
from runfold.store.shared_positions import SeenEvent, SharedPositionStore
from runfold_projections.admission import Admitted
from runfold_projections.memory import HeadAt
from runfold_schemas.errors import UndecodableError
from runfold_schemas.topics import Partition


class TopicFold(Protocol):
    """The fold of one shared topic."""

    async def load(self, events: Sequence[Keyed]) -> Any:
        """The stored data that these events may change."""

    async def take(self, events: Sequence[Keyed], stored: Any) -> Mapping[str, HeadAt]:
        """Folds events of one partition that count, in their order, onto the stored data, and
        writes the result. Only the returned heads are left to be saved with the position.
        """


class SharedTopics:
    """Follows the shared topics. In a rebuild, `previous` is the store of the edition before this
    one. Its owners have already written dead letters for the records up to its positions.
    """

    def __init__(
        self,
        tail: Tail,
        writer: Writer,
        positions: SharedPositionStore,
        folds: Mapping[str, TopicFold],
        *,
        previous: SharedPositionStore | None = None,
    ) -> None:
        self._tail = tail
        self._writer = writer
        self._positions = positions
        self._folds = folds
        self._previous = previous

    async def follow(self, partitions: Collection[int]) -> None:
        """Follows the partitions with these numbers, and no other."""
        positions = await self._positions.positions()
        for topic in self._folds:
            for at in partitions_of(topic):
                if at.partition not in partitions:
                    self._tail.unfollow(at)
                elif at not in self._tail:
                    self._tail.follow(at, positions.get(at, 0))

    async def work(self) -> None:
        """Endless. While the records of one fetch are written, the next fetch is under way."""
        async with asyncio.TaskGroup() as tasks:
            taking: asyncio.Task[None] | None = None
            async for fetch in self._tail.fetches():
                if fetch:
                    if taking is not None:
                        await taking
                    taking = tasks.create_task(self._take_all(fetch))

    async def _take_all(self, parts: Sequence[FetchedRecords]) -> None:
        """Folds and writes the records of a fetch. Partitions are independent of each other."""
        async with asyncio.TaskGroup() as tasks:
            for part in parts:
                tasks.create_task(self._take(part))

    async def _take(self, part: FetchedRecords) -> None:
        keyed, undecodable = _decode(part)
        await self._bury(part.partition, undecodable)
        heads = await self._fold(self._folds[part.partition.topic], keyed) if keyed else None
        await self._positions.save_position(part.partition, part.next_offset, heads)

    async def _fold(self, fold: TopicFold, keyed: Sequence[Keyed]) -> Mapping[str, HeadAt]:
        firsts, stored = await asyncio.gather(
            self._positions.firsts([SeenEvent(each.key, each.event.event_id, each.offset) for each in keyed]),
            fold.load(keyed),
        )
        counting = [each for each in keyed if firsts[each.key, each.event.event_id] == each.offset]
        # A worker that begins at a position relies on the events before it being saved as seen, and
        # on nothing after it.
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._positions.note(firsts))
            taking = tasks.create_task(fold.take(counting, stored)) if counting else None
        return taking.result() if taking else {}

    async def _bury(self, at: Partition, undecodable: Sequence[Admitted]) -> None:
        if undecodable:
            buried = (await self._previous.positions()).get(at, 0) if self._previous else 0
            name = f"{at.topic}-{at.partition}"
            await self._writer.bury([(name, bad) for bad in undecodable if bad.record.offset >= buried])


def _decode(part: FetchedRecords) -> tuple[list[Keyed], list[Admitted]]:
    keyed: list[Keyed] = []
    undecodable: list[Admitted] = []
    for record in part.records:
        try:
            keyed.append(decided_event(record, part.partition))
        except UndecodableError as error:
            undecodable.append(Admitted(record, "undecodable", None, error.reason))
    return keyed, undecodable
