"""Appending events to the log of one run, and what the log made of them.

An appender does not forward by itself: events that change shared state or memories are forwarded by
`Run`, by `Sessions` and by the generation of memories, each in its own way. The projector forwards
what is still missing.
"""

import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple, Unpack

from runfold.blobs.log_blobs import LogBlobs
from runfold.client.deletion import noticing_deletion
from runfold.client.envelope import Envelope, event_of, naming_index
from runfold.client.records import batch_in_turns, stored_in_turns
from runfold.client.run_log import Reveal, RunLog, missing_log
from runfold.encryption.seal import Seal
from runfold.log.archived_logs import NoArchiveError
from runfold.log.catalog import bell_record, partition_of
from runfold.log.catalog_view import CatalogView
from runfold.log.effect_keys import effect_signer_of
from runfold.log.publisher import Ack, Outgoing, Publisher
from runfold.log.reader import LogGoneError
from runfold.log.settings import LogSettings
from runfold_projections.admission import Outcome
from runfold_schemas.catalog import Life
from runfold_schemas.data import Data
from runfold_schemas.errors import (
    InvalidEventError,
    RejectedError,
    RunEndedError,
    RunfoldError,
    RunNotFoundError,
)
from runfold_schemas.events import AnyEvent
from runfold_schemas.runs import ENDINGS, LIFECYCLE

Forwarding = Callable[[Sequence[AnyEvent]], Awaitable[None]]
"""Forwards what accepted events change of shared state, and returns when that is durable."""


