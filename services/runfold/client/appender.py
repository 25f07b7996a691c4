"""Appending events to the log of one run, and what the log made of them.

An appender does not forward by itself: events that change shared state or memories are forwarded by
`Run`, by `Sessions` and by the generation of memories, each in its own way. The projector forwards
what is still missing.
"""

import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Unpack

from runfold.client.envelope import Envelope, event_of, naming_index
from runfold.client.records import check_size, outgoing
from runfold.client.run_log import RunLog
from runfold.log.catalog import CatalogView, bell_record, partition_of
from runfold.log.publisher import Ack, Outgoing, Publisher
from runfold.log.settings import LogSettings
from runfold_projections.admission import Outcome
from runfold_schemas.catalog import Life
from runfold_schemas.data import Data
from runfold_schemas.errors import InvalidEventError, RejectedError, RunEndedError
from runfold_schemas.events import AnyEvent
from runfold_schemas.runs import ENDINGS, LIFECYCLE
from runfold_schemas.topics import Topics

Forwarding = Callable[[Sequence[AnyEvent]], Awaitable[None]]
"""Forwards what accepted events change of shared state, and returns when that is durable."""


class Position(NamedTuple):
    """The place of an event: `offset` counts the records of the run's log from 0."""

    run_id: str
    offset: int
    is_duplicate: bool = False
    """Whether an earlier copy of the event is in the log. It is only found out if an
    `expected_offset` may have lost.
    """


