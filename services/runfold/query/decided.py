"""Reading what the topics that runs share decide: nothing older than what was acknowledged before
it was asked for.

Kafka is asked how far the partitions reach that decide an answer; then the answer waits until as
much is folded.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Final, Self

from runfold.log.ends import LogEnds
from runfold.log.settings import LogSettings
from runfold.log.shared import deciding, partitions_of
from runfold.query.snapshots import Snapshots
from runfold.store.edition import Edition
from runfold_schemas.errors import UnavailableError
from runfold_schemas.topics import Partition, Topics

_POLL_SECONDS: Final = 0.002
_POLL_SECONDS_MAX: Final = 0.020


class DecidedReader:
    """Use it as an async context manager; it connects to Kafka when it is first asked."""

    def __init__(self, snapshots: Snapshots, settings: LogSettings, *, wait_timeout_seconds: float) -> None:
        self.topics = Topics(settings.prefix)
        self._snapshots = snapshots
        self._settings = settings
        self._wait_timeout_seconds = wait_timeout_seconds
        self._connecting = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._log_ends: LogEnds | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def of_keys(self, *keys: str) -> Edition | None:
        """The edition that has all that was said under these keys so far; None if nothing was ever
        there to fold.
        """
        return await self.folded(await self.ends(deciding(self.topics, key) for key in keys))

    async def all_of(self, topic: str) -> Edition | None:
        """The edition that has all that this topic has so far; None if nothing was ever there to
        fold.
        """
        return await self.folded(await self.ends(partitions_of(topic)))

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset that the next record of each partition will get; nothing of one whose topic
        does not exist.
        """
        try:
            async with asyncio.timeout(self._wait_timeout_seconds):
                return await (await self._connected()).ends_of(set(partitions))
        except TimeoutError as error:
            raise UnavailableError(
                "Kafka", reason=f"no answer in {self._wait_timeout_seconds:g} s"
            ) from error

    async def folded(self, ends: Mapping[Partition, int]) -> Edition | None:
        """The edition that has folded these partitions up to these ends; None if nothing was ever
        there to fold.
        """
        until, pause = time.monotonic() + self._wait_timeout_seconds, _POLL_SECONDS
        while True:
            for edition in await self._snapshots.editions():
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
