"""The routes of memories. A memory is a Runfold memory in the engine's bank.

POST   {engine}/memories             create one
GET    {engine}/memories             list them, by filter
POST   {engine}/memories:purge       delete those that a filter matches, or count them
GET    {memory}                      read one
PATCH  {memory}                      change its fields or its expiry
DELETE {memory}                      delete it; it can be rolled back for 48 hours
POST   {memory}:rollback             set it back to a revision
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runfold.client.memory import MemorySelection, MemoryVerbs
from runfold.http.audited_ids import note_scope
from runfold.vertex.app import RouteGroup, resource_routes
from runfold.vertex.engines import bank_id
from runfold.vertex.errors import WireError
from runfold.vertex.memory_documents import (
    MEMORIES,
    REVISIONS,
    CreateMemory,
    MemoryMessage,
    Rollback,
    UpdateMemory,
    metadata_of,
    topics_of,
)
from runfold.vertex.memory_filters import FilterParameters, memory_query
from runfold.vertex.messages import PACKAGE, Empty, Message, camel_name
from runfold.vertex.names import Name, new_id
from runfold.vertex.operations import finished_operation
from runfold.vertex.paging import requested_page
from runfold.vertex.requests import (
    json_page,
    json_response,
    masked_fields,
    name_of,
    query_parameter,
    read_message,
)
from runfold_projections.memory import MemoryRecord
from runfold_schemas.errors import InvalidEventError, RevisionNotFoundError

_COUNT: Final = re.compile(r"[0-9]{1,18}")
_MEMORY_ID: Final = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")

_ORDERS: Final[Mapping[str, str]] = {"createTime": "created_at", "updateTime": "updated_at"}
_DIRECTIONS: Final[Mapping[str, bool]] = {"": True, "asc": True, "desc": False}

_MASKED: Final[Mapping[str, str]] = {
    "fact": "fact",
    "displayName": "display_name",
    "description": "description",
    "topics": "topics",
    "metadata": "metadata",
    "ttl": "expires_at",
    "expireTime": "expires_at",
}
"""The fields that a mask can name, with Runfold's names for them."""

_INPUT_ONLY: Final = (
    "scope",
    "disableMemoryRevisions",
    "revisionLabels",
    "revisionTtl",
    "revisionExpireTime",
)
"""Fields that a mask can name too, and that take effect also if it does not."""


class Purge(FilterParameters):
    """Deletes the memories that the filters match. Without `force` they are only counted."""

    force: bool = False


class Purged(Message):
    """The number of memories that were deleted, or would be."""

    proto: ClassVar[str] = f"{PACKAGE}.PurgeMemoriesResponse"

    purge_count: int


def memory_routes(memories: Callable[[], MemoryVerbs]) -> RouteGroup:
    """`memories` returns the client that the routes use, or raises while there is no connection."""
    handlers = _MemoryHandlers(memories)
    collection = "/reasoningEngines/{engine}/memories"
    routes = [
        Route(f"{collection}:purge", handlers.purge, methods=["POST"]),
        Route(f"{collection}/{{memory}}:rollback", handlers.rollback, methods=["POST"]),
        *resource_routes(collection, "memory", handlers),
    ]
    return RouteGroup(
        routes,
        {
            "createMemory": handlers.read_memory,
            "updateMemory": handlers.read_memory,
            "deleteMemory": handlers.read_nothing,
            "rollbackMemory": handlers.read_nothing,
            "purgeMemories": handlers.read_purge,
        },
    )


