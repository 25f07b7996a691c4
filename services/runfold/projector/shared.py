"""What a worker folds of the topics that runs share: the partitions of the same numbers as its
partitions of the catalog.

    slice --> dead letters --> the topic's fold, and which events have come --> heads, position

A crash between any two repeats work and loses nothing, and so does another owner of the partition
that is still at work: everything is written over what is older only.
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
    """What is folded of one of the topics."""

    async def load(self, events: Sequence[Keyed]) -> Any:
        """What there is already of all that these events may change."""

    async def take(self, events: Sequence[Keyed], stored: Any) -> Mapping[str, HeadAt]:
        """Folds events of one partition that count, in their order, onto what stands, and writes
        what they make: all but the heads that it gives, which belong to the position.
        """


class SharedTopics:
    """`previous` is the store of the edition before this one, in a rebuild: what it has folded was
    buried already.
    """

    def __init__(
        self,
        tail: Tail,
        writer: Writer,
        decided: SharedPositionStore,
        folds: Mapping[str, TopicFold],
        *,
        previous: SharedPositionStore | None = None,
    ) -> None:
        self._tail = tail
        self._writer = writer
        self._decided = decided
        self._folds = folds
        self._previous = previous

    async def follow(self, partitions: Collection[int]) -> None:
        """The partitions of these numbers from now on, and no other."""
        positions = await self._decided.positions()
        for topic in self._folds:
            for at in partitions_of(topic):
                if at.partition not in partitions:
                    self._tail.unfollow(at)
                elif at not in self._tail:
                    self._tail.follow(at, positions.get(at, 0))

    async def work(self) -> None:
        """Endless: while one batch is written, the next is fetched."""
        async with asyncio.TaskGroup() as tasks:
            taking: asyncio.Task[None] | None = None
            async for fetch in self._tail.fetches():
                if fetch:
                    if taking is not None:
                        await taking
                    taking = tasks.create_task(self._take_all(fetch))

    async def _take_all(self, parts: Sequence[FetchedRecords]) -> None:
        """Folds what a fetch brought, and writes it. Partitions know nothing of each other."""
        async with asyncio.TaskGroup() as tasks:
            for part in parts:
                tasks.create_task(self._take(part))

    async def _take(self, part: FetchedRecords) -> None:
        keyed, undecodable = _decoded(part)
        await self._bury(part.partition, undecodable)
        heads = await self._fold(self._folds[part.partition.topic], keyed) if keyed else None
        await self._decided.save_position(part.partition, part.next_offset, heads)

    async def _fold(self, fold: TopicFold, keyed: Sequence[Keyed]) -> Mapping[str, HeadAt]:
        firsts, stored = await asyncio.gather(
            self._decided.firsts([SeenEvent(one.key, one.event.event_id, one.offset) for one in keyed]),
            fold.load(keyed),
        )
        counting = [one for one in keyed if firsts[one.key, one.event.event_id] == one.offset]
        # Whoever begins at a position relies on everything before it being noted, and on nothing
        # behind it.
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._decided.note(firsts))
            taking = tasks.create_task(fold.take(counting, stored)) if counting else None
        return taking.result() if taking else {}

    async def _bury(self, at: Partition, undecodable: Sequence[Admitted]) -> None:
        if undecodable:
            told = (await self._previous.positions()).get(at, 0) if self._previous else 0
            name = f"{at.topic}-{at.partition}"
            await self._writer.bury([(name, bad) for bad in undecodable if bad.record.offset >= told])


def _decoded(part: FetchedRecords) -> tuple[list[Keyed], list[Admitted]]:
    keyed: list[Keyed] = []
    undecodable: list[Admitted] = []
    for record in part.records:
        try:
            keyed.append(decided_event(record, part.partition))
        except UndecodableError as error:
            undecodable.append(Admitted(record, "undecodable", None, error.reason))
    return keyed, undecodable