Look = Callable[[Sequence[AnyEvent]], None]


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
        blobs: LogBlobs | None = None,
        seal: Seal | None = None,
        reveal: Reveal | None = None,
    ) -> None:
        """`is_new` says that this client has just opened the run. An append includes `forward` of
        the events that the log has accepted: if it fails, the same events may be appended again.
        Large bytes go to `blobs` before their events are appended.
        """
        topics = settings.topics
        topic = topics.run(life.run_id, life.log_id)
        self.life = life
        self.turn_id = turn_id
        skips = partial(catalog.skips_of, life.run_id, topic, is_new=is_new)
        self.log = RunLog(settings, topic, life.run_id, segments=catalog.segments, skips=skips, reveal=reveal)
        self._settings = settings
        self._signer = effect_signer_of(settings.effect_keys, topic)
        self._catalog = catalog
        self._current = catalog.watch(life)
        self._topics = topics
        self._publisher = publisher
        self._forward = forward
        self._blobs = blobs
        self._seal = seal
        self._awake_since = time.monotonic() if is_new else float("-inf")
        self._ended = False
        self._wrong_claim: Life | None = None
        """A life that says wrongly that the run has ended."""
        # The run did not end before this offset, except by an event of this appender: up to here
        # the log was written by this appender, or read.
        self._known_offset = 1 if is_new else 0

    @property
    def run_id(self) -> str:
        return self.life.run_id

    @property
    def ended(self) -> bool:
        """Whether this client knows that the run has ended."""
        known = self._current.life
        return self._ended or (known is not self._wrong_claim and self._claims_end(known))

    @property
    def deleted(self) -> bool:
        """Whether this client knows that the run was deleted."""
        return self._is_deletion(self._current.life)

    def _claims_end(self, life: Life | None) -> bool:
        return life is not None and life.log_id == self.life.log_id and life.ended

    async def _check_end(self, *, late: bool) -> None:
        """Looks for the end of the run in its log, before an event is refused because the catalog
        says that the run has ended: clients write to the catalog, too.
        """
        if late or self._ended or not self.ended or self.deleted:
            return
        claim = self._current.life
        try:
            end = await self.log.end()
            self._ended = await self.log.ended_before(end, not_before=self._known_offset)
        except LogGoneError:
            self._ended = True  # a run that is kept without its log takes no more events
        if not self._ended:
            self._wrong_claim = claim

    def _is_deletion(self, life: Life | None) -> bool:
        return life is not None and life.log_id == self.life.log_id and life.deleted

    async def _fault_of_log(self) -> RunfoldError | None:
        # The catalog is read last, because a deletion is in the catalog before the topic goes.
        has_topic = await self._publisher.has_topic(self.log.topic)
        if self._is_deletion(await self._catalog.lookup(self.run_id)):
            if self._blobs is not None:
                # The projector may have deleted the blobs of the run before these were stored.
                await self._blobs.discard()
            return RunNotFoundError(self.run_id)
        # An archived log has no topic until it is reopened.
        if has_topic or await self._catalog.look_up_segments(self.run_id) is not None:
            return None
        return missing_log(self.run_id)

    def event(self, data: Data, **envelope: Unpack[Envelope]) -> AnyEvent:
        """The event of this run that carries `data`, not yet appended. Raises
        `InvalidEventError`.
        """
        if envelope.get("turn_id") is None:
            envelope["turn_id"] = self.turn_id
        return event_of(data, self.run_id, **envelope)

    async def append(
        self,
        data: Data | AnyEvent,
        *,
        late: bool = False,
        look: Look | None = None,
        subject: str | None = None,
        **envelope: Unpack[Envelope],
    ) -> Position:
        """Appends one event and returns when it is durable. Raises what `Run.publish` raises.
        `look` gets the event as it is stored, before it is appended. If encryption is on, the event
        is sealed for the run's subject, or for `subject`.
        """
        [position] = await (await self.post(data, late=late, look=look, subject=subject, **envelope))
        return position

    async def append_batch(
        self,
        batch: Iterable[Data | AnyEvent],
        *,
        late: bool = False,
        look: Look | None = None,
        subject: str | None = None,
    ) -> list[Position]:
        """Appends several events as one record batch: all of them or none, next to each other."""
        posted = await self.post_batch(batch, late=late, look=look, subject=subject)
        return await posted if posted is not None else []

    async def post(
        self,
        data: Data | AnyEvent,
        *,
        late: bool = False,
        look: Look | None = None,
        subject: str | None = None,
        **envelope: Unpack[Envelope],
    ) -> Coroutine[Any, Any, list[Position]]:
        """Hands one event over to the publisher. The coroutine that it returns waits until the
        event is durable.
        """
        await self._check_end(late=late)
        event = self._checked(data, late=late, **envelope)
        stored, record = await stored_in_turns(
            event,
            source=self._settings.source,
            signer=self._signer,
            blobs=self._blobs,
            seal=self._seal_for(subject),
        )
        if look is not None:
            look([stored])
        return await self._post([stored], [record])

    async def post_batch(
        self,
        batch: Iterable[Data | AnyEvent],
        *,
        late: bool = False,
        look: Look | None = None,
        subject: str | None = None,
    ) -> Coroutine[Any, Any, list[Position]] | None:
        """As `post`, for several events as one record batch. None if the batch is empty."""
        await self._check_end(late=late)
        events = [self._checked_at(index, data, late=late) for index, data in enumerate(batch)]
        _check_expectations(events)
        stored, records = await batch_in_turns(
            events,
            source=self._settings.source,
            signer=self._signer,
            blobs=self._blobs,
            seal=self._seal_for(subject),
        )
        if look is not None:
            look(stored)
        return await self._post(stored, records) if events else None

    def _seal_for(self, subject: str | None) -> Seal | None:
        return self._seal if subject is None or self._seal is None else partial(self._seal, subject=subject)

    def _checked_at(self, index: int, data: Data | AnyEvent, *, late: bool) -> AnyEvent:
        with naming_index(index):
            return self._checked(data, late=late)

    def _checked(self, data: Data | AnyEvent, *, late: bool, **envelope: Unpack[Envelope]) -> AnyEvent:
        if self.deleted:
            raise RunNotFoundError(self.run_id)
        if self.ended and not late:
            raise RunEndedError(self.run_id)
        return self.event(data, **envelope) if isinstance(data, Data) else event_of(data, self.run_id)

    async def _post(
        self, events: list[AnyEvent], records: list[Outgoing]
    ) -> Coroutine[Any, Any, list[Position]]:
        if self._may_be_parked():
            if events[0].expected_offset is not None or _may_be_refused(events, ended=True):
                await self._check_archive()
            await self._ring()
        sent_at = time.monotonic()
        ack = self._publisher.put(self.log.topic, records[0]) if len(records) == 1 else None
        if ack is None:
            ack = await self._send(records)
        return self._acknowledged(ack, events, sent_at)

    async def _check_archive(self) -> None:
        """Raises `ConfigurationError` if this process could not read what the log makes of events,
        because earlier records are archived.
        """
        if self._settings.archived is not None:
            return
        entry = await self._catalog.look_up_segments(self.run_id)
        if entry is not None and entry.log_id == self.life.log_id:
            archived_end = entry.end if entry.sealed_base is None else entry.sealed_base
            if archived_end:
                raise NoArchiveError(self.run_id, end=archived_end)

    async def _send(self, records: list[Outgoing]) -> Ack:
        async with noticing_deletion(self._fault_of_log):
            if len(records) == 1:
                return await self._publisher.send(self.log.topic, records[0])
            return await self._publisher.send_batch(self.log.topic, records)

    async def _acknowledged(self, ack: Ack, events: list[AnyEvent], sent_at: float) -> list[Position]:
        async with noticing_deletion(self._fault_of_log):
            first_offset = (await self._publisher.wait(ack)).offset
        if self._may_be_parked():
            # The acknowledgement took so long that the projector may have parked the run before
            # the record was appended.
            await self._ring()
        else:
            self._awake_since = max(self._awake_since, sent_at)
        try:
            outcomes = await self._outcomes(events, first_offset=first_offset)
        except LogGoneError as error:  # the run was deleted behind these events
            raise await self._fault_of_log() or error from None
        if self._forward is not None:
            # Duplicates and late events change no shared state.
            await self._forward(
                [event for event, outcome in zip(events, outcomes, strict=True) if outcome == "accepted"]
            )
        if any(event.type in ENDINGS for event in events):
            self._ended = True
            self._awake_since = float("-inf")  # the projector follows an ended run no more
            self._publisher.finish(self.log.topic)
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
            return _outcomes_in_order(events, ended=self.ended)
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
            self._topics.catalog,
            bell_record(self.run_id),
            partition=partition_of(self._topics, self.run_id),
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


def _outcomes_in_order(events: Sequence[AnyEvent], *, ended: bool) -> list[Outcome]:
    """The outcomes of events of which none is refused: those behind an ending are late."""
    outcomes: list[Outcome] = []
    for event in events:
        outcomes.append("late" if ended else "accepted")
        ended = ended or event.type in ENDINGS
    return outcomes


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
