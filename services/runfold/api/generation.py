"""Generation of memories over HTTP, in our own words.

    POST   /v1/banks/{bank_id}/memories/generate   of facts, of a conversation, or of a session: answers what became of memories
    POST   /v1/banks/{bank_id}/memories/ingest     contents for a stream, which memories are generated of by its rule

Facts need no model. What needs one answers 409 where none is configured, and says how to configure
one.

Under an `Idempotency-Key` a process gives its first answer again. What holds in every process:
contents of a stream without an id get one by the key and their place, so they count once. A
generation has no such id: repeated in another process it consolidates the same facts once more,
which changes no text.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel

from runfold.api.memories import BankId
from runfold.client.memories import Memories
from runfold.documents.generation import (
    Generate,
    GeneratedMemories,
    GeneratedMemory,
    Ingest,
    StreamPosition,
)
from runfold.documents.memories import MemoryDocument
from runfold.generation.options import ChangedMemory
from runfold.generation.service import Generation
from runfold.generation.streams import stream_run_id
from runfold.http.bodies import JSON, JsonRoute
from runfold.http.idempotency import RepeatableModel, RepeatableRequest, Replays
from runfold.http.problems import problem_responses
from runfold_schemas.errors import MemoryNotFoundError

_MEANINGS: Final = {
    400: "`Idempotency-Key` is empty or too long.",
    404: "There is no such bank, or no such session.",
    409: "The request needs a language model and none is configured, or other writers keep changing the same memories.",
    413: "The contents are too large together.",
    422: "A part of the request is wrong. `field` names it.",
    502: "The language model refused, or its answer is of no use.",
    503: "Kafka, MongoDB or the language model does not answer, or no projector runs. Retry.",
}
_PROBLEMS: Final = problem_responses(_MEANINGS, *_MEANINGS)


def build_generation_router(generation: Generation) -> APIRouter:
    """The routes. The application has to come from `runfold.http.app.new_app`, which makes problem
    documents of our errors.
    """
    router = APIRouter(prefix="/v1/banks", tags=["memories"], route_class=JsonRoute)
    replays = Replays()

    @router.post(
        "/{bank_id}/memories/generate",
        summary="Generate memories",
        response_model=GeneratedMemories,
        responses=_PROBLEMS,
    )
    async def generate_memories(bank_id: BankId, asked: Generate, request: RepeatableModel) -> Response:
        """What has become of memories, when that can be read. A failed generation changes
        nothing.
        """

        async def handle() -> Response:
            generator = generation.generator()
            generated = await generator.generate(bank_id, asked.scope, asked.source(), asked.options())
            return _answer(GeneratedMemories(generated=await _shown(generator.memories, bank_id, generated)))

        return await replays.answer(f"generate/{bank_id}", request, handle)

    @router.post(
        "/{bank_id}/memories/ingest",
        summary="Ingest contents that memories are generated of",
        response_model=StreamPosition,
        responses=_PROBLEMS,
    )
    async def ingest_contents(bank_id: BankId, asked: Ingest, request: RepeatableModel) -> Response:
        """Answers when all contents are durable; where memories are generated at once, when those
        can be read. If that fails, the contents stay in the stream, and it is tried again later. A
        content that comes again counts once.
        """

        async def handle() -> Response:
            position = await generation.streams.ingest(
                bank_id,
                asked.scope,
                asked.stream_id,
                asked.ingested(_content_ids(request, len(asked.contents))),
                rule=asked.rule,
                options=asked.options(),
                force_flush=asked.flush,
            )
            bank = await generation.generator().memories.bank(bank_id)
            run_id = stream_run_id(bank.created_by, asked.scope, asked.stream_id)
            return _answer(StreamPosition(run_id=run_id, offset=position.offset if position else None))

        return await replays.answer(f"ingest/{bank_id}", request, handle)

    return router


async def _shown(
    memories: Memories, bank_id: str, generated: Sequence[ChangedMemory]
) -> list[GeneratedMemory]:
    async def shown(one: ChangedMemory) -> GeneratedMemory:
        try:
            memory = MemoryDocument.of(await memories.get(bank_id, one.memory_id))
        except MemoryNotFoundError:
            memory = None
        return GeneratedMemory.of(one, memory)

    return await asyncio.gather(*map(shown, generated))


def _content_ids(request: RepeatableRequest, count: int) -> list[str] | None:
    ids = [request.derived_id("content", index=index) for index in range(count)]
    return None if request.key is None else [id_ for id_ in ids if id_ is not None]


def _answer(document: BaseModel) -> Response:
    return Response(document.model_dump_json(), media_type=JSON)
