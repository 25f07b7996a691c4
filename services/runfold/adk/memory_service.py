"""ADK's memory service on Runfold's memories.

The memories of a user of an app are those of the scope `{"app_name": ..., "user_id": ...}` in one
bank, as in Vertex AI's Memory Bank. Events are ingested into a stream for each session, where each
counts once, however often its session is added.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Self, TypeVar

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.input_validation_error import InputValidationError
from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.genai import types

from runfold.access.memories import memory_connection
from runfold.adk.events import time_of, told_to_adk
from runfold.adk.memory_metadata import SaidOfGeneration, SaidOfMemory, said_in
from runfold.client.memory import MemoriesWanted
from runfold.generation.options import (
    DIRECT_FACTS_MAX,
    DirectFacts,
    GenerationOptions,
    NewFact,
    StreamContent,
)
from runfold.generation.triggers import TriggerRule
from runfold.generation.verbs import MemoryBackend
from runfold_projections.memory import MemoryRecord
from runfold_schemas.errors import (
    BankConflictError,
    BankNotFoundError,
    EventTooLargeError,
    MemoryConflictError,
    MemoryNotFoundError,
)
from runfold_schemas.memories import Moment

_NO_SESSION: Final = "events"
"""The stream of events that no session is told of."""

_CREDENTIALS: Final = "adk_request_credential"
"""ADK's name for what is asked for secrets."""

_QUERY_LENGTH_MAX: Final = 20_000

AnswerT = TypeVar("AnswerT")


