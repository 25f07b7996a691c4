"""The log of a stream, or of any other generation: what is read of it, the triggers that are put
into it, and their answers.
"""

import asyncio

from runfold.client.run import Run
from runfold.generation.answering import Trigger, give_up, stored
from runfold.generation.generator import Generator
from runfold.generation.triggers import Reason, StreamState, apply, first_offset
from runfold.log.reader import read
from runfold_projections.admission import Admission
from runfold_schemas.codec import new_data
from runfold_schemas.errors import ConfigurationError, NoModelError, RejectedError, RunfoldError
from runfold_schemas.memories import GenerationRequested


class TriggerLog:
    """Reads on where it stopped. In one process, one of its triggers is answered at a time."""

    def __init__(self, generator: Generator, run: Run) -> None:
        self.generator = generator
        self.run = run
        self.state = StreamState()
        self.asked: set[str] = set()
        """The ids of triggers that were put into the log here: nobody else is at work on them."""
        self.answering = asyncio.Lock()
        self.used_at = float("-inf")
        """By the monotonic clock, when somebody was given it."""
        self._reading = asyncio.Lock()
        self._admission = Admission(run.run_id)
        self._topic = generator.runfold.connection.topics.run(run.run_id, run.life.log_id)

    async def catch_up(self) -> StreamState:
        """The state with everything that is in the log by now. Raises `UnavailableError`."""
        async with self._reading:
            begin = self.state.next_offset
            async for records in read(
                self.generator.runfold.connection.settings, self._topic, first_offset=begin
            ):
                for record in records:
                    if record.offset >= self.state.next_offset:
                        self.state = apply(self.state, self._admission.admit(record))
        return self.state

    async def trigger(self, reason: Reason) -> bool:
        """Asks for a generation of what is pending. Of several who ask one wins: False for the
        others.
        """
        state = self.state
        assert state.settings is not None
        asked = new_data(
            GenerationRequested,
            bank_id=self.run.life.agent_id,
            scope=state.settings.scope,
            first_offset=first_offset(state),
            end_offset=state.last_offset + 1,
            reason=reason,
            options=stored(state.settings.options, bank_created_by=state.settings.bank_created_by),
        )
        event = self.run.event(asked, expected_offset=state.last_offset)
        try:
            await self.run.publish(event)
        except RejectedError:
            return False
        self.asked.add(event.event_id)
        return True

    async def flush(self) -> None:
        """Returns when everything is answered for that was in the log before."""
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
        """Answers the trigger that is unanswered. Raises what the generator raises; what cannot
        have an answer is told in the log.
        """
        unanswered = self.state.unanswered
        assert unanswered is not None
        trigger = Trigger(self.run, unanswered.event, unanswered.offset)
        try:
            await self.generator.answer(trigger)
        except RunfoldError as error:
            if not (error.retriable or isinstance(error, ConfigurationError | NoModelError)):
                await give_up(trigger, error)
            raise
        else:
            self.asked.discard(trigger.event.event_id)
        finally:
            await self.catch_up()

    async def finish(self) -> None:
        """Completes what the last answer has begun, if whoever gave it has died since."""
        answered = self.state.answered
        assert answered is not None
        await self.generator.finish(Trigger(self.run, answered.event, answered.offset))
