"""Wakes readers that wait until the projector has folded shared topics. So they need not ask
MongoDB again and again.

All readers share one change stream on the positions of an edition. It is open only while somebody
waits, and for a while afterwards. Where it cannot be opened, readers look again after a pause. They
do so with the stream too, after a longer pause.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing
from typing import Final, Self, TypeVar

from runfold.store.edition import Edition
from runfold_schemas.errors import UnavailableError

_OPEN_SECONDS: Final = 10.0
"""How long a stream stays open when nobody waits any more."""

_RETRY_SECONDS: Final = 1.0

_PAUSE_SECONDS: Final = 0.002
_PAUSE_SECONDS_MAX: Final = 0.020
"""The pauses between two looks without a stream."""

_LONG_PAUSE_SECONDS: Final = 0.25
"""The pause between two looks with a stream."""

FoundT = TypeVar("FoundT")

_log = logging.getLogger(__name__)


class WaitingReaders:
    """Use it as an async context manager. Leaving it closes the streams."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.gather(*(stream.close() for stream in self._streams.values()))

    async def first(
        self,
        look: Callable[[], Awaitable[FoundT | None]],
        edition: Edition | None,
        keys: Collection[str],
        *,
        until: float,
    ) -> FoundT | None:
        """What `look` finds first. It looks again when one of these partitions was folded further;
        `position_key` names them. None if it has found nothing by the monotonic time `until`.
        """
        watch = _Watch(keys)
        if edition is not None and (stream := self._streams.get(edition.name)):
            stream.watches.add(watch)  # before the first look, so that nothing is missed
        try:
            while (found := await look()) is None and time.monotonic() <= until:
                stream = self._stream(edition) if edition is not None else None
                await watch.wait(stream, until=until)
        finally:
            for stream in self._streams.values():
                stream.watches.discard(watch)
        return found

    def _stream(self, edition: Edition) -> "_Stream":
        stream = self._streams.get(edition.name)
        if stream is None or stream.is_closed:
            self._streams = {name: other for name, other in self._streams.items() if not other.is_closed}
            stream = self._streams[edition.name] = _Stream(edition.progress.positions)
        return stream


class _Watch:
    """One waiting reader."""

    def __init__(self, keys: Collection[str]) -> None:
        self.keys = keys
        self._pause = _PAUSE_SECONDS
        self._moved = asyncio.Event()

    async def wait(self, stream: "_Stream | None", *, until: float) -> None:
        """Returns when it is time to look again: after progress, or after a pause."""
        pause, self._pause = self._pause, min(1.5 * self._pause, _PAUSE_SECONDS_MAX)
        if stream is not None:
            stream.add(self)
            pause = _LONG_PAUSE_SECONDS if stream.is_open else pause
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(pause, until - time.monotonic()))):
                await self._moved.wait()
        self._moved.clear()

    def wake(self) -> None:
        self._moved.set()


class _Stream:
    """A change stream, and the readers that wait for it."""

    def __init__(self, changes: Callable[[], AsyncGenerator[str | None, None]]) -> None:
        self._changes = changes
        self.watches: set[_Watch] = set()
        self.is_open = False
        self._used_at = time.monotonic()
        self._reading = asyncio.create_task(self._read())

    @property
    def is_closed(self) -> bool:
        return self._reading.done()

    def add(self, watch: _Watch) -> None:
        """Wakes a reader that waits now."""
        self._used_at = time.monotonic()
        self.watches.add(watch)

    async def close(self) -> None:
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading

    async def _read(self) -> None:
        while self._is_used():
            try:
                async with aclosing(self._changes()) as changes:
                    async for key in changes:
                        self._take(key)
                        if not self._is_used():
                            return
            except UnavailableError as error:
                _log.info("readers look for progress after pauses: %s", error)
            finally:
                self.is_open = False
                self._wake_all()
            await asyncio.sleep(_RETRY_SECONDS)

    def _take(self, key: str | None) -> None:
        if not self.is_open:
            # What changed between a look and the opening of the stream was missed.
            self.is_open = True
            self._wake_all()
        for watch in self.watches if key is not None else ():
            if key in watch.keys:
                watch.wake()

    def _wake_all(self) -> None:
        for watch in self.watches:
            watch.wake()

    def _is_used(self) -> bool:
        return time.monotonic() - self._used_at < _OPEN_SECONDS