class _MemoryHandlers:
    """The handlers of the routes."""

    def __init__(self, memories: Callable[[], MemoryVerbs]) -> None:
        self._memories = memories

    async def create(self, request: Request) -> Response:
        """Creates a memory, with a new id unless one is given. 409 if that exists already."""
        engine, message, now = name_of(request), await read_message(request, CreateMemory), datetime.now(UTC)
        id_, memory = query_parameter(request, "memoryId"), message.memory(now)
        note_scope(memory.scope)
        record = await self._memories().create(
            bank_id(engine.engine_id),
            memory,
            memory_id=_checked_memory_id(id_) if id_ else new_id(),
            revision=message.revision(now),
        )
        name = engine.child(MEMORIES, record.memory_id)
        return finished_operation(name, "createMemory", MemoryMessage.of(record, engine))

    async def get(self, request: Request) -> Response:
        return json_response(await self.read_memory(name_of(request), ()))

    async def read_memory(self, name: Name, _: Sequence[str]) -> Message:
        return MemoryMessage.of(await self._memories().get(bank_id(name.engine_id), memory_id(name)), name)

    async def list(self, request: Request) -> Response:
        """Lists the memories that the filter matches; by default, the newest first."""
        engine, page = name_of(request), requested_page(request)
        query = _ordered(
            memory_query(query_parameter(request, "filter")), query_parameter(request, "orderBy")
        )
        note_scope(query.scope)
        records, token = await self._memories().list(
            bank_id(engine.engine_id), query, limit=page.size, cursor=page.token
        )
        items = [MemoryMessage.of(record, engine).json_form() for record in records]
        return json_page("memories", items, token)

    async def update(self, request: Request) -> Response:
        """Changes the fields that the mask names; without a mask, all fields of the message. The
        scope of a memory cannot change.
        """
        name, message, now = name_of(request), await read_message(request, UpdateMemory), datetime.now(UTC)
        memories, bank = self._memories(), bank_id(name.engine_id)
        changes = _changes(message, query_parameter(request, "updateMask"), now)
        revision = message.revision(now)
        if message.scope is not None:
            _check_scope(await memories.get(bank, memory_id(name)), message.scope)
        record = await memories.update(bank, memory_id(name), changes, revision=revision)
        return finished_operation(name, "updateMemory", MemoryMessage.of(record, name))

    async def delete(self, request: Request) -> Response:
        name = name_of(request)
        await self._memories().delete(bank_id(name.engine_id), memory_id(name))
        return finished_operation(name, "deleteMemory", Empty())

    async def rollback(self, request: Request) -> Response:
        name, message = name_of(request), await read_message(request, Rollback)
        bank, memory = bank_id(name.engine_id), memory_id(name)
        await self._memories().rollback(bank, memory, _revision_id(message.target_revision_id, name))
        return finished_operation(name, "rollbackMemory", Empty())

    async def read_nothing(self, _: Name, __: Sequence[str]) -> Message:
        return Empty()

    async def purge(self, request: Request) -> Response:
        engine, message = name_of(request), await read_message(request, Purge)
        query = memory_query(message.filter, message.filter_groups or [])
        note_scope(query.scope)
        count = await self._memories().purge(bank_id(engine.engine_id), query, force=message.force)
        return finished_operation(engine, "purgeMemories", Purged(purge_count=count), str(count))

    async def read_purge(self, _: Name, details: Sequence[str]) -> Message:
        if len(details) != 1 or not _COUNT.fullmatch(details[0]):
            raise WireError("NOT_FOUND", "the operation does not exist")
        return Purged(purge_count=int(details[0]))


def memory_id(name: Name) -> str:
    return name.id_in(MEMORIES) or ""


def _checked_memory_id(text: str) -> str:
    if not _MEMORY_ID.fullmatch(text):
        raise InvalidEventError(
            f"memoryId: {text!r} is not an id: use up to 63 lower-case letters, digits and `-`,"
            " begin with a letter, and end with a letter or a digit",
            field="memoryId",
        )
    return text


def _ordered(query: MemorySelection, order: str | None) -> MemorySelection:
    """The query with the order of the request. Raises `InvalidEventError`."""
    field, _, direction = " ".join((order or "create_time desc").split()).partition(" ")
    by, ascending = _ORDERS.get(camel_name(field)), _DIRECTIONS.get(direction.lower())
    if by is None or ascending is None:
        raise InvalidEventError(
            f"orderBy: {order!r} is not an order: use create_time or update_time, and asc or desc after it",
            field="orderBy",
        )
    return MemorySelection(
        scope=query.scope,
        matches=query.matches,
        order="updated_at" if by == "updated_at" else "created_at",
        ascending=ascending,
    )


def _changes(message: UpdateMemory, mask: str | None, now: datetime) -> dict[str, Any]:
    """The fields that change, with Runfold's names. A field that the mask names, and that has no
    value in the message, is cleared.
    """
    values: dict[str, Any] = {
        "fact": message.fact,
        "display_name": message.display_name,
        "description": message.description,
        "topics": None if message.topics is None else topics_of(message.topics),
        "metadata": None if message.metadata is None else metadata_of(message.metadata),
        "expires_at": message.expires_at(now),
    }
    if mask is None or mask == "*":
        return {name: value for name, value in values.items() if value is not None}
    fields = masked_fields(mask, known=[*_MASKED, *_INPUT_ONLY]) & _MASKED.keys()
    changes = {_MASKED[field]: values[_MASKED[field]] for field in fields}
    cleared: dict[str, Any] = {"topics": (), "metadata": {}}
    return {name: cleared.get(name) if value is None else value for name, value in changes.items()}


def _check_scope(record: MemoryRecord, scope: Mapping[str, str]) -> None:
    if dict(scope) != record.memory.scope:
        raise InvalidEventError("scope: the scope of a memory cannot change", field="scope")


def _revision_id(text: str, memory: Name) -> str:
    """The id in a revision's id or name. Raises `RevisionNotFoundError` if the name is that of a
    revision of another memory.
    """
    if "/" not in text:
        return text
    name = Name.parse(text)
    revision_id = name.id_in(REVISIONS)
    if revision_id is None:
        raise InvalidEventError(
            f"targetRevisionId: {text!r} is not the name of a revision", field="targetRevisionId"
        )
    if name.parent.path != memory.path:
        raise RevisionNotFoundError(memory.engine_id, memory_id(memory), text)
    return revision_id
