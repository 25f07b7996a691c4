"""Generates memories: from direct facts, from a given conversation, or from a session of Runfold.

    generator = Generator(memories, runfold, model)
    facts = DirectFacts([NewFact(text="Prefers window seats")])
    await generator.generate("travel", {"user": "ann"}, facts)

Direct facts change memories without a log if the model is not asked about them. Every other
generation has a run of its own as its log, with the contents, the trigger (`GenerationRequested`)
and one answer (`MemoriesGenerated`). The run's agent is the bank.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from runfold.client.appender import Appender
from runfold.client.memories import Memories
from runfold.client.runfold import Runfold
from runfold.client.session import EventSelection
from runfold.client.sessions import Sessions
from runfold.encryption.subjects import subject_of_scope
from runfold.generation.answering import Answers, Trigger, give_up, log_run_id, trigger_options
from runfold.generation.extraction import extract
from runfold.generation.logs import KIND
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
    """Generates memories. Sessions are read through `sessions`; by default, from the log.

    Every verb may raise `BankNotFoundError`, `UnavailableError`, `InvalidEventError` and
    `MemoryChangedError`; verbs that ask the model also `ConfigurationError` and
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
        """Raises `NoModelError` if none is configured."""
        if self._model is None:
            raise NoModelError
        return self._model

    async def generate(
        self,
        bank_id: str,
        scope: Mapping[str, str] | None,
        source: Source,
        options: GenerationOptions | None = None,
    ) -> Sequence[ChangedMemory]:
        """Generates memories, and returns the memories that were changed when they can be read.

        If the model has no answer, nothing is changed. After a `MemoryChangedError` or an
        `UnavailableError`, some of the changes may have been made.

        The scope can be left out if the source is a session: then it is `{"user_id": <the session's
        user>}`. Raises also `SessionNotFoundError`, and `NoModelError` if a model is needed and
        none is configured.
        """
        options = options or GenerationOptions()
        bank = await self.memories.bank(bank_id)
        scope = await self.scope_of(scope, source)
        if isinstance(source, DirectFacts):
            _check_facts(source.facts)
            if self._model is None or options.disable_consolidation:
                return await self._answers.change_memories(bank_id, scope, source.facts, options)
        _ = self.model
        log_id, labels = log_run_id(str(uuid7())), {KIND: "request"}
        async with self.runfold.run(agent_id=bank_id, run_id=log_id, labels=labels) as run:
            log = self.runfold.connection.appender_of(run.life, is_new=run.is_new)
            trigger = await publish_trigger(log, bank, scope, source, options)
            try:
                return await self.answer(trigger)
            except RunfoldError as error:
                await _log_failure(trigger, error)
                raise

    async def answer(self, trigger: Trigger) -> list[ChangedMemory]:
        """Answers a trigger. After an error it can be answered again, unless `give_up` published
        that it has no answer.
        """
        facts = trigger.facts
        if facts is None:
            facts = await self._extract(trigger)
        return await self._answers.answer(trigger, facts)

    async def finish(self, trigger: Trigger) -> None:
        """Completes a generation whose answer is in the log, in case that its process has died."""
        await self._answers.finish(trigger)

    async def scope_of(self, scope: Mapping[str, str] | None, source: Source) -> Mapping[str, str]:
        """The scope of the memories that `generate` would make. Raises `SessionNotFoundError`, and
        `InvalidEventError` if there is none.
        """
        if scope:
            return scope
        if not isinstance(source, SessionSource):
            raise InvalidEventError("scope: a scope is needed unless the source is a session", field="scope")
        user = (await self.sessions.view(source.session_id)).record.user
        if not user:
            raise InvalidEventError("scope: the session has no user, so a scope is needed", field="scope")
        return {"user_id": user}

    async def _extract(self, trigger: Trigger) -> list[NewFact]:
        data, bank = trigger.data, await self._answers.bank(trigger)
        text, is_cut = transcript(build_messages_from_log(await self._read_conversation(trigger)))
        if is_cut:
            _log.warning("run %s is too long: only its newest part is read", trigger.appender.run_id)
        return await extract(
            self.model, text, config=bank.config, scope=data.scope, allowed=trigger.options.allowed_topics
        )

    async def _read_conversation(self, trigger: Trigger) -> Log:
        """The events that the trigger is about: of a session, of another run, or of its own log."""
        data = trigger.data
        if session := trigger.session:
            return await self._read_session(session)
        run_id = data.options.get("run_id")
        life = (await self.runfold.get_run(str(run_id))).life if run_id else trigger.appender.life
        log = self.runfold.connection.log_of(life)
        return [entry async for entry in log.entries(first_offset=data.first_offset, end=data.end_offset)]

    async def _read_session(self, source: SessionSource) -> Log:
        session = await self.sessions.view(source.session_id, EventSelection(since=source.since))
        events = [(logged.offset, decode(logged.value)) for logged in session.events]
        return [
            (offset, event)
            for offset, event in events
            if source.until is None or event.timestamp < source.until
        ]


def content_event(content: Mapping[str, Any]) -> FrameworkEvent:
    """A `Content` of Gemini as an event: an event of ADK with nothing but this content. Raises
    `InvalidEventError`.
    """
    parts = content.get("parts")
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise InvalidEventError("contents: each content needs `parts`, and a `role`", field="contents")
    author = "model" if content.get("role") == "model" else "user"
    return new_data(FrameworkEvent, framework="adk", body={"author": author, "content": dict(content)})


def _check_facts(facts: Sequence[NewFact]) -> None:
    if not 1 <= len(facts) <= DIRECT_FACTS_MAX:
        raise InvalidEventError(f"facts: give 1 to {DIRECT_FACTS_MAX} facts", field="facts")
    if not all(fact.text.strip() for fact in facts):
        raise InvalidEventError("facts: the text of a fact is empty", field="facts")


async def publish_trigger(
    run: Appender, bank: BankRecord, scope: Mapping[str, str], source: Source, options: GenerationOptions
) -> Trigger:
    """Publishes the contents of the source, if it has any, and after them a trigger."""
    first, end = 0, 0
    facts = session = None
    match source:
        case DirectFacts():
            facts = source.facts
        case Contents():
            events = [content_event(content) for content in source.contents]
            positions = await run.append_batch(events, subject=subject_of_scope(bank.bank_id, scope))
            if positions:
                first, end = positions[0].offset, positions[-1].offset + 1
        case SessionSource():
            session = source
    request = new_data(
        GenerationRequested,
        bank_id=bank.bank_id,
        scope=dict(scope),
        first_offset=first,
        end_offset=end,
        reason="request",
        options=trigger_options(options, facts=facts, session=session, bank_created_by=bank.created_by),
    )
    event = run.event(request)
    return Trigger(run, event, (await run.append(event)).offset)


async def _log_failure(trigger: Trigger, error: RunfoldError) -> None:
    """Publishes that the trigger has no answer. If that fails, `error` gets a note, since it is the
    error to raise.
    """
    try:
        await give_up(trigger, error)
    except RunfoldError as failure:
        error.add_note(f"the trigger in run {trigger.appender.run_id!r} stays without an answer: {failure}")
