"""Reads of what several runs share: sessions, their state, memories and banks. An answer contains
every change that was acknowledged before the question.

The reader asks Kafka for the ends of the partitions that order these changes. Then it waits until
an edition has folded them up to there.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from runfold.encryption.hiding import hide_revision, hide_session, hide_values
from runfold.encryption.sealing import Sealing
from runfold.encryption.subjects import subject_of_session, user_subject
from runfold.log.partition_counts import check_folded
from runfold.log.shared import deciding, partitions_of
from runfold.query.log_ends import ConnectedEnds
from runfold.query.sealed_labels import check_filter
from runfold.query.stored_runs import StoredRuns
from runfold.query.waiting_readers import WaitingReaders
from runfold.store.edition import Edition
from runfold.store.progress import position_key
from runfold.store.quarantine import key_id_of
from runfold_projections.memory import MemoryRecord, Revision
from runfold_projections.session import SessionRecord
from runfold_projections.state import Value
from runfold_schemas.errors import QuarantinedError, UnavailableError
from runfold_schemas.topics import Partition, Topics

FoundT = TypeVar("FoundT")

_Positions = tuple[Edition, Mapping[Partition, int]]
"""An edition, and how far it has folded partitions."""


class SharedReader:
    def __init__(
        self,
        stored_runs: StoredRuns,
        log_ends: ConnectedEnds,
        waiting: WaitingReaders,
        *,
        wait_timeout_seconds: float,
    ) -> None:
        self.names = log_ends.names
        self._stored_runs = stored_runs
        self._log_ends = log_ends
        self._waiting = waiting
        self._wait_timeout_seconds = wait_timeout_seconds

    @property
    def sealing(self) -> Sealing | None:
        """Reveals what is sealed, if encryption is configured."""
        return self._stored_runs.sealing

    async def revealed_session(self, record: SessionRecord) -> SessionRecord:
        return hide_session(record) if self.sealing is None else await self.sealing.reveal_session(record)

    async def revealed_state(self, values: dict[str, Any], user: str) -> dict[str, Any]:
        """The values of the scopes that a user's sessions share."""
        if self.sealing is None:
            return hide_values(values)
        return await self.sealing.reveal_state(values, user_subject(user))

    async def revealed_own(self, values: dict[str, Value], record: SessionRecord) -> dict[str, Value]:
        """The session's own values."""
        if self.sealing is None:
            return values
        subject = subject_of_session(record.session_id, record.user)
        plain = {key: value.value for key, value in values.items()}
        clear = await self.sealing.reveal_state(plain, subject, record.run_id)
        return {key: value._replace(value=clear[key]) for key, value in values.items()}

    def check_filter(self, labels: Mapping[str, str]) -> None:
        """Raises `InvalidEventError` if lists cannot be filtered by these labels."""
        check_filter(self._stored_runs.log_settings, labels)

    def shown(self, values: dict[str, Any]) -> dict[str, Any]:
        """Revealed values. Without the key they are hidden."""
        return hide_values(values) if self.sealing is None else values

    async def revealed_memory(self, record: MemoryRecord) -> MemoryRecord:
        return record if self.sealing is None else await self.sealing.reveal_memory(record)

    async def revealed_revision(self, revision: Revision) -> Revision:
        return (
            hide_revision(revision) if self.sealing is None else await self.sealing.reveal_revision(revision)
        )

    async def edition_of_keys(self, *keys: str) -> Edition | None:
        """The edition with all changes under these keys so far; None if there never was any. Raises
        `QuarantinedError` if one of the keys is in quarantine.
        """
        suspected = [key for key in keys if self._stored_runs.may_be_quarantined(key_id_of(key))]
        if suspected and (edition := await self._stored_runs.current()) is not None:
            await refuse_quarantined(edition, suspected)
        return await self.edition_after(await self.deciding(keys))

    async def find(self, key: str, read: Callable[[Edition], Awaitable[FoundT | None]]) -> FoundT | None:
        """What `read` finds under a key in an edition with all its changes so far. Raises
        `QuarantinedError` if the key is in quarantine.
        """
        edition = await self.edition_of_keys(key)
        found = await read(edition) if edition else None
        if edition is None or found is not None:
            return found
        # Under a key that is folded anew there is nothing for a moment, and its quarantine lasts
        # longer than that.
        await refuse_quarantined(edition, [key])
        return await read(edition)

    async def topics(self) -> Topics:
        """The topics with their number of partitions. Raises `UnavailableError`, and
        `ConfigurationError` if MongoDB was folded from topics with another number.
        """
        topics = await self._log_ends.topics()
        check_folded(topics, self._stored_runs.folded_partitions)
        return topics

    async def deciding(self, keys: Iterable[str]) -> set[Partition]:
        """The partitions whose order decides what is changed under these keys. Raises
        `UnavailableError`.
        """
        topics = await self.topics()
        return {deciding(topics, key) for key in keys}

    async def edition_of_topic(self, topic: str) -> Edition | None:
        """The edition with all changes of this topic so far; None if there never was any."""
        return await self.edition_after(partitions_of(await self.topics(), topic))

    async def edition_after(self, partitions: Collection[Partition]) -> Edition | None:
        """The edition with all changes of these partitions so far; None if there never was any."""
        # Positions only grow, so those of now may be compared with ends that are known later.
        ends, positions = await asyncio.gather(self.ends(partitions), self._positions(partitions))
        edition = _folded_to(ends, positions)
        return edition if edition is not None else await self.edition_at(ends)

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset that the next record of each partition will get. A partition whose topic does
        not exist has no entry.
        """
        try:
            async with asyncio.timeout(self._wait_timeout_seconds):
                return await (await self._log_ends.get()).ends_of(set(partitions))
        except TimeoutError as error:
            raise UnavailableError(
                "Kafka", reason=f"no answer in {self._wait_timeout_seconds:g} s"
            ) from error

    async def edition_at(self, ends: Mapping[Partition, int]) -> Edition | None:
        """The edition that has folded these partitions up to these ends; None if the partitions
        are empty and nothing was ever projected.
        """

        async def look() -> Edition | None:
            return _folded_to(ends, await self._positions(ends))

        if not any(ends.values()):
            return await look()
        until = time.monotonic() + self._wait_timeout_seconds
        current = await self._stored_runs.current()
        keys = frozenset(map(position_key, ends))
        edition = await self._waiting.first(look, current, keys, until=until)
        if edition is None:
            topics = " and ".join(sorted({at.topic for at in ends}))
            raise UnavailableError(
                "The projector",
                reason=f"{topics} was not projected to its end within {self._wait_timeout_seconds:g} s",
            )
        return edition

    async def _positions(self, partitions: Collection[Partition]) -> list[_Positions]:
        return [
            (edition, await edition.shared_positions.positions(partitions))
            for edition in await self._stored_runs.editions()
        ]


def _folded_to(ends: Mapping[Partition, int], folded: Iterable[_Positions]) -> Edition | None:
    """The first edition that has folded these partitions up to these ends."""
    for edition, positions in folded:
        if all(positions.get(at, 0) >= end for at, end in ends.items()):
            return edition
    return None


async def refuse_quarantined(edition: Edition, keys: Iterable[str]) -> None:
    """Raises `QuarantinedError` if changes of one of the keys are not folded until an operator
    acts.
    """
    for entry in await asyncio.gather(*(edition.quarantine.get(key_id_of(key)) for key in keys)):
        if entry is not None:
            raise QuarantinedError(entry.id, offset=entry.offset, reason=entry.reason)
