"""Memories over HTTP: the verbs of `Memories` and of generation, for clients that reach Runfold's
API and not Kafka.

    async with HttpMemories("http://127.0.0.1:8080") as memories:
        await memories.create_bank("travel")
        await memories.create("travel", Memory(fact="Prefers window seats", scope={"user": "ann"}))
        near = await memories.nearest("travel", {"user": "ann"}, "Where does she like to sit?")

The errors are those of `Memories`, with the same attributes. No request is sent a second time by
itself. After an `UnavailableError`, a create that is repeated with the same `event_id` counts once.
A filter in Python cannot be sent over HTTP: `matches` raises `InvalidEventError`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import PydanticSerializationError, to_json

from runfold.client.appender import Position
from runfold.client.memories import Memories
from runfold.client.memory import MemorySelection, MemoryVerbs, NearestMemory, RevisionOptions
from runfold.client.memory_changes import check_fields
from runfold.documents.memories import (
    BankDocument,
    BankPage,
    MemoryDocument,
    MemoryPage,
    Purged,
    Retrieved,
    RevisionDocument,
    RevisionPage,
)
from runfold.generation.documents import GeneratedMemories, StreamPosition
from runfold.generation.options import (
    ChangedMemory,
    Contents,
    DirectFacts,
    GenerationOptions,
    Source,
    StreamContent,
)
from runfold.generation.triggers import TriggerRule
from runfold.generation.verbs import GenerationVerbs
from runfold.remote.api_client import HttpVerbs, pairs, quoted
from runfold_projections.memory import BankRecord, MemoryRecord, Revision
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.memories import BankConfig, Memory
from runfold_schemas.topics import check_id

_GENERATION_SECONDS: Final = 300.0
"""How long to wait for an answer that needs a language model, which may be asked twice."""


class HttpMemories(HttpVerbs):
    """The verbs of memories over HTTP. `HttpVerbs` has the other parameters.

    Args:
        generation_timeout_seconds: as `timeout_seconds`, for calls that may ask a language model.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float = 30.0,
        generation_timeout_seconds: float = _GENERATION_SECONDS,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(url, timeout_seconds=timeout_seconds, api_key=api_key, headers=headers)
        self._generation_seconds = generation_timeout_seconds

    # Banks.

    async def create_bank(
        self,
        bank_id: str | None = None,
        config: BankConfig | None = None,
        *,
        event_id: str | None = None,
    ) -> BankRecord:
        """As `Memories.create_bank`."""
        if bank_id is not None:
            check_id(bank_id, name="bank_id")
        request = {"bank_id": bank_id, "config": config or BankConfig(), **_creation(event_id)}
        return _bank(await self._client.call("POST", "banks", json=_json(request)))

    async def bank(self, bank_id: str) -> BankRecord:
        """As `Memories.bank`."""
        return _bank(await self._client.call("GET", _path(bank_id)))

    async def banks(
        self, *, limit: int = 50, cursor: str | None = None
    ) -> tuple[Sequence[BankRecord], str | None]:
        """As `Memories.banks`, with a `limit` up to 1,000."""
        body = await self._client.call("GET", "banks", params=_paging(limit, cursor))
        page = BankPage.model_validate_json(body)
        return [document.record() for document in page.banks], page.next_cursor

    async def update_bank(self, bank_id: str, changes: Mapping[str, Any]) -> BankRecord:
        """As `Memories.update_bank`."""
        check_fields(BankConfig, changes)
        return _bank(await self._client.call("PATCH", _path(bank_id), json=_json(changes)))

    async def delete_bank(self, bank_id: str, *, force: bool = False) -> None:
        """As `Memories.delete_bank`."""
        await self._client.call("DELETE", _path(bank_id), params={"force": force})

    # Memories.

    async def create(
        self,
        bank_id: str,
        memory: Memory,
        *,
        memory_id: str | None = None,
        revision: RevisionOptions | None = None,
        event_id: str | None = None,
    ) -> MemoryRecord:
        """As `Memories.create`."""
        request = {
            **dict(memory),
            "memory_id": memory_id,
            "revision": _revision(revision),
            **_creation(event_id),
        }
        return _memory(await self._client.call("POST", f"{_path(bank_id)}/memories", json=_json(request)))

    async def get(self, bank_id: str, memory_id: str) -> MemoryRecord:
        """As `Memories.get`."""
        return _memory(await self._client.call("GET", _path(bank_id, memory_id)))

    async def list(
        self,
        bank_id: str,
        selection: MemorySelection | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[Sequence[MemoryRecord], str | None]:
        """As `Memories.list`, with a `limit` up to 1,000. A key of `scope` must not contain a
        colon.
        """
        selection = _sendable(selection)
        parameters = {"order": selection.order, "ascending": selection.ascending, **_paging(limit, cursor)}
        parameters["scope"] = pairs(selection.scope or {}, field="scope")
        body = await self._client.call("GET", f"{_path(bank_id)}/memories", params=parameters)
        page = MemoryPage.model_validate_json(body)
        return [document.record() for document in page.memories], page.next_cursor

    async def update(
        self,
        bank_id: str,
        memory_id: str,
        changes: Mapping[str, Any],
        *,
        revision: RevisionOptions | None = None,
    ) -> MemoryRecord:
        """As `Memories.update`."""
        check_fields(Memory, changes)
        request = {**changes, "revision": _revision(revision)}
        return _memory(await self._client.call("PATCH", _path(bank_id, memory_id), json=_json(request)))

    async def delete(self, bank_id: str, memory_id: str, *, revision: RevisionOptions | None = None) -> None:
        """As `Memories.delete`."""
        await self._client.call("DELETE", _path(bank_id, memory_id), json=_json(_revision(revision)))

    async def rollback(
        self,
        bank_id: str,
        memory_id: str,
        revision_id: str,
        *,
        revision: RevisionOptions | None = None,
    ) -> MemoryRecord:
        """As `Memories.rollback`."""
        request = {"revision_id": revision_id, "revision": _revision(revision)}
        path = f"{_path(bank_id, memory_id)}/rollback"
        return _memory(await self._client.call("POST", path, json=_json(request)))

    async def purge(
        self,
        bank_id: str,
        selection: MemorySelection | None = None,
        *,
        everything: bool = False,
        force: bool = True,
    ) -> int:
        """As `Memories.purge`."""
        request = {"scope": _sendable(selection).scope, "everything": everything, "force": force}
        body = await self._client.call("POST", f"{_path(bank_id)}/memories/purge", json=_json(request))
        return Purged.model_validate_json(body).count

    async def nearest(
        self,
        bank_id: str,
        scope: Mapping[str, str],
        query: str,
        *,
        limit: int = 3,
        matches: Callable[[MemoryRecord], bool] | None = None,
    ) -> Sequence[NearestMemory]:
        """As `Memories.nearest`, with a `limit` up to 100 and a query that is not empty. Raises
        `InvalidEventError` for `matches`.
        """
        if matches is not None:
            raise _no_filter()
        request = {"scope": dict(scope), "query": query, "limit": limit}
        body = await self._client.call("POST", f"{_path(bank_id)}/memories/retrieve", json=_json(request))
        return [near.near() for near in Retrieved.model_validate_json(body).retrieved]

    # Revisions.

    async def revisions(
        self,
        bank_id: str,
        memory_id: str,
        *,
        labels: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[Sequence[Revision], str | None]:
        """As `Memories.revisions`, with a `limit` up to 1,000. A label's key must not contain a
        colon.
        """
        parameters = {**_paging(limit, cursor), "label": pairs(labels or {}, field="label")}
        body = await self._client.call("GET", f"{_path(bank_id, memory_id)}/revisions", params=parameters)
        page = RevisionPage.model_validate_json(body)
        return [document.revision() for document in page.revisions], page.next_cursor

    async def revision(self, bank_id: str, memory_id: str, revision_id: str) -> Revision:
        """As `Memories.revision`."""
        path = f"{_path(bank_id, memory_id)}/revisions/{quoted(revision_id)}"
        return RevisionDocument.model_validate_json(await self._client.call("GET", path)).revision()

    # Generation.

    async def generate(
        self,
        bank_id: str,
        scope: Mapping[str, str] | None,
        source: Source,
        options: GenerationOptions | None = None,
    ) -> Sequence[ChangedMemory]:
        """As `Generator.generate`."""
        request = {"scope": scope or None, **_source(source), **_options(options)}
        path = f"{_path(bank_id)}/memories/generate"
        body = await self._client.call("POST", path, json=_json(request), timeout=self._generation_seconds)
        return [memory.outcome() for memory in GeneratedMemories.model_validate_json(body).generated]

    async def ingest(
        self,
        bank_id: str,
        scope: Mapping[str, str],
        stream_id: str,
        contents: Sequence[StreamContent],
        *,
        rule: TriggerRule | None = None,
        options: GenerationOptions | None = None,
        force_flush: bool = False,
    ) -> Position | None:
        """As `IngestStreams.ingest`."""
        request = {
            "stream_id": stream_id,
            "scope": dict(scope),
            "contents": contents,
            "rule": rule,
            "flush": force_flush,
            **_options(options),
        }
        path = f"{_path(bank_id)}/memories/ingest"
        body = await self._client.call("POST", path, json=_json(request), timeout=self._generation_seconds)
        position = StreamPosition.model_validate_json(body)
        return Position(position.run_id, position.offset) if position.offset is not None else None


def _path(bank_id: str, memory_id: str | None = None) -> str:
    bank = f"banks/{quoted(check_id(bank_id, name='bank_id'))}"
    return bank if memory_id is None else f"{bank}/memories/{quoted(memory_id)}"


def _paging(limit: int, cursor: str | None) -> dict[str, Any]:
    return {"limit": limit, **({"cursor": cursor} if cursor is not None else {})}


def _sendable(selection: MemorySelection | None) -> MemorySelection:
    """The selection. Raises `InvalidEventError` if it cannot be sent over HTTP."""
    selection = selection or MemorySelection()
    if selection.matches is not None:
        raise _no_filter()
    if selection.scope is not None and not selection.scope:
        raise InvalidEventError("scope: it is empty, and no memory has an empty scope", field="scope")
    return selection


def _no_filter() -> InvalidEventError:
    return InvalidEventError("matches: a filter in Python cannot be sent over HTTP", field="matches")


def _creation(event_id: str | None) -> dict[str, str]:
    return {} if event_id is None else {"event_id": event_id}


def _revision(options: RevisionOptions | None) -> dict[str, Any]:
    if options is None:
        return {}
    if options.extracted:
        raise InvalidEventError("extracted: only a generation of memories sets it", field="extracted")
    return {"disabled": options.disabled, "labels": dict(options.labels), "expires_at": options.expires_at}


def _source(source: Source) -> dict[str, Any]:
    match source:
        case DirectFacts():
            return {"facts": [{"fact": fact.text, "topics": fact.topics} for fact in source.facts]}
        case Contents():
            return {"contents": source.contents}
        case _:
            return {"session": source}


def _options(options: GenerationOptions | None) -> dict[str, Any]:
    """The options as fields of the request. All options are sent, because a default counts too if
    the stream has other options.
    """
    if options is None:
        return {}
    expiry = (
        {"expires_at": options.revision_expires_at}
        if options.revision_expires_at is not None
        else {"ttl_seconds": options.revision_ttl_seconds}
    )
    return {
        "allowed_topics": options.allowed_topics,
        "disable_consolidation": options.disable_consolidation,
        "metadata": options.metadata,
        "metadata_merge": options.metadata_merge.lower(),
        "revision": {"disabled": options.disable_revisions, "labels": options.revision_labels, **expiry},
    }


def _json(value: Any) -> bytes:
    try:
        return to_json(value)
    except PydanticSerializationError as error:
        raise InvalidEventError(f"this is not JSON: {error}") from error


def _bank(body: bytes) -> BankRecord:
    return BankDocument.model_validate_json(body).record()


def _memory(body: bytes) -> MemoryRecord:
    return MemoryDocument.model_validate_json(body).record()


if TYPE_CHECKING:

    def _either(direct: Memories, over_http: HttpMemories) -> tuple[MemoryVerbs, MemoryVerbs]:
        """Both can do the same: what mypy checks here."""
        return direct, over_http

    def _generates(over_http: HttpMemories) -> GenerationVerbs:
        return over_http
