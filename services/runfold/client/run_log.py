"""The log of one run, read from Kafka."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing

from runfold.log.reader import end_offset, read
from runfold.log.segments import SegmentBook
from runfold.log.settings import LogSettings
from runfold_projections.admission import Admission, Admitted, is_skipped
from runfold_schemas.codec import Record, decode
from runfold_schemas.errors import QuarantinedError, UndecodableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.runs import ENDINGS

Reveal = Callable[[Sequence[Admitted]], Awaitable[Sequence[Admitted]]]
"""Opens what events have sealed."""

Skips = Callable[[], Awaitable[Collection[range]]]
"""Returns the offsets of one topic that an operator skipped. May raise `UnavailableError`."""


class RunLog:
    """Reads the log of one life of a run. Every method may raise `UnavailableError`.

    The generators hold a connection until they are closed: use `aclosing` if a loop may leave one
    early.
    """

    def __init__(
        self,
        settings: LogSettings,
        topic: str,
        run_id: str,
        *,
        segments: SegmentBook,
        skips: Skips,
        reveal: Reveal | None = None,
    ) -> None:
        self.topic = topic
        self.run_id = run_id
        self._settings = settings
        self._segments = segments
        self._reveal = reveal
        self.skips = skips
        """Returns the offsets that an operator skipped."""

    @property
    def has_key(self) -> bool:
        """Whether it opens what events have sealed."""
        return self._reveal is not None

    async def history(
        self, *, first_offset: int = 0, end: int | None = None
    ) -> AsyncGenerator[Admitted, None]:
        """The records of the log in order, each with its outcome, from `first_offset` to `end`
        (exclusive; by default the end of the log as it is now).
        """
        admission = Admission(self.run_id, skipped=await self.skips())
        async with aclosing(self._read(end=end)) as fetches:
            async for records in fetches:
                decided = (
                    admitted
                    for record in records
                    if (admitted := admission.admit(record)).record.offset >= first_offset
                )
                for admitted in await self._reveal([*decided]) if self._reveal else decided:
                    yield admitted

    async def end(self) -> int:
        """The offset that the next record gets."""
        return await end_offset(self._settings, self.topic, segments=self._segments)

    def _read(self, *, first_offset: int = 0, end: int | None) -> AsyncGenerator[list[Record], None]:
        return read(self._settings, self.topic, first_offset=first_offset, end=end, segments=self._segments)

    async def revealed(self, admitted: Sequence[Admitted]) -> Sequence[Admitted]:
        """These records of the log, with events as they were before they were sealed."""
        return await self._reveal(admitted) if self._reveal else admitted

    async def entries(
        self, *, first_offset: int = 0, end: int | None = None
    ) -> AsyncGenerator[tuple[int, AnyEvent], None]:
        """The events that count with their offsets, in order. Accepted events and late events
        count.
        """
        async with aclosing(self.history(first_offset=first_offset, end=end)) as history:
            async for admitted in history:
                if admitted.counts and admitted.event is not None:
                    yield admitted.record.offset, admitted.event

    async def ended_before(self, offset: int, *, not_before: int = 0) -> bool:
        """Whether the run ended before `offset`. The caller knows that it did not end before
        `not_before`.
        """
        skipped = await self.skips()
        async with aclosing(self._read(first_offset=not_before, end=offset)) as fetches:
            async for records in fetches:
                if any(_may_end(record) for record in records if not is_skipped(record.offset, skipped)):
                    break
            else:
                return False
        # An ending counts only if the log accepted it, which its whole history decides.
        async with aclosing(self.entries(end=offset)) as entries:
            async for _, event in entries:
                if event.type in ENDINGS:
                    return True
        return False


def missing_log(run_id: str) -> QuarantinedError:
    """The error of a run whose topic does not exist, although the run was not deleted."""
    return QuarantinedError(f"run:{run_id}", reason="its log does not exist")


def _may_end(record: Record) -> bool:
    try:
        return decode(record.value).type in ENDINGS
    except UndecodableError:
        return False
