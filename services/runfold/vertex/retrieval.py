"""The routes that retrieve memories for an agent: those of exactly one scope, either the newest or
those nearest to a query.

    POST {engine}/memories:retrieve
    POST {engine}/memories:retrieveProfiles      always empty: memories are texts here

Google's client fails on a token that it did not ask for, so only requests for pages get one.
"""

from collections.abc import Callable
from typing import Annotated, Final

from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runfold.client.memory import MemorySelection, MemoryVerbs
from runfold.http.audited_ids import note_scope
from runfold.vertex.app import RouteGroup
from runfold.vertex.engines import bank_id
from runfold.vertex.memory_documents import NATURAL_LANGUAGE, MemoryMessage
from runfold.vertex.memory_filters import FilterParameters
from runfold.vertex.messages import Message
from runfold.vertex.names import Name
from runfold.vertex.requests import json_response, name_of, read_message
from runfold_schemas.memories import Scope

_DEFAULT: Final = 3
_MAX: Final = 100

_ANY_TYPE: Final = "MEMORY_TYPE_UNSPECIFIED"

_Size = Annotated[int, Field(ge=0)]


class BySimilarity(Message):
    search_query: Annotated[str, StringConstraints(min_length=1)]
    top_k: _Size | None = None


class ByTime(Message):
    page_size: _Size | None = None
    page_token: str | None = None


class Retrieve(FilterParameters):
    """Which memories to retrieve. Without parameters, as many as one answer may contain."""

    one_of = (("similarity_search_params", "simple_retrieval_params"),)

    scope: Scope
    similarity_search_params: BySimilarity | None = None
    simple_retrieval_params: ByTime | None = None
    memory_types: list[str] | None = None

    def includes_texts(self) -> bool:
        return not self.memory_types or not {NATURAL_LANGUAGE, _ANY_TYPE}.isdisjoint(self.memory_types)


class RetrieveProfiles(Message):
    scope: Scope


class RetrievedMemory(Message):
    memory: MemoryMessage
    distance: float | None = None


class RetrieveResponse(Message):
    retrieved_memories: list[RetrievedMemory]
    next_page_token: str | None = None


def retrieval_routes(memories: Callable[[], MemoryVerbs]) -> RouteGroup:
    """`memories` returns the client that the routes use, or raises while there is no connection."""

    async def retrieve(request: Request) -> Response:
        engine, message = name_of(request), await read_message(request, Retrieve)
        bank = bank_id(engine.engine_id)
        note_scope(message.scope)
        if not message.includes_texts():
            await memories().bank(bank)
            return json_response(RetrieveResponse(retrieved_memories=[]))
        if message.similarity_search_params is not None:
            search = message.similarity_search_params
            return json_response(await _retrieve_nearest(memories(), engine, message, search))
        return json_response(await _retrieve_newest(memories(), engine, message))

    async def retrieve_profiles(request: Request) -> Response:
        engine, _ = name_of(request), await read_message(request, RetrieveProfiles)
        await memories().bank(bank_id(engine.engine_id))
        return json_response({"profiles": {}})

    collection = "/reasoningEngines/{engine}/memories"
    return RouteGroup(
        [
            Route(f"{collection}:retrieve", retrieve, methods=["POST"]),
            Route(f"{collection}:retrieveProfiles", retrieve_profiles, methods=["POST"]),
        ]
    )


async def _retrieve_nearest(
    memories: MemoryVerbs, engine: Name, message: Retrieve, search: BySimilarity
) -> RetrieveResponse:
    nearest = await memories.nearest(
        engine.engine_id,
        message.scope,
        search.search_query,
        limit=_size(search.top_k),
        matches=message.predicate(),
    )
    return RetrieveResponse(
        retrieved_memories=[
            RetrievedMemory(memory=MemoryMessage.of(near.record, engine), distance=near.distance)
            for near in nearest
        ]
    )


async def _retrieve_newest(memories: MemoryVerbs, engine: Name, message: Retrieve) -> RetrieveResponse:
    query = MemorySelection(scope=message.scope, matches=message.predicate())
    page = message.simple_retrieval_params
    size, token = (_MAX, None) if page is None else (_size(page.page_size), page.page_token or None)
    records, next_token = await memories.list(engine.engine_id, query, limit=size, cursor=token)
    return RetrieveResponse(
        retrieved_memories=[RetrievedMemory(memory=MemoryMessage.of(record, engine)) for record in records],
        next_page_token=next_token if page is not None else None,
    )


def _size(requested: int | None) -> int:
    return min(requested or _DEFAULT, _MAX)
