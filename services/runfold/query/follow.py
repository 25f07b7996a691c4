"""One follower: a run's history first, then what is appended, as server-sent events.

Its seat is taken before the history is read, so nothing falls between the two. Who takes too long
to read is overrun, and goes through the same again from where it stands: the queue of a slow
follower is the snapshot.
"""

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from runfold.query.events import EventFilter
from runfold.query.live import Frame, LiveRuns, Seat, frame_of
from runfold.query.runs import RunReader
from runfold_schemas.errors import RunfoldError

_KEEP_ALIVE_SECONDS = 15.0
_RETRY_MILLISECONDS = 1000

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Follower:
    run_id: str
    next_offset: int
    """Where it stands: the offset of the next record that it gets."""
    wanted: EventFilter
    until_end: bool = False
    """Leaves when the run ends; otherwise it stays, since late events may come."""
    keep_alive_seconds: float = _KEEP_ALIVE_SECONDS

    async def stream(self, live: LiveRuns, reader: RunReader) -> AsyncGenerator[bytes, None]:
        """Endless, but for `until_end`. What comes first comes when the run was found; raises as
        `RunReader.history` does.
        """
        while True:
            async with live.seat(self.run_id) as seat:
                yield b"retry: %d\n\n" % _RETRY_MILLISECONDS
                async for frames in self._past(seat, reader):
                    yield frames
                if self.until_end and seat.ended:
                    yield self._farewell()
                    return
                async for frames, ended in self._present(seat):
                    yield frames
                    if self.until_end and ended:
                        yield self._farewell()
                        return

    async def _past(self, seat: Seat, reader: RunReader) -> AsyncIterator[bytes]:
        if self.next_offset < seat.first_offset:
            history = await reader.history(self.run_id, min_offset=seat.first_offset - 1)
            async for part in history.slices(first_offset=self.next_offset, end=seat.first_offset):
                yield self._shown([frame_of(one) for one in part.admitted()])

    async def _present(self, seat: Seat) -> AsyncIterator[tuple[bytes, bool]]:
        """What comes in, and whether the run ended with it; until the seat is overrun."""
        while not seat.overrun:
            frames = await seat.take(timeout_seconds=self.keep_alive_seconds)
            if frames:
                yield self._shown(frames), any(frame.ends for frame in frames)
            elif not seat.overrun:
                yield b": keep-alive\n\n", False

    def _shown(self, frames: Sequence[Frame]) -> bytes:
        shown = [
            frame.data
            for frame in frames
            if frame.offset >= self.next_offset and self.wanted.shows(frame.admitted)
        ]
        self.next_offset = max(self.next_offset, frames[-1].offset + 1) if frames else self.next_offset
        return b"".join(shown)

    def _farewell(self) -> bytes:
        facts = json.dumps({"run_id": self.run_id, "next_offset": self.next_offset})
        return b"event: end\ndata: %b\n\n" % facts.encode()


async def until_failure(first: bytes, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The stream after its first chunk, ended where it fails: its reader comes back by itself, and
    says what it got last.
    """
    async with aclosing(stream):
        try:
            yield first
            async for chunk in stream:
                yield chunk
        except RunfoldError as error:
            _log.warning("a follower has to come back: %s", error)
