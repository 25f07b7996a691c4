"""Memories of Agent Engine over HTTP, each of them one of ours.

POST   {engine}/memories             create one
GET    {engine}/memories             list them, by filter
POST   {engine}/memories:purge       delete those of a filter, or count them
GET    {memory}                      read one
PATCH  {memory}                      what it holds, and until when
DELETE {memory}                      gone; for 48 hours it can be rolled back
POST   {memory}:rollback             it holds again what it held after a revision
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runfold.client.memories import Memories
from runfold.client.memory import MemoriesWanted
from runfold.vertex.app import RouteGroup
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
from runfold.vertex.requests import json_response, name_of, query_parameter, read_message
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
"""What a mask can name, and what it is called with us."""

_INPUT_ONLY: Final = {
    "scope",
    "disableMemoryRevisions",
    "revisionLabels",
    "revisionTtl",
    "revisionExpireTime",
}
"""What a mask can name as well, and what counts without it."""


class Purge(FilterParameters):
    """Which memories are to be deleted. Without `force` they are only counted."""

    force: bool = False


class Purged(Message):
    """How many memories were deleted, or would be."""

    proto: ClassVar[str] = f"{PACKAGE}.PurgeMemoriesResponse"

    purge_count: int


def memory_routes(memories: Callable[[], Memories]) -> RouteGroup:
    """`memories` gives what the routes speak to, or raises while there is no connection."""
    handlers = _MemoryHandlers(memories)
    one, many = "/reasoningEngines/{engine}/memories/{memory}", "/reasoningEngines/{engine}/memories"
    routes = [
        Route(f"{many}:purge", handlers.purge, methods=["POST"]),
        Route(f"{one}:rollback", handlers.rollback, methods=["POST"]),
        Route(many, handlers.create, methods=["POST"]),
        Route(many, handlers.list, methods=["GET"]),
        Route(one, handlers.get, methods=["GET"]),
        Route(one, handlers.update, methods=["PATCH"]),
        Route(one, handlers.delete, methods=["DELETE"]),
    ]
    return RouteGroup(
        routes,
        {
            "createMemory": handlers.written,
            "updateMemory": handlers.written,
            "deleteMemory": handlers.emptied,
            "rollbackMemory": handlers.emptied,
            "purgeMemories": handlers.purged,
        },
    )


class _MemoryHandlers:
    """What the routes share, and what they do with it."""

    def __init__(self, memories: Callable[[], Memories]) -> None:
        self._memories = memories

    async def create(self, request: Request) -> Response:
        """A new memory, of a new id unless one is given: 409 where that is taken."""
        engine, asked, now = name_of(request), await read_message(request, CreateMemory), datetime.now(UTC)
        given = query_parameter(request, "memoryId")
        record = await self._memories().create(
            bank_id(engine.engine_id),
            asked.memory(now),
            memory_id=_checked(given) if given else new_id(),
            revision=asked.revision(now),
        )
        message = MemoryMessage.of(record, engine)
        return finished_operation(engine.child(MEMORIES, record.memory_id), "createMemory", message)

    async def get(self, request: Request) -> Response:
        return json_response(await self.written(name_of(request), ()))

    async def written(self, name: Name, _: Sequence[str]) -> Message:
        return MemoryMessage.of(await self._memories().get(bank_id(name.engine_id), memory_id(name)), name)

    async def list(self, request: Request) -> Response:
        """Memories that the filter holds of, the newest first unless something else is asked
        for.
        """
        engine, asked = name_of(request), requested_page(request)
        wanted = _ordered(
            memory_query(query_parameter(request, "filter")), query_parameter(request, "orderBy")
        )
        found, token = await self._memories().list(
            bank_id(engine.engine_id), wanted, limit=asked.size, cursor=asked.token
        )
        shown = [MemoryMessage.of(record, engine).json_form() for record in found]
        return json_response({"memories": shown, **({"nextPageToken": token} if token else {})})

    async def update(self, request: Request) -> Response:
        """What the mask names, or all that there is in the message. The scope stays as it is."""
        name, asked, now = name_of(request), await read_message(request, UpdateMemory), datetime.now(UTC)
        memories, bank = self._memories(), bank_id(name.engine_id)
        changes = _changes(asked, query_parameter(request, "updateMask"), now)
        revision = asked.revision(now)
        if asked.scope is not None:
            _check_scope(await memories.get(bank, memory_id(name)), asked.scope)
        record = await memories.update(bank, memory_id(name), changes, revision=revision)
        return finished_operation(name, "updateMemory", MemoryMessage.of(record, name))

    async def delete(self, request: Request) -> Response:
        name = name_of(request)
        await self._memories().delete(bank_id(name.engine_id), memory_id(name))
        return finished_operation(name, "deleteMemory", Empty())

    async def rollback(self, request: Request) -> Response:
        name, asked = name_of(request), await read_message(request, Rollback)
        bank, memory = bank_id(name.engine_id), memory_id(name)
        await self._memories().rollback(bank, memory, _revision_id(asked.target_revision_id, name))
        return finished_operation(name, "rollbackMemory", Empty())

    async def emptied(self, _: Name, __: Sequence[str]) -> Message:
        return Empty()

    async def purge(self, request: Request) -> Response:
        engine, asked = name_of(request), await read_message(request, Purge)
        wanted = memory_query(asked.filter, asked.filter_groups or [])
        count = await self._memories().purge(bank_id(engine.engine_id), wanted, force=asked.force)
        return finished_operation(engine, "purgeMemories", Purged(purge_count=count), str(count))

    async def purged(self, _: Name, facts: Sequence[str]) -> Message:
        if len(facts) != 1 or not _COUNT.fullmatch(facts[0]):
            raise WireError("NOT_FOUND", "the operation does not exist")
        return Purged(purge_count=int(facts[0]))


def memory_id(name: Name) -> str:
    return name.id_in(MEMORIES) or ""


def _checked(given: str) -> str:
    if not _MEMORY_ID.fullmatch(given):
        raise InvalidEventError(
            f"memoryId: {given!r} is not an id: up to 63 lower-case letters, digits and `-`, the first of them a letter, the"
            " last a letter or a digit",
            field="memoryId",
        )
    return given


def _ordered(wanted: MemoriesWanted, order: str | None) -> MemoriesWanted:
    """Raises `InvalidEventError`."""
    field, _, direction = " ".join((order or "create_time desc").split()).partition(" ")
    by, ascending = _ORDERS.get(camel_name(field)), _DIRECTIONS.get(direction.lower())
    if by is None or ascending is None:
        raise InvalidEventError(
            f"orderBy: {order!r} is none of create_time and update_time, with asc or desc behind it",
            field="orderBy",
        )
    return MemoriesWanted(
        scope=wanted.scope,
        matches=wanted.matches,
        order="updated_at" if by == "updated_at" else "created_at",
        ascending=ascending,
    )


def _changes(asked: UpdateMemory, mask: str | None, now: datetime) -> dict[str, Any]:
    """The fields that change, by our names for them; what the mask names and the message does not
    have is taken away.
    """
    given: dict[str, Any] = {
        "fact": asked.fact,
        "display_name": asked.display_name,
        "description": asked.description,
        "topics": None if asked.topics is None else topics_of(asked.topics),
        "metadata": None if asked.metadata is None else metadata_of(asked.metadata),
        "expires_at": asked.expires_at(now),
    }
    if mask is None or mask == "*":
        return {name: value for name, value in given.items() if value is not None}
    changes = {name: given[name] for name in _named(mask)}
    emptied: dict[str, Any] = {"topics": (), "metadata": {}}
    return {name: emptied.get(name) if value is None else value for name, value in changes.items()}


def _named(mask: str) -> set[str]:
    named = {camel_name(path.strip()) for path in mask.split(",")} - _INPUT_ONLY
    if unknown := sorted(named - set(_MASKED)):
        known = ", ".join(_MASKED)
        raise InvalidEventError(f"updateMask: {unknown[0]!r} is not a field of {known}", field="updateMask")
    return {_MASKED[path] for path in named}


def _check_scope(record: MemoryRecord, scope: Mapping[str, str]) -> None:
    if dict(scope) != record.memory.scope:
        raise InvalidEventError("scope: that of a memory never changes", field="scope")


def _revision_id(given: str, memory: Name) -> str:
    """Of a revision's id or name. Raises `RevisionNotFoundError` for the name of another
    memory's.
    """
    if "/" not in given:
        return given
    name = Name.parse(given)
    found = name.id_in(REVISIONS)
    if found is None:
        raise InvalidEventError(
            f"targetRevisionId: {given!r} is not a revision's name", field="targetRevisionId"
        )
    if name.parent.path != memory.path:
        raise RevisionNotFoundError(memory.engine_id, memory_id(memory), given)
    return found
