"""Memories generated over HTTP: of facts, of contents, or of a session of the engine; at once, or
from time to time.

    POST {engine}/memories:generate          what has become of memories
    POST {engine}/memories:ingestEvents      contents for a stream

What fails is told as an error at once: Google's clients do not look at one in an operation that is
done.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runfold.generation.options import ChangedMemory
from runfold.generation.service import Generation
from runfold.vertex.app import RouteGroup
from runfold.vertex.engine_documents import ingestion_rule
from runfold.vertex.engines import bank_id
from runfold.vertex.errors import WireError
from runfold.vertex.generation_documents import (
    Generate,
    GenerateResponse,
    IngestEvents,
    IngestResponse,
)
from runfold.vertex.messages import Message
from runfold.vertex.names import Name
from runfold.vertex.operations import finished_operation
from runfold.vertex.requests import name_of, read_message

_ACTIONS: Final[dict[str, Literal["CREATED", "UPDATED", "DELETED"]]] = {
    "C": "CREATED",
    "U": "UPDATED",
    "D": "DELETED",
}
"""By what stands for them in the id of an operation."""


def generation_routes(generation: Generation) -> RouteGroup:
    """What its generator speaks to it says itself, or raises while there is no connection."""

    async def generate(request: Request) -> Response:
        engine, asked, now = name_of(request), await read_message(request, Generate), datetime.now(UTC)
        generated = await generation.generator().generate(
            bank_id(engine.engine_id), asked.scope, asked.source(), asked.options(now)
        )
        response = GenerateResponse.of(generated, engine)
        return finished_operation(engine, "generateMemories", response, *map(_fact, generated))

    async def generated(name: Name, facts: Sequence[str]) -> Message:
        return GenerateResponse.of([_generated(fact) for fact in facts], name)

    async def ingest_events(request: Request) -> Response:
        engine, asked, now = name_of(request), await read_message(request, IngestEvents), datetime.now(UTC)
        bank = await generation.generator().memories.bank(bank_id(engine.engine_id))
        await generation.streams.ingest(
            bank.bank_id,
            asked.scope,
            asked.stream_id,
            [event.to_runfold() for event in asked.direct_contents_source.events or []],
            rule=asked.rule(),
            default_rule=ingestion_rule(bank),
            options=asked.options(now),
            force_flush=asked.force_flush,
        )
        return finished_operation(engine, "ingestEvents", IngestResponse())

    async def ingested(_: Name, __: Sequence[str]) -> Message:
        return IngestResponse()

    many = "/reasoningEngines/{engine}/memories"
    return RouteGroup(
        [
            Route(f"{many}:generate", generate, methods=["POST"]),
            Route(f"{many}:ingestEvents", ingest_events, methods=["POST"]),
        ],
        {"generateMemories": generated, "ingestEvents": ingested},
    )


def _fact(generated: ChangedMemory) -> str:
    """What an operation's id keeps."""
    return f"{generated.action[0]}{generated.previous_revision_id or ''}/{generated.memory_id}"


def _generated(fact: str) -> ChangedMemory:
    """Raises `WireError` for what was not given out here."""
    before, slash, memory_id = fact[1:].partition("/")
    if fact[:1] not in _ACTIONS or not slash:
        raise WireError("NOT_FOUND", "the operation does not exist")
    return ChangedMemory(memory_id, _ACTIONS[fact[0]], before or None)
