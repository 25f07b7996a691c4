"""ADK's memory service on Runfold's memories.

The memories of an app's user have the scope `{"app_name": ..., "user_id": ...}` in one bank, as in
Vertex AI's Memory Bank. Each session has a stream, into which its events are ingested. An event
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
from runfold.adk.events import adk_errors, time_of
from runfold.adk.memory_metadata import GenerationMetadata, MemoryMetadata, read_metadata
from runfold.client.memory import MemorySelection
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
from runfold_schemas.memories import FACT_LENGTH_MAX, Moment

_NO_SESSION: Final = "events"
"""The stream of events that are added without a session."""

_CREDENTIALS: Final = "adk_request_credential"
"""The name of ADK's function call that asks a user for secrets."""


AnswerT = TypeVar("AnswerT")


class RunfoldMemoryService(BaseMemoryService):
    """`BaseMemoryService` over Runfold's HTTP API, or on Kafka and MongoDB directly.

        RunfoldMemoryService("http://127.0.0.1:8080")
        RunfoldMemoryService(kafka="127.0.0.1:9092", mongo="mongodb://127.0.0.1:27017/?replicaSet=rs0")

    Without arguments it reads `RUNFOLD_KAFKA`, `RUNFOLD_MONGO` and all other settings from the
    environment. It connects with the first call and works in any event loop and thread; nobody has
    to close it.

    Adding sessions and events needs a language model, which `RUNFOLD_GENERATION_MODEL` names for
    the API or, without a URL, for this process. Without a model these methods raise `NoModelError`.
    Adding, searching and deleting memories needs no model.

    `UnavailableError` means that Kafka, MongoDB or the API is unavailable. After it the same call
    is safe to repeat, except `add_memory`, which may have added memories without an id of their
    own. If the model is unavailable, the events are kept, and memories are generated later.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        bank: str = "adk",
        found_max: int = 10,
        rule: TriggerRule | None = None,
        api_key: str | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are fields of `runfold.settings.Settings`, for use without the HTTP API.

        Args:
            url: the address of Runfold's API.
            bank: the bank of these memories. The first call creates it if it does not exist.
            found_max: how many memories a search returns at most.
            rule: when memories are generated from added events. Without a rule, memories are
                generated at once, and adding returns when they can be found. With a rule, for
                example `TriggerRule(idle_seconds=60)`, adding returns when the events are durable.
            api_key: an API key or a token for the API; by default, the variable `RUNFOLD_API_KEY`.
        """
        self._connection = memory_connection(url, settings, api_key=api_key)
        self._bank = bank
        self._found_max = found_max
        self._rule = rule

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._connection.__aexit__(*exc_info)

    async def close(self) -> None:
        """Closes the connections as soon as no call uses them any more, from any loop. A later call
        connects again. The connection of an `async with` block closes when the block is left.
        """
        await self._connection.close()

    async def add_session_to_memory(self, session: Session) -> None:
        """Generates memories from the events of the session that were not added before. Raises
        `NoModelError` if no model is configured, and `GenerationFailedError` if the model fails.
        Failed or not, the events are kept and need not be added again.
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
        """As `add_session_to_memory`, for these events. Of several events with the same id in a
        session the first counts. Events without content and events about credentials are ignored.

        `custom_metadata` may have the keys of Vertex AI's service: `stream_id` (instead of the
        session's), `force_flush`, `generation_trigger_config`, `allowed_topics`,
        `disable_consolidation`, `metadata`, `metadata_merge_strategy`, `disable_memory_revisions`,
        `revision_labels`, `revision_ttl` or `ttl`, `revision_expire_time`. Every other key becomes
        metadata of the memories. Raises `InputValidationError` with the name of a wrong value.
        """
        metadata = read_metadata(GenerationMetadata, custom_metadata)
        contents = [
            StreamContent(_content(event), event.id or None, time_of(event))
            for event in events
            if _counts(event)
        ]
        if not contents and not metadata.force_flush and metadata.rule() is None:
            return
        rule, options = metadata.rule() or self._rule, metadata.options()

        async def ingest(part: Sequence[StreamContent]) -> None:
            try:
                await self._in_bank(
                    lambda verbs: verbs.generation.ingest(
                        self._bank,
                        _scope(app_name, user_id),
                        metadata.stream_id or session_id or _NO_SESSION,
                        part,
                        rule=rule,
                        options=options,
                        force_flush=metadata.force_flush,
                    )
                )
            except EventTooLargeError:
                if len(part) == 1:
                    raise
                # An ingest appends all of its contents or none, so both halves are still to do.
                await ingest(part[: len(part) // 2])
                await ingest(part[len(part) // 2 :])

        with adk_errors():
            await ingest(contents)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Adds each entry's text as a memory. The memory has the entry's id if the entry has one;
        if that id is taken, `AlreadyExistsError` is raised, and the entries before it are added. An
        entry's author and timestamp become labels of the memory's revision.

        `custom_metadata`, and an entry's own, may have `topics`, `ttl` or `expire_time`,
        `display_name`, `description`, `memory_id`, `metadata`, `disable_memory_revisions`,
        `revision_labels`, `revision_ttl`, `revision_expire_time`. Every other key becomes metadata.
        With `enable_consolidation` the texts are consolidated with the memories of the scope, and
        only the keys that `add_events_to_memory` knows count. Raises `InputValidationError`.
        """
        if not memories:
            raise InputValidationError("memories: the list is empty")
        facts = [_fact(entry, index) for index, entry in enumerate(memories)]
        scope = _scope(app_name, user_id)
        with adk_errors():
            shared_metadata = read_metadata(GenerationMetadata, custom_metadata)
            if shared_metadata.enable_consolidation:
                await self._consolidate(scope, facts, shared_metadata)
                return
            for entry, fact in zip(memories, facts, strict=True):
                metadata = read_metadata(MemoryMetadata, custom_metadata, entry.custom_metadata)
                await self._create(scope, entry, fact, metadata)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """The memories of this app's user that are nearest in meaning to the query, the nearest
        first. For an empty query, the newest memories.
        """
        scope = _scope(app_name, user_id)

        async def search(verbs: MemoryBackend) -> Sequence[MemoryRecord]:
            if not query.strip():
                selection = MemorySelection(scope=scope, order="updated_at")
                return (await verbs.memories.list(self._bank, selection, limit=self._found_max))[0]
            near = await verbs.memories.nearest(
                self._bank, scope, query[:FACT_LENGTH_MAX], limit=self._found_max
            )
            return [memory.record for memory in near]

        with adk_errors():
            records = await self._in_bank(search)
        return SearchMemoryResponse(memories=[_entry(record) for record in records])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Deletes the memory with this id if it belongs to this app's user. It can be rolled back
        for 48 hours.
        """
        if not memory_id:
            return
        scope = _scope(app_name, user_id)

        async def delete(verbs: MemoryBackend) -> None:
            record = await verbs.memories.get(self._bank, memory_id)
            if record.memory.scope == scope:
                await verbs.memories.delete(self._bank, memory_id)

        with suppress(MemoryNotFoundError, BankNotFoundError):
            await self._connection.run(delete)

    async def _create(
        self, scope: Mapping[str, str], entry: MemoryEntry, fact: str, metadata: MemoryMetadata
    ) -> None:
        now = datetime.now(UTC)
        memory, revision = metadata.memory(fact, scope, now), metadata.revision(_labels(entry), now)
        memory_id = metadata.memory_id or entry.id
        try:
            await self._in_bank(
                lambda verbs: verbs.memories.create(
                    self._bank, memory, memory_id=memory_id, revision=revision
                )
            )
        except MemoryConflictError as error:
            raise AlreadyExistsError(f"Memory with id {error.memory_id} already exists.") from error

    async def _consolidate(
        self, scope: Mapping[str, str], facts: Sequence[str], metadata: GenerationMetadata
    ) -> None:
        options = metadata.options()
        for begin in range(0, len(facts), DIRECT_FACTS_MAX):
            part = DirectFacts([NewFact(text=text) for text in facts[begin : begin + DIRECT_FACTS_MAX]])
            await self._in_bank(_generating(self._bank, scope, part, options))

    async def _in_bank(self, use: Callable[[MemoryBackend], Awaitable[AnswerT]]) -> AnswerT:
        """What `use` returns. If the bank does not exist, it is created, and `use` is called
        again.
        """

        async def use_or_create(verbs: MemoryBackend) -> AnswerT:
            try:
                return await use(verbs)
            except BankNotFoundError:
                with suppress(BankConflictError):
                    await verbs.memories.create_bank(self._bank)
                return await use(verbs)

        return await self._connection.run(use_or_create)


def _generating(
    bank: str, scope: Mapping[str, str], facts: DirectFacts, options: GenerationOptions
) -> Callable[[MemoryBackend], Awaitable[object]]:
    return lambda verbs: verbs.generation.generate(bank, scope, facts, options)


def _scope(app_name: str, user_id: str) -> dict[str, str]:
    return {"app_name": app_name, "user_id": user_id}


def _counts(event: Event) -> bool:
    """Whether the event has content, and none about credentials."""
    parts = event.content.parts if event.content is not None else None
    if not parts or event.partial:
        return False
    functions = [part.function_call or part.function_response for part in parts]
    if any(function is not None and function.name == _CREDENTIALS for function in functions):
        return False
    return any(part.model_dump(exclude_none=True) not in ({}, {"text": ""}) for part in parts)


def _content(event: Event) -> dict[str, Any]:
    assert event.content is not None
    return event.content.model_dump(mode="json", by_alias=True, exclude_none=True)


def _fact(entry: MemoryEntry, index: int) -> str:
    """The entry's text. Raises `InputValidationError`."""
    parts = entry.content.parts or []
    if any(part.inline_data or part.file_data for part in parts):
        raise InputValidationError(f"memories[{index}]: a memory is a text and has no data or files")
    texts = [text for part in parts if (text := (part.text or "").strip())]
    if not texts:
        raise InputValidationError(f"memories[{index}]: the entry has no text")
    return "\n".join(texts)


def _labels(entry: MemoryEntry) -> dict[str, str]:
    labels = {"author": entry.author, "timestamp": entry.timestamp}
    return {name: value for name, value in labels.items() if value is not None}


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
