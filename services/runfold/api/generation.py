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
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request
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
from runfold.generation.options import Generated
from runfold.generation.service import Generation
from runfold.generation.streams import stream_run_id
from runfold.http.app import PROBLEM_JSON
from runfold.http.bodies import JSON, JsonRoute
from runfold.http.idempotency import Replays, derived_id, fingerprint, key_of
from runfold.ingest.app import IdempotencyKey
from runfold.query.documents import Problem
from runfold_schemas.errors import MemoryNotFoundError


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
        responses=_problems(),
    )
    async def generate_memories(
        bank_id: BankId, asked: Generate, request: Request, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """What has become of memories, when that can be read. A failed generation changes
        nothing.
        """

        async def handle() -> Response:
            generator = generation.generator()
            generated = await generator.generate(bank_id, asked.scope, asked.source(), asked.options())
            return _answer(GeneratedMemories(generated=await _shown(generator.memories, bank_id, generated)))

        key = key_of(idempotency_key)
        return await replays.answer(f"generate/{bank_id}", key, fingerprint(await request.body()), handle)

    @router.post(
        "/{bank_id}/memories/ingest",
        summary="Ingest contents that memories are generated of",
        response_model=StreamPosition,
        responses=_problems(),
    )
    async def ingest_contents(
        bank_id: BankId, asked: Ingest, request: Request, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Answers when all contents are durable; where memories are generated at once, when those
        can be read. If that fails, the contents stay in the stream, and it is tried again later. A
        content that comes again counts once.
        """
        key = key_of(idempotency_key)

        async def handle() -> Response:
            position = await generation.streams.ingest(
                bank_id,
                asked.scope,
                asked.stream_id,
                asked.ingested(_content_ids(key, len(asked.contents))),
                rule=asked.rule,
                options=asked.options(),
                force_flush=asked.flush,
            )
            bank = await generation.generator().memories.bank(bank_id)
            run_id = stream_run_id(bank.created_by, asked.scope, asked.stream_id)
            return _answer(StreamPosition(run_id=run_id, offset=position.offset if position else None))

        return await replays.answer(f"ingest/{bank_id}", key, fingerprint(await request.body()), handle)

    return router


async def _shown(memories: Memories, bank_id: str, generated: Sequence[Generated]) -> list[GeneratedMemory]:
    async def shown(one: Generated) -> GeneratedMemory:
        try:
            memory = MemoryDocument.of(await memories.get(bank_id, one.memory_id))
        except MemoryNotFoundError:
            memory = None
        return GeneratedMemory.of(one, memory)

    return await asyncio.gather(*map(shown, generated))


def _content_ids(key: str | None, count: int) -> list[str] | None:
    return None if key is None else [derived_id("content", key, place) for place in range(count)]


def _answer(document: BaseModel) -> Response:
    return Response(document.model_dump_json(), media_type=JSON)


def _problems() -> dict[int | str, dict[str, Any]]:
    meanings = {
        HTTPStatus.NOT_FOUND: "There is no such bank, or no such session.",
        HTTPStatus.CONFLICT: "This needs a language model and none is configured, or others keep changing the same memories.",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The contents are too large together.",
        HTTPStatus.UNPROCESSABLE_ENTITY: "Something in the request is wrong; `field` names it.",
        HTTPStatus.BAD_GATEWAY: "The language model has no answer to this.",
        HTTPStatus.SERVICE_UNAVAILABLE: "Kafka, MongoDB or the language model is away, or no projector is at work. Retry.",
    }
    content = {PROBLEM_JSON: {"schema": Problem.model_json_schema()}}
    return {
        status.value: {"description": meaning, "content": content} for status, meaning in meanings.items()
    }
