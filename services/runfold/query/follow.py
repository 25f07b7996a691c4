"""One follower: first a run's history, then each new record, as server-sent events.

A follower takes its seat before it reads the history, so it misses no record between the two. A
follower that reads too slowly is overrun: it begins again at its own offset, with the history. So
the stored run is the queue of a slow follower.
"""

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from runfold.query.as_of import turn_before
from runfold.query.events import EventFilter
from runfold.query.live import Frame, LiveRuns, Seat, frame_of
from runfold.query.runs import RunReader
from runfold_projections.as_of import CurrentTurn
from runfold_schemas.errors import QuarantinedError, RunfoldError

# A stream whose key was revoked ends with its next chunk, so within 10 s of the revocation, which
# takes a second to be known.
_KEEP_ALIVE_SECONDS = 8.0
_RETRY_MILLISECONDS = 1000
_QUARANTINED_RETRY_MILLISECONDS = 30_000

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Follower:
    run_id: str
    next_offset: int
    """The offset of the next record that it gets."""
    event_filter: EventFilter
    until_end: bool = False
    """The stream ends when the run ends. Otherwise it stays open, since late events may follow."""
    keep_alive_seconds: float = _KEEP_ALIVE_SECONDS
    turn: CurrentTurn = field(default_factory=CurrentTurn)
    """The turn of the last record that was read."""

    async def stream(self, live: LiveRuns, reader: RunReader) -> AsyncGenerator[bytes, None]:
        """The stream, which only `until_end` ends. Its first chunk follows when the run was found.
        Raises as `RunReader.history` does.
        """
        if self.event_filter.turn_id is not None and self.next_offset > 0:
            self.turn = await turn_before(await reader.history(self.run_id), self.next_offset)
        while True:
            async with live.seat(self.run_id) as seat:
                yield b"retry: %d\n\n" % _RETRY_MILLISECONDS
                async for frames in self._read_past(seat, reader):
                    yield frames
                if self.until_end and seat.ended:
                    yield self._end_event()
                    return
                async for frames, ended in self._wait_for_new(seat):
                    yield frames
                    if self.until_end and ended:
                        yield self._end_event()
                        return

    async def _read_past(self, seat: Seat, reader: RunReader) -> AsyncIterator[bytes]:
        if self.next_offset < seat.first_offset:
            history = await reader.history(self.run_id, min_offset=seat.first_offset - 1)
            async for slice_ in history.slices(first_offset=self.next_offset, end=seat.first_offset):
                yield self._render([frame_of(admitted) for admitted in slice_.admitted()])

    async def _wait_for_new(self, seat: Seat) -> AsyncIterator[tuple[bytes, bool]]:
        """New records, each portion with whether the run ended in it, until the seat is overrun."""
        while not seat.overrun:
            frames = await seat.take(timeout_seconds=self.keep_alive_seconds)
            if frames:
                yield self._render(frames), any(frame.ends for frame in frames)
            elif not seat.overrun:
                yield b": keep-alive\n\n", False

    def _render(self, frames: Sequence[Frame]) -> bytes:
        shown = [
            frame.data
            for frame in frames
            if self.event_filter.shows(frame.admitted, self.turn.take(frame.admitted))
            and frame.offset >= self.next_offset
        ]
        self.next_offset = max(self.next_offset, frames[-1].offset + 1) if frames else self.next_offset
        return b"".join(shown)

    def _end_event(self) -> bytes:
        facts = json.dumps({"run_id": self.run_id, "next_offset": self.next_offset})
        return b"event: end\ndata: %b\n\n" % facts.encode()


async def until_failure(first: bytes, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The whole stream, given its first chunk. An error ends the stream: its reader connects again
    by itself, and names the last offset that it received. If the run is in quarantine, an event
    says so, and the reader waits longer.
    """
    async with aclosing(stream):
        try:
            yield first
            async for chunk in stream:
                yield chunk
        except QuarantinedError as error:
            yield b"event: quarantined\nretry: %d\ndata: %b\n\n" % (
                _QUARANTINED_RETRY_MILLISECONDS,
                json.dumps(vars(error)).encode(),
            )
        except RunfoldError as error:
            _log.warning("a follower has to connect again: %s", error)
