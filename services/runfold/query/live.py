"""Runs as they grow: one tail for the whole process, and a seat for each follower.

    Kafka ──> Tail ──> Channel (one a run: outcomes, frames made once) ──> Seat, Seat, Seat ──> followers

MongoDB is asked when the first follower of a run comes, and not again.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, Self

from runfold.log.settings import LogSettings
from runfold.log.tail import Tail
from runfold.query.events import record_json
from runfold.query.runs import FollowStart, RunReader
from runfold_projections.admission import Admitted
from runfold_schemas.codec import Record
from runfold_schemas.errors import UnavailableError
from runfold_schemas.runs import ENDINGS
from runfold_schemas.topics import Partition, Topics

_SEAT_BYTES_MAX = 1024 * 1024
"""Of frames that a follower has not taken yet. One who falls back further reads the history
again.
"""

_RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Frame(NamedTuple):
    """A record as followers get it."""

    admitted: Admitted
    data: bytes

    @property
    def offset(self) -> int:
        return self.admitted.record.offset

    @property
    def ends(self) -> bool:
        """The run ends here."""
        event = self.admitted.event
        return self.admitted.outcome == "accepted" and event is not None and event.type in ENDINGS


class Seat:
    """Where the frames for one follower wait. It gets every record from `first_offset` on, until it
    is `overrun`.
    """

    def __init__(self, first_offset: int, *, ended: bool) -> None:
        self.first_offset = first_offset
        self.ended = ended
        """The run had ended before `first_offset`."""
        self.overrun = False
        self._frames: list[Frame] = []
        self._size = 0
        self._filled = asyncio.Event()

    def offer(self, frames: Sequence[Frame]) -> None:
        if self.overrun:
            return
        self._frames += frames
        self._size += sum(len(frame.data) for frame in frames)
        if self._size > _SEAT_BYTES_MAX and len(self._frames) > len(frames):
            self.overrun = True
            self._frames = []
        self._filled.set()

    async def take(self, *, timeout_seconds: float) -> list[Frame]:
        """What has come since the last time; waits for something, in vain after the timeout or when
        overrun.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._filled.wait()
        self._filled.clear()
        frames, self._frames, self._size = self._frames, [], 0
        return frames


class LiveRuns:
    """Use it as an async context manager. It connects in the background and goes on by itself after
    Kafka was away.
    """

    def __init__(self, settings: LogSettings, reader: RunReader) -> None:
        self._settings = settings
        self._reader = reader
        self._topics = Topics(settings.prefix)
        self._channels: dict[str, _Channel] = {}
        self._tail: Tail | None = None
        self._pumping: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._pumping = asyncio.create_task(self._pump())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._pumping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._pumping

    @property
    def followed_runs(self) -> int:
        return len(self._channels)

    @asynccontextmanager
    async def seat(self, run_id: str) -> AsyncIterator[Seat]:
        """A seat at a run. The tail lets go of the run when its last seat is left. Raises as
        `RunReader.history` does.
        """
        if run_id not in self._channels:
            standing = await self._reader.follow_start(run_id)
            if run_id not in self._channels:  # nobody else came first while we read
                self._open(run_id, standing)
        channel = self._channels[run_id]
        seat = Seat(channel.next_offset, ended=channel.admission.ended)
        channel.seats.add(seat)
        try:
            yield seat
        finally:
            channel.seats.discard(seat)
            if not channel.seats:
                self._close(run_id, channel)

    def _open(self, run_id: str, standing: FollowStart) -> None:
        channel = self._channels[run_id] = _Channel(standing)
        if self._tail is not None:
            self._tail.follow(channel.at, channel.next_offset)

    def _close(self, run_id: str, channel: "_Channel") -> None:
        del self._channels[run_id]
        if self._tail is not None:
            self._tail.unfollow(channel.at)

    async def _pump(self) -> None:
        while True:
            try:
                async with Tail.connect(self._settings) as tail:
                    self._tail = tail
                    for channel in self._channels.values():
                        tail.follow(channel.at, channel.next_offset)
                    await self._share(tail)
            except UnavailableError as error:
                _log.warning("%s; followers wait", error)
            finally:
                self._tail = None
            await asyncio.sleep(_RETRY_SECONDS)

    async def _share(self, tail: Tail) -> None:
        async for slices in tail.fetches():
            for part in slices:
                run = self._topics.parse_run(part.partition.topic)
                if run is not None and run.run_id in self._channels:
                    self._channels[run.run_id].take(part.records)


class _Channel:
    """A followed run: the outcomes so far, and the seats that get what comes."""

    def __init__(self, standing: FollowStart) -> None:
        self.at = Partition(standing.topic, 0)
        self.admission = standing.admission
        self.next_offset = standing.next_offset
        self.seats: set[Seat] = set()

    def take(self, records: Iterable[Record]) -> None:
        new = [record for record in records if record.offset >= self.next_offset]
        if new:
            frames = [frame_of(self.admission.admit(record)) for record in new]
            self.next_offset = new[-1].offset + 1
            for seat in self.seats:
                seat.offer(frames)


def frame_of(one: Admitted) -> Frame:
    """A record as a server-sent event: its id is the offset, its name the event's type."""
    kind = one.event.type if one.event is not None else "undecodable"
    # JSON may be spread over lines, and a line of data ends where one of JSON does.
    data = b"\ndata: ".join(record_json(one).splitlines())
    return Frame(one, b"id: %d\nevent: %b\ndata: %b\n\n" % (one.record.offset, kind.encode(), data))
