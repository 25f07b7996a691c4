"""Live runs: one tail for the whole process, one channel for each run, one seat for each follower.

    Kafka ──> Tail ──> Channel (outcomes, frames made once) ──> Seat, Seat, Seat ──> followers

A channel reads MongoDB once, when the first follower of its run begins.
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
"""The frames that may wait for one follower. A follower with more of them reads the history
again.
"""

_RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Frame(NamedTuple):
    """A record as a server-sent event."""

    admitted: Admitted
    data: bytes

    @property
    def offset(self) -> int:
        return self.admitted.record.offset

    @property
    def ends(self) -> bool:
        """Whether the run ends with this record."""
        event = self.admitted.event
        return self.admitted.outcome == "accepted" and event is not None and event.type in ENDINGS


class Seat:
    """The frames that wait for one follower: every record from `first_offset` on, until the seat is
    `overrun`.
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
        """The frames since the last call. Waits for some, and returns none after the timeout or
        when the seat is overrun.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._filled.wait()
        self._filled.clear()
        frames, self._frames, self._size = self._frames, [], 0
        return frames


class LiveRuns:
    """Use it as an async context manager. It connects in the background, and again after an outage
    of Kafka.
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
        """A seat at a run. The tail stops reading the run when its last seat is gone. Raises as
        `RunReader.history` does.
        """
        if run_id not in self._channels:
            start = await self._reader.follow_start(run_id)
            if run_id not in self._channels:  # another follower may have opened it meanwhile
                self._open(run_id, start)
        channel = self._channels[run_id]
        seat = Seat(channel.next_offset, ended=channel.admission.ended)
        channel.seats.add(seat)
        try:
            yield seat
        finally:
            channel.seats.discard(seat)
            if not channel.seats:
                self._close(run_id, channel)

    def _open(self, run_id: str, start: FollowStart) -> None:
        channel = self._channels[run_id] = _Channel(start)
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
            for fetched in slices:
                run = self._topics.parse_run(fetched.partition.topic)
                if run is not None and run.run_id in self._channels:
                    self._channels[run.run_id].take(fetched.records)


class _Channel:
    """A followed run: the rule of outcomes so far, and the seats of its followers."""

    def __init__(self, start: FollowStart) -> None:
        self.at = Partition(start.topic, 0)
        self.admission = start.admission
        self.next_offset = start.next_offset
        self.seats: set[Seat] = set()

    def take(self, records: Iterable[Record]) -> None:
        new = [record for record in records if record.offset >= self.next_offset]
        if new:
            frames = [frame_of(self.admission.admit(record)) for record in new]
            self.next_offset = new[-1].offset + 1
            for seat in self.seats:
                seat.offer(frames)


def frame_of(admitted: Admitted) -> Frame:
    """A record as a server-sent event: its id is the offset, its name the event's type."""
    kind = admitted.event.type if admitted.event is not None else "undecodable"
    # The JSON of an event may have several lines, and each line of data needs its own field.
    data = b"\ndata: ".join(record_json(admitted).splitlines())
    event = b"id: %d\nevent: %b\ndata: %b\n\n" % (admitted.record.offset, kind.encode(), data)
    return Frame(admitted, event)
