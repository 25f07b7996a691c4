"""Folds events of a shared topic, and finds the key that cannot be folded.

Events of a key in quarantine are held back: they are noted as seen, so that no run forwards them
again, and folded when an operator has the key tried again.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from runfold.log.shared import Keyed
from runfold.projector.quarantine import Quarantine, defect, reason_of
from runfold.store.shared_positions import SeenEvent, SharedPositionStore
from runfold_projections.memory import HeadAt
from runfold_schemas.topics import Partition

_log = logging.getLogger(__name__)


class TopicFold(Protocol):
    """The fold of one shared topic."""

    async def load(self, events: Sequence[Keyed]) -> Any:
        """The stored data that these events may change."""

    async def take(self, events: Sequence[Keyed], stored: Any) -> Mapping[str, HeadAt]:
        """Folds events of one partition that count, in their order, onto the stored data, and
        writes the result. Only the returned heads are left to be saved with the position.
        """

    async def reset(self, key: str) -> None:
        """Removes everything that was folded under a key, because its events are folded anew."""


class KeyFolds:
    """The folds of all shared topics, by topic."""

    def __init__(
        self, positions: SharedPositionStore, folds: Mapping[str, TopicFold], quarantine: Quarantine
    ) -> None:
        self.topics = list(folds)
        self._positions = positions
        self._folds = folds
        self._quarantine = quarantine

    async def fold(self, at: Partition, events: Sequence[Keyed]) -> Mapping[str, HeadAt]:
        """Folds events of one partition. Returns the heads to be saved with the position. If an
        error arises, the keys that cause it are set aside and all others are stored.
        """
        try:
            return await self._fold(at, events)
        except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
            defect(error)
        await self.fold_by_key(at, events)
        return {}

    async def fold_by_key(self, at: Partition, events: Sequence[Keyed]) -> None:
        """Folds and stores events of one partition, and sets aside the keys that cannot be."""
        by_key: dict[str, list[Keyed]] = {}
        for each in events:
            by_key.setdefault(each.key, []).append(each)
        await self._fold_keys(at, list(by_key.values()))

    async def fold_in_order(self, at: Partition, events: Sequence[Keyed], *, retried: bool = False) -> bool:
        """Folds and stores events of one key; with `retried` also of a key in quarantine. At an
        event that cannot be folded the key is set aside. Returns whether all of them were folded.
        """
        try:
            await self._store(at, events, retried=retried)
        except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
            fault = defect(error)
        else:
            return True
        if len(events) > 1:
            half = len(events) // 2
            first, second = events[:half], events[half:]
            if await self.fold_in_order(at, first, retried=retried):
                return await self.fold_in_order(at, second, retried=retried)
            await self._note(second)
            return False
        trace = await self._quarantine.loggable(fault)
        _log.error("key %s cannot be folded", events[0].key, exc_info=trace)
        await self._quarantine.set_aside_key(events[0].key, at, events[0].offset, reason_of(fault))
        return False

    async def reset(self, at: Partition, key: str) -> None:
        """Removes everything that was folded under a key, because its events are folded anew."""
        await self._folds[at.topic].reset(key)

    async def _fold_keys(self, at: Partition, groups: Sequence[Sequence[Keyed]]) -> None:
        if len(groups) == 1:
            await self.fold_in_order(at, groups[0])
            return
        try:
            events = [each for group in groups for each in group]
            await self._store(at, sorted(events, key=lambda each: each.offset))
        except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
            defect(error)
            half = len(groups) // 2
            await self._fold_keys(at, groups[:half])
            await self._fold_keys(at, groups[half:])

    async def _store(self, at: Partition, events: Sequence[Keyed], *, retried: bool = False) -> None:
        await self._positions.save_heads(await self._fold(at, events, retried=retried))

    async def _fold(
        self, at: Partition, events: Sequence[Keyed], *, retried: bool = False
    ) -> Mapping[str, HeadAt]:
        fold = self._folds[at.topic]
        free = [each for each in events if retried or not self._quarantine.has_key(at, each.key)]
        firsts, stored = await asyncio.gather(self._positions.firsts(_seen(events)), fold.load(free))
        counting = [each for each in free if firsts[each.key, each.event.event_id] == each.offset]
        # A worker that begins at a position relies on the events before it being saved as seen, and
        # on nothing after it.
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._positions.note(firsts))
            taking = tasks.create_task(fold.take(counting, stored)) if counting else None
        return taking.result() if taking else {}

    async def _note(self, events: Sequence[Keyed]) -> None:
        await self._positions.note(await self._positions.firsts(_seen(events)))


def _seen(events: Sequence[Keyed]) -> list[SeenEvent]:
    return [SeenEvent(each.key, each.event.event_id, each.offset) for each in events]
