"""Generation of memories: from facts, from a conversation that is given, or from a session of ours.

    generator = Generator(memories, runfold, model)
    await generator.generate("travel", {"user": "ann"}, DirectFacts([NewFact(text="Prefers window seats")]))

Facts that no model is asked about change memories directly. Whatever needs the model has a run of
its own for its log: the contents, the trigger (`GenerationRequested`), and one answer
(`MemoriesGenerated`). The run's agent is the bank.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from runfold.client.memories import Memories
from runfold.client.run import Run
from runfold.client.runfold import Runfold
from runfold.client.session import EventsWanted
from runfold.client.sessions import Sessions
from runfold.generation.answering import Answers, Trigger, give_up, log_run_id, stored
from runfold.generation.extraction import extract
from runfold.generation.logs import KIND, log_of
from runfold.generation.model import MemoryModel
from runfold.generation.options import (
    DIRECT_FACTS_MAX,
    ChangedMemory,
    Contents,
    DirectFacts,
    GenerationOptions,
    NewFact,
    SessionSource,
    Source,
)
from runfold.generation.transcript import transcript
from runfold.ids import uuid7
from runfold_projections.ledger import build_messages_from_log
from runfold_projections.memory import BankRecord
from runfold_schemas.codec import decode, new_data
from runfold_schemas.errors import InvalidEventError, NoModelError, RunfoldError
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import GenerationRequested
from runfold_schemas.sessions import FrameworkEvent

Log = Sequence[tuple[int, AnyEvent]]
"""Events with their offsets."""

_log = logging.getLogger(__name__)


class Generator:
    """Generates memories. `sessions` are where sessions are read; by default, the log.

    Every verb may raise `BankNotFoundError`, `UnavailableError`, `InvalidEventError`,
    `MemoryChangedError`, and, where the model is asked, `ConfigurationError` and
    `GenerationFailedError`.
    """

    def __init__(
        self,
        memories: Memories,
        runfold: Runfold,
        model: MemoryModel | None,
        *,
        sessions: Sessions | None = None,
    ) -> None:
        self.memories = memories
        self.runfold = runfold
        self._model = model
        self.sessions = sessions or runfold.sessions
        self._answers = Answers(memories, model)

    @property
    def model(self) -> MemoryModel:
        """Raises `NoModelError` where none is configured."""
        if self._model is None:
            raise NoModelError
        return self._model

    async def generate(
        self,
        bank_id: str,
        scope: Mapping[str, str] | None,
        source: Source,
        options: GenerationOptions | None = None,
    ) -> list[ChangedMemory]:
        """What has become of memories, when that can be read. Where the model has no answer nothing
        is changed; where others kept changing the same memories, or a server does not answer, some
        of the changes may have been made.

        Only for a session the scope may be left out: then it is `{"user_id": <the session's
        user>}`. Raises `NoModelError` where a model is needed and there is none,
        `SessionNotFoundError`.
        """
        options = options or GenerationOptions()
        bank = await self.memories.bank(bank_id)
        scope = await self._scope(scope, source)
        if isinstance(source, DirectFacts):
            _check(source.facts)
            if self._model is None or options.disable_consolidation:
                return await self._answers.make(bank_id, scope, source.facts, options)
        _ = self.model
        named = {"run_id": log_run_id(str(uuid7())), "labels": {KIND: "request"}}
        async with self.runfold.run(agent_id=bank_id, **named) as run:
            log = log_of(self.runfold, run.life, is_new=run.is_new)
            trigger = await publish_trigger(log, bank, scope, source, options)
            try:
                return await self.answer(trigger)
            except RunfoldError as error:
                await _tell(trigger, error)
                raise

    async def answer(self, trigger: Trigger) -> list[ChangedMemory]:
        """Answers a trigger. After an error it may be answered again, unless the log was told with
        `give_up`.
        """
        facts = trigger.facts
        if facts is None:
            facts = await self._extracted(trigger)
        return await self._answers.answer(trigger, facts)

    async def finish(self, trigger: Trigger) -> None:
        """Completes a generation whose answer is in the log, and whose process may have died
        since.
        """
        await self._answers.finish(trigger)

    async def _scope(self, given: Mapping[str, str] | None, source: Source) -> Mapping[str, str]:
        if given:
            return given
        if not isinstance(source, SessionSource):
            raise InvalidEventError("scope: whom the memories are about has to be said", field="scope")
        user = (await self.sessions.view(source.session_id)).record.user
        if not user:
            raise InvalidEventError("scope: the session has no user, so a scope is needed", field="scope")
        return {"user_id": user}

    async def _extracted(self, trigger: Trigger) -> list[NewFact]:
        data, bank = trigger.data, await self._answers.bank(trigger)
        said, is_cut = transcript(build_messages_from_log(await self._conversation(trigger)))
        if is_cut:
            _log.warning("of run %s only the newest part is read: it is too long", trigger.run.run_id)
        return await extract(
            self.model, said, config=bank.config, scope=data.scope, allowed=trigger.options.allowed_topics
        )

    async def _conversation(self, trigger: Trigger) -> Log:
        """What the trigger is about: a session, another run, or what stands before it in its own
        log.
        """
        data = trigger.data
        if session := trigger.session:
            return await self._of_session(session)
        named = data.options.get("run_id")
        run = await self.runfold.get_run(str(named)) if named else trigger.run
        return [
            (one.record.offset, one.event)
            async for one in run.history(first_offset=data.first_offset, end=data.end_offset)
            if one.counts and one.event is not None
        ]

    async def _of_session(self, source: SessionSource) -> Log:
        session = await self.sessions.view(source.session_id, EventsWanted(since=source.since))
        found = [(one.offset, decode(one.value)) for one in session.events]
        return [
            (offset, event)
            for offset, event in found
            if source.until is None or event.timestamp < source.until
        ]


def content_event(content: Mapping[str, Any]) -> FrameworkEvent:
    """A `Content` of Gemini as an event of a log: an event of ADK's that has nothing but its
    content. Raises `InvalidEventError`.
    """
    parts = content.get("parts")
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise InvalidEventError("contents: a content has `parts`, and a `role`", field="contents")
    author = "model" if content.get("role") == "model" else "user"
    return new_data(FrameworkEvent, framework="adk", body={"author": author, "content": dict(content)})


def _check(facts: Sequence[NewFact]) -> None:
    if not 1 <= len(facts) <= DIRECT_FACTS_MAX:
        raise InvalidEventError(f"facts: give 1 to {DIRECT_FACTS_MAX} of them", field="facts")
    if not all(fact.text.strip() for fact in facts):
        raise InvalidEventError("facts: a fact has a text", field="facts")


async def publish_trigger(
    run: Run, bank: BankRecord, scope: Mapping[str, str], source: Source, options: GenerationOptions
) -> Trigger:
    """The trigger in the run's log, behind what it is about."""
    first, end = 0, 0
    facts = session = None
    match source:
        case DirectFacts():
            facts = source.facts
        case Contents():
            positions = await run.publish_batch([content_event(content) for content in source.contents])
            if positions:
                first, end = positions[0].offset, positions[-1].offset + 1
        case SessionSource():
            session = source
    asked = new_data(
        GenerationRequested,
        bank_id=bank.bank_id,
        scope=dict(scope),
        first_offset=first,
        end_offset=end,
        reason="request",
        options=stored(options, facts=facts, session=session, bank_created_by=bank.created_by),
    )
    event = run.event(asked)
    return Trigger(run, event, (await run.publish(event)).offset)


async def _tell(trigger: Trigger, error: RunfoldError) -> None:
    """The error itself is the one to raise, also where the log cannot be told of it."""
    try:
        await give_up(trigger, error)
    except RunfoldError as failure:
        error.add_note(f"its trigger in run {trigger.run.run_id!r} stays without an answer: {failure}")
