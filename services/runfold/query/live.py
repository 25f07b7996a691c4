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

from runfold.log.leaders import Leaders
from runfold.log.segments import SegmentBook
from runfold.log.settings import LogSettings
from runfold.log.tail import Tail
from runfold.printable import json_line
from runfold.query.events import record_json
from runfold.query.history import revealed
from runfold.query.places import Places
from runfold.query.runs import FollowStart, RunReader
from runfold.query.stored_runs import StoredRuns
from runfold.query.unforeseen import reading_run
from runfold_projections.admission import Admitted
from runfold_schemas.codec import Record
from runfold_schemas.errors import ConfigurationError, QuarantinedError, UnavailableError
from runfold_schemas.runs import ENDINGS
from runfold_schemas.topics import Partition

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
        self._failure: QuarantinedError | None = None
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

    def restart(self) -> None:
        """The follower reads the history again."""
        self.overrun = True
        self._frames = []
        self._filled.set()

    def fail(self, error: QuarantinedError) -> None:
        """No further frame follows. `take` raises the error after the frames before."""
        self._failure = error
        self._filled.set()

    async def take(self, *, timeout_seconds: float) -> list[Frame]:
        """The frames since the last call. Waits for some, and returns none after the timeout or
        when the seat is overrun. Raises the error of `fail`.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._filled.wait()
        if self._failure is None:
            self._filled.clear()
        elif not self._frames:
            raise self._failure
        frames, self._frames, self._size = self._frames, [], 0
        return frames


class LiveRuns:
    """Use it as an async context manager. It connects in the background, and again after an outage
    of Kafka. With `leaders`, it uses their client.
    """

    def __init__(
        self,
        settings: LogSettings,
        reader: RunReader,
        places: Places,
        *,
        stored_runs: StoredRuns,
        leaders: Leaders | None = None,
        segments: SegmentBook | None = None,
    ) -> None:
        self._segments = segments
        self._stored_runs = stored_runs
        self._settings = settings
        self._reader = reader
        self._places = places
        self._leaders = leaders
        self._topics = settings.topics
        self._channels: dict[str, _Channel] = {}
        self._tail: Tail | None = None
        self._handing_out: set[asyncio.Task[None]] = set()
        self._pumping: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._places.join(self)
        self._pumping = asyncio.create_task(self._pump())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._places.leave(self)
        self._pumping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._pumping
        for task in self._handing_out:
            task.cancel()
        await asyncio.gather(*self._handing_out, return_exceptions=True)

    @property
    def followed_runs(self) -> int:
        return len(self._channels)

    @asynccontextmanager
    async def seat(self, run_id: str) -> AsyncIterator[Seat]:
        """A seat at a run. The tail stops reading the run when its last seat is gone. Raises as
        `RunReader.history` does, and `UnavailableError` if there are too many followers.
        """
        self._places.check_room(self)
        if run_id not in self._channels:
            start = await self._reader.follow_start(run_id)
            self._places.check_room(self)
            if run_id not in self._channels:  # another follower may have opened it meanwhile
                self._open(run_id, start)
        channel = self._channels[run_id]
        seat = Seat(channel.next_offset, ended=channel.admission.ended)
        channel.seats.add(seat)
        self._places.take(self)
        try:
            yield seat
        finally:
            channel.seats.discard(seat)
            self._places.give_back(self)
            if not channel.seats and self._channels.get(run_id) is channel:
                self._close(run_id, channel)

    def _open(self, run_id: str, start: FollowStart) -> None:
        channel = self._channels[run_id] = _Channel(start)
        if self._tail is not None:
            self._tail.follow(channel.at, channel.next_offset)

    def _close(self, run_id: str, channel: "_Channel") -> None:
        if self._channels.get(run_id) is not channel:
            return
        del self._channels[run_id]
        if self._tail is not None:
            self._tail.unfollow(channel.at)

    async def _pump(self) -> None:
        while True:
            try:
                async with Tail.connect(
                    self._settings, leaders=self._leaders, segments=self._segments
                ) as tail:
                    self._tail = tail
                    for channel in self._channels.values():
                        tail.follow(channel.at, channel.next_offset)
                    await self._share(tail)
            except (UnavailableError, ConfigurationError) as error:
                _log.warning("%s; followers wait", error)
            except Exception:  # noqa: BLE001  # with a new tail, the next attempt may succeed
                _log.exception("followers wait after an error that was not expected")
            finally:
                self._tail = None
            await asyncio.sleep(_RETRY_SECONDS)

    async def _share(self, tail: Tail) -> None:
        async for slices in tail.fetches():
            for fetched in slices:
                run = self._topics.parse_run(fetched.partition.topic)
                if run is not None and run.run_id in self._channels:
                    self._take(run.run_id, self._channels[run.run_id], fetched.records)

    def _take(self, run_id: str, channel: "_Channel", records: Iterable[Record]) -> None:
        """Hands new records to the followers of one run. A record that cannot be folded ends the
        following of this run alone.
        """
        try:
            with reading_run(run_id):
                channel.decide(records)
        except QuarantinedError as error:
            channel.failure = error
            self._close(run_id, channel)
        if self._stored_runs.sealing is None:
            channel.offer(channel.take_decided())
            channel.pass_failure_on()
        elif not channel.is_handing_out:
            # A task of its own, because a record may wait for its key, and other runs go on.
            channel.is_handing_out = True
            task = asyncio.create_task(self._hand_out(run_id, channel))
            self._handing_out.add(task)
            task.add_done_callback(self._handing_out.discard)
        elif channel.waiting_bytes > _SEAT_BYTES_MAX:
            self._begin_again(run_id, channel)

    async def _hand_out(self, run_id: str, channel: "_Channel") -> None:
        try:
            while channel.decided:
                channel.offer(await revealed(self._stored_runs.sealing, channel.take_decided()))
            channel.pass_failure_on()
        except UnavailableError as error:
            _log.warning("run %s is read again: %s", run_id, error)
            self._begin_again(run_id, channel)
        except Exception:  # noqa: BLE001  # the records are in the history, whose reading fails as reads do
            _log.exception("run %s is read again after an error that was not expected", run_id)
            self._begin_again(run_id, channel)
        finally:
            channel.is_handing_out = False

    def _begin_again(self, run_id: str, channel: "_Channel") -> None:
        """The followers read the history again, which has the records."""
        self._close(run_id, channel)
        channel.restart()


class _Channel:
    """A followed run: the rule of outcomes so far, and the seats of its followers."""

    def __init__(self, start: FollowStart) -> None:
        self.at = Partition(start.topic, 0)
        self.admission = start.admission
        self.next_offset = start.next_offset
        self.seats: set[Seat] = set()
        self.decided: list[Admitted] = []
        """The records that were not offered yet."""
        self.failure: QuarantinedError | None = None
        """The error of the record behind those."""
        self.is_handing_out = False
        self.waiting_bytes = 0
        """The size of `decided`."""

    def decide(self, records: Iterable[Record]) -> None:
        """Adds the next records to `decided`, also those before a record that raises an error."""
        for record in records:
            if record.offset >= self.next_offset:
                self.decided.append(self.admission.admit(record))
                self.waiting_bytes += len(record.value or b"")
                self.next_offset = record.offset + 1

    def take_decided(self) -> list[Admitted]:
        decided, self.decided, self.waiting_bytes = self.decided, [], 0
        return decided

    def pass_failure_on(self) -> None:
        """Ends the seats, if a record could not be folded."""
        if self.failure is not None:
            for seat in self.seats:
                seat.fail(self.failure)

    def offer(self, decided: Sequence[Admitted]) -> None:
        frames = [frame_of(admitted) for admitted in decided]
        for seat in self.seats if frames else ():
            seat.offer(frames)

    def restart(self) -> None:
        """Lets the followers begin again with the history."""
        for seat in self.seats:
            seat.restart()


def frame_of(admitted: Admitted) -> Frame:
    """A record as a server-sent event: its id is the offset, its name the event's type."""
    kind = admitted.event.type if admitted.event is not None else "undecodable"
    data = json_line(record_json(admitted))
    event = b"id: %d\nevent: %b\ndata: %b\n\n" % (admitted.record.offset, kind.encode(), data)
    return Frame(admitted, event)
