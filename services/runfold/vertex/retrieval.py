"""Memories retrieved for an agent: those of exactly one scope, all of them by time or the nearest
in meaning.

    POST {engine}/memories:retrieve
    POST {engine}/memories:retrieveProfiles      of which there are none: memories are texts here

Google's client cannot go on at a token that it has not asked for, so only who asks by pages gets
one.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Final

from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runfold.client.memories import Memories
from runfold.client.memory import MemoriesWanted
from runfold.vertex.app import RouteGroup
from runfold.vertex.engines import bank_id
from runfold.vertex.memory_documents import NATURAL_LANGUAGE, MemoryMessage
from runfold.vertex.memory_filters import Filtered
from runfold.vertex.messages import Message
from runfold.vertex.names import Name
from runfold.vertex.requests import answer, name_of, read
from runfold_projections.memory import MemoryRecord
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


class Retrieve(Filtered):
    """What is to be retrieved. With neither of the parameters it is all that one answer may
    have.
    """

    one_of = (("similarity_search_params", "simple_retrieval_params"),)

    scope: Scope
    similarity_search_params: BySimilarity | None = None
    simple_retrieval_params: ByTime | None = None
    memory_types: list[str] | None = None

    def wants_texts(self) -> bool:
        return not self.memory_types or not {NATURAL_LANGUAGE, _ANY_TYPE}.isdisjoint(self.memory_types)


class RetrieveProfiles(Message):
    scope: Scope


class Retrieved(Message):
    memory: MemoryMessage
    distance: float | None = None


class Answer(Message):
    retrieved_memories: list[Retrieved]
    next_page_token: str | None = None


def retrieval_routes(memories: Callable[[], Memories]) -> RouteGroup:
    """`memories` gives what the routes speak to, or raises while there is no connection."""

    async def retrieve(request: Request) -> Response:
        engine, asked = name_of(request), await read(request, Retrieve)
        bank = bank_id(engine.engine_id)
        if not asked.wants_texts():
            await memories().bank(bank)
            return answer(Answer(retrieved_memories=[]))
        if asked.similarity_search_params is not None:
            return answer(await _nearest(memories(), engine, asked, asked.similarity_search_params))
        return answer(await _newest(memories(), engine, asked))

    async def retrieve_profiles(request: Request) -> Response:
        engine, _ = name_of(request), await read(request, RetrieveProfiles)
        await memories().bank(bank_id(engine.engine_id))
        return answer({"profiles": {}})

    many = "/reasoningEngines/{engine}/memories"
    return RouteGroup(
        [
            Route(f"{many}:retrieve", retrieve, methods=["POST"]),
            Route(f"{many}:retrieveProfiles", retrieve_profiles, methods=["POST"]),
        ]
    )


async def _nearest(memories: Memories, engine: Name, asked: Retrieve, by: BySimilarity) -> Answer:
    found = await memories.nearest(
        engine.engine_id, asked.scope, by.search_query, limit=_size(by.top_k), matches=asked.matches()
    )
    shown = [Retrieved(memory=MemoryMessage.of(one.record, engine), distance=one.distance) for one in found]
    return Answer(retrieved_memories=shown)


async def _newest(memories: Memories, engine: Name, asked: Retrieve) -> Answer:
    wanted, by = MemoriesWanted(scope=asked.scope, matches=asked.matches()), asked.simple_retrieval_params
    size, token = (_MAX, None) if by is None else (_size(by.page_size), by.page_token or None)
    found, following = await memories.list(engine.engine_id, wanted, limit=size, cursor=token)
    return Answer(
        retrieved_memories=_shown(found, engine), next_page_token=following if by is not None else None
    )


def _shown(found: Sequence[MemoryRecord], engine: Name) -> list[Retrieved]:
    return [Retrieved(memory=MemoryMessage.of(record, engine)) for record in found]


def _size(asked: int | None) -> int:
    return min(asked or _DEFAULT, _MAX)
