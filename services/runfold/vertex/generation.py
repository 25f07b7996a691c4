"""The routes that generate memories: from facts, from contents, or from a session of the engine; at
once, or from time to time.

    POST {engine}/memories:generate          generate, and return the changed memories
    POST {engine}/memories:ingestEvents      append contents to a stream

An error is answered with its status, and not in a finished operation, because Google's clients
ignore errors there.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runfold.generation.options import ChangedMemory
from runfold.generation.permitted import PermittedGeneration
from runfold.http.audited_ids import note_scope
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
"""The actions by their letters in an operation's id."""


def generation_routes(generation: Callable[[], PermittedGeneration]) -> RouteGroup:
    """`generation` has the permissions of the request. It raises while there is no connection."""

    async def generate(request: Request) -> Response:
        engine, message, now = name_of(request), await read_message(request, Generate), datetime.now(UTC)
        note_scope(message.scope)
        memories = await generation().generate(
            bank_id(engine.engine_id), message.scope, message.source(), message.options(now)
        )
        response = GenerateResponse.of(memories, engine)
        return finished_operation(engine, "generateMemories", response, *map(_write_detail, memories))

    async def read_generated(name: Name, details: Sequence[str]) -> Message:
        return GenerateResponse.of([_parse_detail(detail) for detail in details], name)

    async def ingest_events(request: Request) -> Response:
        engine, message, now = name_of(request), await read_message(request, IngestEvents), datetime.now(UTC)
        note_scope(message.scope)
        verbs = generation()
        bank = await verbs.bank(bank_id(engine.engine_id), message.scope)
        await verbs.ingest(
            bank.bank_id,
            message.scope,
            message.stream_id,
            [event.to_runfold() for event in message.direct_contents_source.events or []],
            rule=message.rule(),
            default_rule=ingestion_rule(bank),
            options=message.options(now),
            force_flush=message.force_flush,
        )
        return finished_operation(engine, "ingestEvents", IngestResponse())

    async def read_nothing(_: Name, __: Sequence[str]) -> Message:
        return IngestResponse()

    collection = "/reasoningEngines/{engine}/memories"
    return RouteGroup(
        [
            Route(f"{collection}:generate", generate, methods=["POST"]),
            Route(f"{collection}:ingestEvents", ingest_events, methods=["POST"]),
        ],
        {"generateMemories": read_generated, "ingestEvents": read_nothing},
    )


def _write_detail(memory: ChangedMemory) -> str:
    """A changed memory as a text in the operation's id."""
    return f"{memory.action[0]}{memory.previous_revision_id or ''}/{memory.memory_id}"


def _parse_detail(detail: str) -> ChangedMemory:
    """The changed memory. Raises `WireError` if `_write_detail` did not write the text."""
    before, slash, memory_id = detail[1:].partition("/")
    if detail[:1] not in _ACTIONS or not slash:
        raise WireError("NOT_FOUND", "the operation does not exist")
    return ChangedMemory(memory_id, _ACTIONS[detail[0]], before or None)
