"""The log of one run, read from Kafka."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold_projections.admission import Admission, Admitted
from runfold_schemas.codec import Record, decode
from runfold_schemas.errors import UndecodableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.runs import ENDINGS


class RunLog:
    """Reads the topic of one life of a run. Every method may raise `UnavailableError`.

    The generators hold a consumer until they are closed: use `aclosing` if a loop may leave one
    early.
    """

    def __init__(self, settings: LogSettings, topic: str, run_id: str) -> None:
        self.topic = topic
        self.run_id = run_id
        self._settings = settings

    async def history(
        self, *, first_offset: int = 0, end: int | None = None
    ) -> AsyncGenerator[Admitted, None]:
        """The records of the log in order, each with its outcome, from `first_offset` to `end`
        (exclusive; by default the end of the log as it is now).
        """
        admission = Admission(self.run_id)
        async with aclosing(read(self._settings, self.topic, end=end)) as fetches:
            async for records in fetches:
                for record in records:
                    admitted = admission.admit(record)
                    if record.offset >= first_offset:
                        yield admitted

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
        async with aclosing(read(self._settings, self.topic, first_offset=not_before, end=offset)) as fetches:
            async for records in fetches:
                if any(_may_end(record) for record in records):
                    break
            else:
                return False
        # An ending counts only if the log accepted it, which its whole history decides.
        async with aclosing(self.entries(end=offset)) as entries:
            async for _, event in entries:
                if event.type in ENDINGS:
                    return True
        return False


def _may_end(record: Record) -> bool:
    try:
        return decode(record.value).type in ENDINGS
    except UndecodableError:
        return False
