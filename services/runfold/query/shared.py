"""Reads of what several runs share: sessions, their state, memories and banks. An answer contains
every change that was acknowledged before the question.

The reader asks Kafka for the ends of the partitions that order these changes. Then it waits until
an edition has folded them up to there.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Final, Self

from runfold.log.ends import LogEnds
from runfold.log.settings import LogSettings
from runfold.log.shared import deciding, partitions_of
from runfold.query.stored_runs import StoredRuns
from runfold.store.edition import Edition
from runfold_schemas.errors import UnavailableError
from runfold_schemas.topics import Partition, Topics

_POLL_SECONDS: Final = 0.002
_POLL_SECONDS_MAX: Final = 0.020


class SharedReader:
    """Use it as an async context manager. It connects to Kafka on first use."""

    def __init__(
        self, stored_runs: StoredRuns, settings: LogSettings, *, wait_timeout_seconds: float
    ) -> None:
        self.topics = Topics(settings.prefix)
        self._stored_runs = stored_runs
        self._settings = settings
        self._wait_timeout_seconds = wait_timeout_seconds
        self._connecting = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._log_ends: LogEnds | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def edition_of_keys(self, *keys: str) -> Edition | None:
        """The edition with all changes under these keys so far; None if there never was any."""
        return await self.edition_at(await self.ends(deciding(self.topics, key) for key in keys))

    async def edition_of_topic(self, topic: str) -> Edition | None:
        """The edition with all changes of this topic so far; None if there never was any."""
        return await self.edition_at(await self.ends(partitions_of(topic)))

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset that the next record of each partition will get. A partition whose topic does
        not exist has no entry.
        """
        try:
            async with asyncio.timeout(self._wait_timeout_seconds):
                return await (await self._connected()).ends_of(set(partitions))
        except TimeoutError as error:
            raise UnavailableError(
                "Kafka", reason=f"no answer in {self._wait_timeout_seconds:g} s"
            ) from error

    async def edition_at(self, ends: Mapping[Partition, int]) -> Edition | None:
        """The edition that has folded these partitions up to these ends; None if the partitions
        are empty and nothing was ever projected.
        """
        until, pause = time.monotonic() + self._wait_timeout_seconds, _POLL_SECONDS
        while True:
            for edition in await self._stored_runs.editions():
                positions = await edition.shared_positions.positions(ends)
                if all(positions.get(at, 0) >= end for at, end in ends.items()):
                    return edition
            if not any(ends.values()):
                return None
            if time.monotonic() > until:
                topics = " and ".join(sorted({at.topic for at in ends}))
                raise UnavailableError(
                    "The projector",
                    reason=f"{topics} was not projected to its end within {self._wait_timeout_seconds:g} s",
                )
            await asyncio.sleep(pause)
            pause = min(1.2 * pause, _POLL_SECONDS_MAX)

    async def _connected(self) -> LogEnds:
        async with self._connecting:
            if self._log_ends is None:
                self._log_ends = await self._stack.enter_async_context(
                    LogEnds.connect(self._settings, timeout_seconds=self._wait_timeout_seconds)
                )
            return self._log_ends
