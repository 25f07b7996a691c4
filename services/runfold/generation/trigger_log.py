"""The log of a stream or of another generation: reads it, and publishes triggers and answers."""

import asyncio

from runfold.client.appender import Appender
from runfold.generation.answering import Trigger, give_up, trigger_options
from runfold.generation.generator import Generator
from runfold.generation.triggers import Reason, StreamState, apply, first_offset
from runfold.log.reader import read
from runfold_projections.admission import Admission, Admitted
from runfold_schemas.codec import new_data
from runfold_schemas.errors import ConfigurationError, NoModelError, RejectedError, RunfoldError
from runfold_schemas.memories import GenerationRequested


class TriggerLog:
    """A log, and its state up to the offset that was read last. One process answers one trigger of
    a log at a time.
    """

    def __init__(self, generator: Generator, appender: Appender) -> None:
        self.generator = generator
        self.appender = appender
        self.state = StreamState()
        self.own_triggers: set[str] = set()
        """The event ids of triggers that this process published, and therefore answers at once."""
        self.answering = asyncio.Lock()
        self.used_at = float("-inf")
        """When the log was last requested, by the monotonic clock."""
        self._reading = asyncio.Lock()
        self._admission = Admission(appender.run_id)
        self._decided: list[Admitted] = []
        """Records behind `state`. If they cannot be revealed now, a later read does so."""
        self._topic = generator.runfold.connection.topics.run(appender.run_id, appender.life.log_id)

    async def catch_up(self) -> StreamState:
        """Reads new records, and returns the state. Raises `UnavailableError`."""
        async with self._reading:
            self._admission.skipped = await self.appender.log.skips()
            begin, connection = self.state.next_offset, self.generator.runfold.connection
            async for records in read(
                connection.settings, self._topic, first_offset=begin, segments=connection.catalog.segments
            ):
                for record in records:
                    decided_to = self._decided[-1].record.offset + 1 if self._decided else 0
                    if record.offset >= max(decided_to, self.state.next_offset):
                        self._decided.append(self._admission.admit(record))
                for admitted in await self.appender.log.revealed(self._decided):
                    self.state = apply(self.state, admitted)
                self._decided.clear()
        return self.state

    async def trigger(self, reason: Reason) -> bool:
        """Publishes a trigger for the pending contents. If several processes do so at the same
        time, one succeeds; returns False for the others.
        """
        state = self.state
        assert state.settings is not None
        request = new_data(
            GenerationRequested,
            bank_id=self.appender.life.agent_id,
            scope=state.settings.scope,
            first_offset=first_offset(state),
            end_offset=state.last_offset + 1,
            reason=reason,
            options=trigger_options(state.settings.options, bank_created_by=state.settings.bank_created_by),
        )
        event = self.appender.event(request, expected_offset=state.last_offset)
        try:
            await self.appender.append(event)
        except RejectedError:
            return False
        self.own_triggers.add(event.event_id)
        return True

    async def flush(self) -> None:
        """Generates memories from all contents in the log, and returns when that is done."""
        async with self.answering:
            while True:
                state = await self.catch_up()
                if state.unanswered is not None:
                    await self.answer()
                elif not state.pending_count:
                    return
                else:
                    await self.trigger("flush")

    async def answer(self) -> None:
        """Answers the unanswered trigger. Raises the generator's errors; if an error is final, it
        is published as the answer.
        """
        unanswered = self.state.unanswered
        assert unanswered is not None
        trigger = Trigger(self.appender, unanswered.event, unanswered.offset)
        try:
            await self.generator.answer(trigger)
        except RunfoldError as error:
            if not (error.retriable or isinstance(error, ConfigurationError | NoModelError)):
                await give_up(trigger, error)
            raise
        else:
            self.own_triggers.discard(trigger.event.event_id)
        finally:
            await self.catch_up()

    async def finish(self) -> None:
        """Completes the last answer, in case that the process that published it has died."""
        answered = self.state.answered
        assert answered is not None
        await self.generator.finish(Trigger(self.appender, answered.event, answered.offset))
