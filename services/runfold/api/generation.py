"""The routes that generate memories.

    POST   /v1/banks/{bank_id}/memories/generate   from facts, a conversation or a session
    POST   /v1/banks/{bank_id}/memories/ingest     append contents to a stream

Facts given directly need no language model. Other requests answer 409 if no model is configured,
and the problem document says how to configure one.

A process answers a repeated `Idempotency-Key` with its first answer. In every process, contents of
a stream without an id get an id derived from the key and their index, so they count once. A
generation has no such id: another process consolidates the same facts once more, which changes no
text.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel

from runfold.api.memories import BankId
from runfold.client.memory import MemoryVerbs
from runfold.documents.memories import MemoryDocument
from runfold.generation.documents import (
    Generate,
    GeneratedMemories,
    GeneratedMemory,
    Ingest,
    StreamPosition,
)
from runfold.generation.options import ChangedMemory
from runfold.generation.permitted import PermittedGeneration
from runfold.generation.streams import stream_run_id
from runfold.http.audited_ids import note_scope
from runfold.http.bodies import JSON, JsonRoute
from runfold.http.idempotency import RepeatableModel, RepeatableRequest, Replays
from runfold.http.problems import problem_responses
from runfold_schemas.errors import MemoryNotFoundError

_MEANINGS: Final = {
    400: "`Idempotency-Key` is empty or too long.",
    404: "There is no such bank, or no such session.",
    409: "The request needs a language model and none is configured, or other writers keep changing the"
    " same memories; or the first request with this `Idempotency-Key` is still in progress.",
    413: "All contents together are too large.",
    422: "A part of the request is wrong. `field` names it.",
    502: "The language model refused, or its answer does not have the required form.",
    503: "Kafka, MongoDB or the language model does not answer, or no projector runs. Retry.",
}
_PROBLEMS: Final = problem_responses(_MEANINGS, *_MEANINGS)


def build_generation_router(generation: Callable[[], PermittedGeneration]) -> APIRouter:
    """The routes. `generation` returns the verbs for the principal of the request.

    The application has to come from `runfold.http.app.new_app`, which turns our errors into problem
    documents.
    """
    router = APIRouter(prefix="/v1/banks", tags=["memories"], route_class=JsonRoute)
    replays = Replays()

    @router.post(
        "/{bank_id}/memories/generate",
        summary="Generate memories",
        response_model=GeneratedMemories,
        responses=_PROBLEMS,
    )
    async def generate_memories(bank_id: BankId, body: Generate, request: RepeatableModel) -> Response:
        """Generate memories. The answer lists what became of each memory, and all of it is readable
        by then. A failed generation changes nothing.
        """

        note_scope(body.scope)

        async def handle() -> Response:
            verbs = generation()
            generated = await verbs.generate(bank_id, body.scope, body.source(), body.options())
            return _answer(GeneratedMemories(generated=await _describe(verbs.memories, bank_id, generated)))

        return await replays.answer(f"generate/{bank_id}", request, handle)

    @router.post(
        "/{bank_id}/memories/ingest",
        summary="Ingest contents to generate memories from",
        response_model=StreamPosition,
        responses=_PROBLEMS,
    )
    async def ingest_contents(bank_id: BankId, body: Ingest, request: RepeatableModel) -> Response:
        """Append contents to a stream. The answer follows when all contents are durable, and when
        generated memories are readable if the rule generates them at once. If the generation fails,
        the contents stay in the stream, and the generation is repeated later. A repeated content
        counts once.
        """

        note_scope(body.scope)

        async def handle() -> Response:
            verbs = generation()
            position = await verbs.ingest(
                bank_id,
                body.scope,
                body.stream_id,
                body.ingested(_content_ids(request, len(body.contents))),
                rule=body.rule,
                options=body.options(),
                force_flush=body.flush,
            )
            bank = await verbs.memories.bank(bank_id)
            run_id = stream_run_id(bank.created_by, body.scope, body.stream_id)
            return _answer(StreamPosition(run_id=run_id, offset=position.offset if position else None))

        return await replays.answer(f"ingest/{bank_id}", request, handle)

    return router


async def _describe(
    memories: MemoryVerbs, bank_id: str, generated: Sequence[ChangedMemory]
) -> list[GeneratedMemory]:
    async def describe(change: ChangedMemory) -> GeneratedMemory:
        try:
            memory = MemoryDocument.of(await memories.get(bank_id, change.memory_id))
        except MemoryNotFoundError:
            memory = None
        return GeneratedMemory.of(change, memory)

    return await asyncio.gather(*map(describe, generated))


def _content_ids(request: RepeatableRequest, count: int) -> list[str] | None:
    ids = [request.derived_id("content", index=index) for index in range(count)]
    return None if request.key is None else [id_ for id_ in ids if id_ is not None]


def _answer(document: BaseModel) -> Response:
    return Response(document.model_dump_json(), media_type=JSON)