class Appender:
    """Appends to one life of a run."""

    def __init__(
        self,
        settings: LogSettings,
        catalog: CatalogView,
        publisher: Publisher,
        life: Life,
        *,
        turn_id: str | None = None,
        is_new: bool = False,
        forward: Forwarding | None = None,
    ) -> None:
        """`is_new` says that this client has just opened the run. An append includes `forward` of
        the events that the log has accepted: if it fails, the same events may be appended again.
        """
        topics = Topics(settings.prefix)
        self.life = life
        self.turn_id = turn_id
        self.log = RunLog(settings, topics.run(life.run_id, life.log_id), life.run_id)
        self._settings = settings
        self._catalog = catalog
        self._catalog_topic = topics.catalog
        self._publisher = publisher
        self._forward = forward
        self._awake_since = time.monotonic() if is_new else float("-inf")
        self._ended = life.ended
        # The run did not end before this offset, except by an event of this appender: up to here
        # the log was written by this appender, or read.
        self._known_offset = 1 if is_new else 0

    @property
    def run_id(self) -> str:
        return self.life.run_id

    @property
    def ended(self) -> bool:
        """Whether this client knows that the run has ended."""
        known = self._catalog.peek(self.run_id)
        return self._ended or (known is not None and known.log_id == self.life.log_id and known.ended)

    def event(self, data: Data, **envelope: Unpack[Envelope]) -> AnyEvent:
        """The event of this run that carries `data`, not yet appended. Raises
        `InvalidEventError`.
        """
        if envelope.get("turn_id") is None:
            envelope["turn_id"] = self.turn_id
        return event_of(data, self.run_id, **envelope)

    async def append(
        self, data: Data | AnyEvent, *, late: bool = False, **envelope: Unpack[Envelope]
    ) -> Position:
        """Appends one event and returns when it is durable. Raises what `Run.publish` raises."""
        [position] = await (await self.post(data, late=late, **envelope))
        return position

    async def append_batch(self, batch: Iterable[Data | AnyEvent], *, late: bool = False) -> list[Position]:
        """Appends several events as one record batch: all of them or none, next to each other."""
        posted = await self.post_batch(batch, late=late)
        return await posted if posted is not None else []

    async def post(
        self, data: Data | AnyEvent, *, late: bool = False, **envelope: Unpack[Envelope]
    ) -> Coroutine[Any, Any, list[Position]]:
        """Hands one event over to the publisher. The coroutine that it returns waits until the
        event is durable.
        """
        event = self._checked(data, late=late, **envelope)
        record = outgoing(event, source=self._settings.source)
        check_size([record])
        return await self._post([event], [record])

    async def post_batch(
        self, batch: Iterable[Data | AnyEvent], *, late: bool = False
    ) -> Coroutine[Any, Any, list[Position]] | None:
        """As `post`, for several events as one record batch. None if the batch is empty."""
        events: list[AnyEvent] = []
        records: list[Outgoing] = []
        for index, data in enumerate(batch):
            with naming_index(index):
                events.append(self._checked(data, late=late))
                records.append(outgoing(events[-1], source=self._settings.source))
        _check_expectations(events)
        check_size(records)
        return await self._post(events, records) if events else None

    def _checked(self, data: Data | AnyEvent, *, late: bool, **envelope: Unpack[Envelope]) -> AnyEvent:
        if self.ended and not late:
            raise RunEndedError(self.run_id)
        return self.event(data, **envelope) if isinstance(data, Data) else event_of(data, self.run_id)

    async def _post(
        self, events: list[AnyEvent], records: list[Outgoing]
    ) -> Coroutine[Any, Any, list[Position]]:
        if self._may_be_parked():
            await self._ring()
        sent_at = time.monotonic()
        if len(records) == 1:
            ack = await self._publisher.send(self.log.topic, records[0])
        else:
            ack = await self._publisher.send_batch(self.log.topic, records)
        return self._acknowledged(ack, events, sent_at)

    async def _acknowledged(self, ack: Ack, events: list[AnyEvent], sent_at: float) -> list[Position]:
        first_offset = (await self._publisher.wait(ack)).offset
        if self._may_be_parked():
            # The acknowledgement took so long that the projector may have parked the run before
            # the record was appended.
            await self._ring()
        else:
            self._awake_since = max(self._awake_since, sent_at)
        outcomes = await self._outcomes(events, first_offset=first_offset)
        if self._forward is not None:
            # Duplicates and late events change no shared state.
            await self._forward(
                [event for event, outcome in zip(events, outcomes, strict=True) if outcome == "accepted"]
            )
        self._ended = self._ended or any(event.type in ENDINGS for event in events)
        positions = [Position(self.run_id, first_offset + index) for index in range(len(events))]
        if len(events) == 1:
            positions = [positions[0]._replace(is_duplicate=outcomes[0] == "duplicate")]
        return positions

    async def _outcomes(self, events: list[AnyEvent], *, first_offset: int) -> list[Outcome]:
        """What the log made of the events. The log is read only if it may have refused one of
        them.
        """
        end = first_offset + len(events)
        is_known = first_offset == self._known_offset
        if is_known:
            self._known_offset = end
        # Nothing is between an event and the offset before it.
        is_expected = events[0].expected_offset in (None, first_offset - 1)
        if is_expected and not _may_be_refused(events, ended=self._ended or not is_known):
            return ["late" if self.ended else "accepted"] * len(events)
        outcomes: list[Outcome] = []
        async with aclosing(self.log.history(end=end)) as history:
            async for admitted in history:
                if admitted.record.offset >= first_offset:
                    outcomes.append(admitted.outcome)
                if admitted.event is not None and admitted.counts and admitted.event.type in ENDINGS:
                    self._ended = True
                if admitted.outcome == "rejected" and admitted.record.offset >= first_offset:
                    raise RejectedError(self.run_id, offset=admitted.record.offset, reason=admitted.reason)
        self._known_offset = max(self._known_offset, end)
        return outcomes

    def _may_be_parked(self) -> bool:
        """Whether the projector may have stopped following the run, because nothing came for so
        long.
        """
        return time.monotonic() - self._awake_since > self._settings.park_seconds / 2

    async def _ring(self) -> None:
        """Wakes the projector by a record in the catalog."""
        self._awake_since = time.monotonic()
        await self._publisher.send(
            self._catalog_topic, bell_record(self.run_id), partition=partition_of(self.run_id)
        )


def _check_expectations(events: Sequence[AnyEvent]) -> None:
    """The log decides on each event by itself, so it could accept only a part of a batch with
    expectations.
    """
    for index, event in enumerate(events):
        if event.expected_offset is not None and len(events) > 1:
            raise InvalidEventError(
                "expected_offset: an event with expected_offset must be published alone",
                field="expected_offset",
                index=index,
            )


def _may_be_refused(events: Sequence[AnyEvent], *, ended: bool) -> bool:
    """Whether the log may refuse one of the events: one that opens the run again, and one that
    follows an ending or an earlier answer. `ended` says whether the run may have ended before.
    """
    for event in events:
        # Two answers to one trigger have the same id, and each creates other memories.
        if event.type == "run_opened" or (ended and event.type in (*LIFECYCLE, "memories_generated")):
            return True
        ended = ended or event.type in ENDINGS
    return False