class RunfoldMemoryService(BaseMemoryService):
    """`BaseMemoryService` on Runfold: over its HTTP API, or on Kafka and MongoDB themselves.

        RunfoldMemoryService("http://127.0.0.1:8080")
        RunfoldMemoryService(kafka="127.0.0.1:9092", mongo="mongodb://127.0.0.1:27017/?replicaSet=rs0")

    Without arguments it takes `RUNFOLD_KAFKA`, `RUNFOLD_MONGO` and all other settings from the
    environment. It connects when it is first used. `close` it, or use it as an async context
    manager.

    Adding sessions and events needs a language model: `RUNFOLD_GENERATION_MODEL`, of the API or,
    without one, of this process. Where none is configured that is a `NoModelError`. Adding,
    searching and deleting memories needs none.

    Kafka, MongoDB or the API away is `UnavailableError`, after which the same call is safe to
    repeat; only `add_memory` may have added memories that have no id of their own. Where the model
    is away, events that were added are kept and read later.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        bank: str = "adk",
        found_max: int = 10,
        rule: TriggerRule | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are those of `runfold.settings.Settings`, for use without the HTTP API.

        Args:
            url: of Runfold's API.
            bank: whose memories these are; it is created when it is not there.
            found_max: how many memories a search finds.
            rule: when memories are generated of events that were added. Without one, at once, and adding returns when they can
                be found; with `TriggerRule(idle_seconds=60)`, say, adding returns as soon as the events are durable.
        """
        self._connection = memory_connection(url, settings)
        self._bank = bank
        self._found_max = found_max
        self._rule = rule

    async def __aenter__(self) -> Self:
        await self._connection.verbs()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._connection.close()

    async def add_session_to_memory(self, session: Session) -> None:
        """Generates memories of what of the session was not added before. Raises `NoModelError`
        where no model is configured, and `GenerationFailedError` where it has no answer: the events
        are kept then, and do not need to be added again.
        """
        await self.add_events_to_memory(
            app_name=session.app_name,
            user_id=session.user_id,
            session_id=session.id,
            events=session.events,
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """As `add_session_to_memory`, of these events. Of events with the same id in a session the
        first counts; those without content, and those about credentials, are left out.

        `custom_metadata` may say what it may say to Vertex AI's service: `stream_id` (instead of
        the session's), `force_flush`, `generation_trigger_config`, `allowed_topics`,
        `disable_consolidation`, `metadata`, `metadata_merge_strategy`, `disable_memory_revisions`,
        `revision_labels`, `revision_ttl` or `ttl`, `revision_expire_time`. All else becomes
        metadata of the memories. Raises `InputValidationError` naming what is wrong with it.
        """
        said = said_in(SaidOfGeneration, custom_metadata)
        contents = [
            StreamContent(_content(event), event.id or None, time_of(event))
            for event in events
            if _is_said(event)
        ]
        if not contents and not said.force_flush and said.rule() is None:
            return
        rule, options = said.rule() or self._rule, said.options()

        async def ingest(some: Sequence[StreamContent]) -> None:
            try:
                await self._in_bank(
                    lambda to: to.generation.ingest(
                        self._bank,
                        _scope(app_name, user_id),
                        said.stream_id or session_id or _NO_SESSION,
                        some,
                        rule=rule,
                        options=options,
                        force_flush=said.force_flush,
                    )
                )
            except EventTooLargeError:
                if len(some) == 1:
                    raise
                # All or none of it is appended, so nothing is yet.
                await ingest(some[: len(some) // 2])
                await ingest(some[len(some) // 2 :])

        with told_to_adk():
            await ingest(contents)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Adds each entry's text as a memory, of the entry's id if it has one: `AlreadyExistsError`
        where that is taken, and those before it are added. An entry's author and timestamp become
        labels of the memory's revision.

        `custom_metadata`, and an entry's own, may say `topics`, `ttl` or `expire_time`,
        `display_name`, `description`, `memory_id`, `metadata`, `disable_memory_revisions`,
        `revision_labels`, `revision_ttl`, `revision_expire_time`. All else becomes metadata. With
        `enable_consolidation` the texts are consolidated with what the scope knows already; only
        what `add_events_to_memory` takes of generation counts then. Raises `InputValidationError`.
        """
        if not memories:
            raise InputValidationError("memories: there is none")
        facts = [_fact(entry, index) for index, entry in enumerate(memories)]
        scope = _scope(app_name, user_id)
        with told_to_adk():
            of_all = said_in(SaidOfGeneration, custom_metadata)
            if of_all.enable_consolidation:
                await self._consolidate(scope, facts, of_all)
                return
            for entry, fact in zip(memories, facts, strict=True):
                said = said_in(SaidOfMemory, custom_metadata, entry.custom_metadata)
                await self._create(scope, entry, fact, said)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """The memories of this user of this app that are nearest in meaning, the nearest first; of
        an empty query the newest.
        """
        scope = _scope(app_name, user_id)

        async def found(to: MemoryBackend) -> Sequence[MemoryRecord]:
            if not query.strip():
                wanted = MemoriesWanted(scope=scope, order="updated_at")
                return (await to.memories.list(self._bank, wanted, limit=self._found_max))[0]
            asked = query[:_QUERY_LENGTH_MAX]
            near = await to.memories.nearest(self._bank, scope, asked, limit=self._found_max)
            return [one.record for one in near]

        with told_to_adk():
            return SearchMemoryResponse(memories=[_entry(one) for one in await self._in_bank(found)])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Deletes the memory of this id, if this user of this app has one. For 48 hours it can be
        rolled back.
        """
        if not memory_id:
            return
        memories = (await self._connection.verbs()).memories
        with suppress(MemoryNotFoundError, BankNotFoundError):
            found = await memories.get(self._bank, memory_id)
            if found.memory.scope == _scope(app_name, user_id):
                await memories.delete(self._bank, memory_id)

    async def _create(
        self, scope: Mapping[str, str], entry: MemoryEntry, fact: str, said: SaidOfMemory
    ) -> None:
        now = datetime.now(UTC)
        memory, revision = said.memory(fact, scope, now), said.revision(_labels(entry), now)
        memory_id = said.memory_id or entry.id
        try:
            await self._in_bank(
                lambda to: to.memories.create(self._bank, memory, memory_id=memory_id, revision=revision)
            )
        except MemoryConflictError as error:
            raise AlreadyExistsError(f"Memory with id {error.memory_id} already exists.") from error

    async def _consolidate(
        self, scope: Mapping[str, str], facts: Sequence[str], said: SaidOfGeneration
    ) -> None:
        options = said.options()
        for begin in range(0, len(facts), DIRECT_FACTS_MAX):
            given = DirectFacts([NewFact(text=text) for text in facts[begin : begin + DIRECT_FACTS_MAX]])
            await self._in_bank(_generating(self._bank, scope, given, options))

    async def _in_bank(self, verb: Callable[[MemoryBackend], Awaitable[AnswerT]]) -> AnswerT:
        """What the verb answers. A bank that turns out not to be there is created, and the verb
        called again.
        """
        to = await self._connection.verbs()
        try:
            return await verb(to)
        except BankNotFoundError:
            with suppress(BankConflictError):
                await to.memories.create_bank(self._bank)
            return await verb(to)


def _generating(
    bank: str, scope: Mapping[str, str], given: DirectFacts, options: GenerationOptions
) -> Callable[[MemoryBackend], Awaitable[object]]:
    return lambda to: to.generation.generate(bank, scope, given, options)


def _scope(app_name: str, user_id: str) -> dict[str, str]:
    return {"app_name": app_name, "user_id": user_id}


def _is_said(event: Event) -> bool:
    """Whether there is something in the event, and nothing that has to be forgotten."""
    parts = event.content.parts if event.content is not None else None
    if not parts or event.partial:
        return False
    asked = [part.function_call or part.function_response for part in parts]
    if any(one is not None and one.name == _CREDENTIALS for one in asked):
        return False
    return any(part.model_dump(exclude_none=True) not in ({}, {"text": ""}) for part in parts)


def _content(event: Event) -> dict[str, Any]:
    assert event.content is not None
    return event.content.model_dump(mode="json", by_alias=True, exclude_none=True)


def _fact(entry: MemoryEntry, index: int) -> str:
    """The entry's text. Raises `InputValidationError`."""
    parts = entry.content.parts or []
    if any(part.inline_data or part.file_data for part in parts):
        raise InputValidationError(f"memories[{index}]: a memory is a text, without data and files")
    texts = [text for part in parts if (text := (part.text or "").strip())]
    if not texts:
        raise InputValidationError(f"memories[{index}]: there is no text in it")
    return "\n".join(texts)


def _labels(entry: MemoryEntry) -> dict[str, str]:
    said = {"author": entry.author, "timestamp": entry.timestamp}
    return {name: value for name, value in said.items() if value is not None}


def _entry(record: MemoryRecord) -> MemoryEntry:
    metadata = record.memory.metadata.items()
    return MemoryEntry(
        id=record.memory_id,
        author="user",
        content=types.Content(role="user", parts=[types.Part(text=record.memory.fact)]),
        timestamp=record.updated_at.isoformat(),
        custom_metadata={
            key: value.timestamp if isinstance(value, Moment) else value for key, value in metadata
        },
    )
