"""The routes of banks and memories.

    POST   /v1/banks                                     create a bank
    GET    /v1/banks, /v1/banks/{bank_id}                list them, read one
    PATCH  /v1/banks/{bank_id}                           change its configuration
    DELETE /v1/banks/{bank_id}?force=true                delete it with its memories
    POST   /v1/banks/{bank_id}/memories                  create a memory
    GET    /v1/banks/{bank_id}/memories                  list them by scope
    POST   /v1/banks/{bank_id}/memories/retrieve         find them by scope and meaning
    POST   /v1/banks/{bank_id}/memories/purge            delete or count them
    GET    /v1/banks/{bank_id}/memories/{id}             read one; PATCH changes, DELETE deletes it
    GET    /v1/banks/{bank_id}/memories/{id}/revisions   its history; .../{revision_id}: a revision
    POST   /v1/banks/{bank_id}/memories/{id}/rollback    restore an earlier revision

The routes write to the log and read from MongoDB, so only the API, which is ingest and query in one
process, serves them. A 2xx means that a change is durable. Every answer contains all changes that
were acknowledged before the request.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from pydantic import BaseModel

from runfold.client.memory import MemorySelection, MemoryVerbs, NearestMemory
from runfold.documents.memories import (
    BankDocument,
    BankPage,
    CreateBank,
    CreateMemory,
    MemoryDocument,
    MemoryPage,
    NearMemory,
    Purge,
    Purged,
    Retrieve,
    Retrieved,
    RevisionDocument,
    RevisionPage,
    RevisionWanted,
    RollBack,
    UpdateMemory,
)
from runfold.http.audited_ids import note_scope
from runfold.http.bodies import JSON, JsonRoute
from runfold.http.idempotency import (
    RepeatableModel,
    RepeatableRequest,
    Replays,
    repetition,
    status_of_creation,
)
from runfold.http.problems import problem_responses
from runfold.query.parameters import Cursor, Limit, label_filter
from runfold_schemas.memories import BankConfig

Verbs = Callable[[], MemoryVerbs]

BankId = Annotated[
    str, Path(description="The bank's id, percent-encoded: `/` is `%2F`.", examples=["travel"])
]
MemoryId = Annotated[str, Path(description="The memory's id, percent-encoded.", examples=["m-1"])]
RevisionId = Annotated[
    str, Path(description="The revision's id, which is the id of the event that made the revision.")
]
ScopeFilter = Annotated[
    list[str],
    Query(
        description="`key:value`, split at the first colon. Memories with exactly these pairs as their"
        " scope.",
        examples=[["user:ann"]],
    ),
]
Order = Annotated[
    Literal["created_at", "updated_at"], Query(description="The time by which the list is sorted.")
]
Ascending = Annotated[bool, Query(description="The oldest entry first.")]
Force = Annotated[bool, Query(description="Delete the bank also if it has memories.")]
LabelFilter = Annotated[
    list[str], Query(description="`key:value`, split at the first colon. All of several labels must match.")
]

_problems = partial(
    problem_responses,
    {
        400: "`Idempotency-Key` is empty or too long.",
        404: "There is no such bank, memory or revision, or it was deleted.",
        409: "The id is taken, the bank is not empty, or other writers keep changing the memory; or the"
        " first request with this `Idempotency-Key` is still in progress.",
        413: "The body, or a value in it, is too large.",
        422: "A part of the request is wrong. `field` names it.",
        503: "Kafka or MongoDB does not answer, or no projector runs. Retry.",
        504: "The change is recorded, but its result could not be read in time. Read it later, and do not"
        " repeat the change.",
    },
)


def build_memory_router(memories: Verbs) -> APIRouter:
    """The routes. `memories` returns the client, or raises while there is no connection.

    The application has to come from `runfold.http.app.new_app`, which turns our errors into problem
    documents.
    """
    router = APIRouter(prefix="/v1/banks", tags=["memories"], route_class=JsonRoute)
    _add_creations(router, memories)
    for add in (_add_banks, _add_lists, _add_memories, _add_revisions):
        add(router, memories)
    return router


def _add_creations(router: APIRouter, memories: Verbs) -> None:
    replays = Replays()

    @router.post(
        "",
        status_code=HTTPStatus.CREATED,
        summary="Create a bank",
        response_model=BankDocument,
        responses=_problems(400, 409, 413, 422) | repetition(BankDocument),
    )
    async def create_bank(body: CreateBank, request: RepeatableModel) -> Response:
        """Create a bank. Without `bank_id`, it gets a new id. The answer is 200 instead of 201 if
        an earlier copy of the request has created the bank.
        """
        return await replays.answer("banks", request, lambda: _create_bank(memories(), body, request))

    @router.post(
        "/{bank_id}/memories",
        status_code=HTTPStatus.CREATED,
        summary="Create a memory",
        response_model=MemoryDocument,
        responses=_problems(400, 404, 409, 413, 422, 504) | repetition(MemoryDocument),
    )
    async def create_memory(bank_id: BankId, body: CreateMemory, request: RepeatableModel) -> Response:
        """Create a memory. Without `memory_id`, it gets a new id. The answer is 200 instead of 201
        if an earlier copy of the request has created the memory.
        """
        return await replays.answer(
            f"memories/{bank_id}", request, lambda: _create_memory(memories(), bank_id, body, request)
        )


async def _create_bank(memories: MemoryVerbs, body: CreateBank, request: RepeatableRequest) -> Response:
    received_at = datetime.now(UTC)
    ids = request.creation_ids("bank", resource_id=body.bank_id, event_id=body.event_id)
    bank = await memories.create_bank(ids.resource_id, body.config, event_id=ids.event_id)
    status = status_of_creation(bank.created_at, received_at=received_at)
    return _answer(BankDocument.of(bank), status, location=f"/v1/banks/{quote(bank.bank_id, safe='')}")


async def _create_memory(
    memories: MemoryVerbs, bank_id: str, body: CreateMemory, request: RepeatableRequest
) -> Response:
    received_at = datetime.now(UTC)
    ids = request.creation_ids("memory", bank_id, resource_id=body.memory_id, event_id=body.event_id)
    memory = body.memory()
    note_scope(memory.scope)
    record = await memories.create(
        bank_id,
        memory,
        memory_id=ids.resource_id,
        revision=body.revision.options(),
        event_id=ids.event_id,
    )
    status = status_of_creation(record.created_at, received_at=received_at)
    names = "/memories/".join(quote(part, safe="") for part in (bank_id, record.memory_id))
    return _answer(MemoryDocument.of(record), status, location=f"/v1/banks/{names}")


def _add_banks(router: APIRouter, memories: Verbs) -> None:
    @router.get("", summary="List banks", response_model=BankPage, responses=_problems(422))
    async def list_banks(*, limit: Limit = 50, cursor: Cursor = None) -> Response:
        """List banks, the newest first. To read on, send `next_cursor` as `cursor`."""
        banks, next_cursor = await memories().banks(limit=limit, cursor=cursor)
        return _answer(BankPage(banks=[BankDocument.of(bank) for bank in banks], next_cursor=next_cursor))

    @router.get(
        "/{bank_id}", summary="Read a bank", response_model=BankDocument, responses=_problems(404, 422)
    )
    async def read_bank(bank_id: BankId) -> Response:
        """Read a bank with its configuration."""
        return _answer(BankDocument.of(await memories().bank(bank_id)))

    @router.patch(
        "/{bank_id}",
        summary="Change a bank's configuration",
        response_model=BankDocument,
        responses=_problems(404, 413, 422),
    )
    async def update_bank(bank_id: BankId, body: BankConfig) -> Response:
        """Change the configuration of a bank. Fields that you leave out keep their values."""
        changes = {name: getattr(body, name) for name in body.model_fields_set}
        return _answer(BankDocument.of(await memories().update_bank(bank_id, changes)))

    @router.delete(
        "/{bank_id}",
        status_code=HTTPStatus.NO_CONTENT,
        summary="Delete a bank",
        responses=_problems(404, 409, 422),
    )
    async def delete_bank(bank_id: BankId, *, force: Force = False) -> Response:
        """Delete a bank. If it has memories, this needs `force`."""
        await memories().delete_bank(bank_id, force=force)
        return Response(status_code=HTTPStatus.NO_CONTENT)


def _add_lists(router: APIRouter, memories: Verbs) -> None:
    @router.get(
        "/{bank_id}/memories",
        summary="List memories",
        response_model=MemoryPage,
        responses=_problems(404, 422),
    )
    async def list_memories(
        bank_id: BankId,
        *,
        scope: ScopeFilter = [],  # noqa: B006  # FastAPI copies it
        order: Order = "created_at",
        ascending: Ascending = False,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        """List memories, the newest first. To read on, send `next_cursor` as `cursor`, and the same
        order.
        """
        selection = MemorySelection(
            scope=label_filter(scope, field="scope") or None, order=order, ascending=ascending
        )
        note_scope(selection.scope)
        records, next_cursor = await memories().list(bank_id, selection, limit=limit, cursor=cursor)
        return _answer(
            MemoryPage(memories=[MemoryDocument.of(record) for record in records], next_cursor=next_cursor)
        )

    @router.post(
        "/{bank_id}/memories/retrieve",
        summary="Retrieve memories of a scope",
        response_model=Retrieved,
        responses=_problems(404, 413, 422),
    )
    async def retrieve_memories(bank_id: BankId, body: Retrieve) -> Response:
        """Find memories with exactly this scope: the nearest in meaning to the query, or the newest
        without a query.
        """
        note_scope(body.scope)
        if body.query is None:
            page, _ = await memories().list(bank_id, MemorySelection(scope=body.scope), limit=body.limit)
            return _answer(
                Retrieved(retrieved=[NearMemory(memory=MemoryDocument.of(record)) for record in page])
            )
        nearest: list[NearestMemory] = list(
            await memories().nearest(bank_id, body.scope, body.query, limit=body.limit)
        )
        return _answer(Retrieved(retrieved=[NearMemory.of(near) for near in nearest]))

    @router.post(
        "/{bank_id}/memories/purge",
        summary="Delete memories of a bank, or count them",
        response_model=Purged,
        responses=_problems(404, 413, 422),
    )
    async def purge_memories(bank_id: BankId, body: Purge) -> Response:
        """Delete the memories of a scope, or everything in the bank. Without `force`, only count
        them.
        """
        note_scope(body.scope)
        selection = MemorySelection(scope=body.scope)
        count = await memories().purge(bank_id, selection, everything=body.everything, force=body.force)
        return _answer(Purged(count=count))


def _add_memories(router: APIRouter, memories: Verbs) -> None:
    shown: dict[str, Any] = {"response_model": MemoryDocument}

    @router.get(
        "/{bank_id}/memories/{memory_id}", summary="Read a memory", responses=_problems(404, 422), **shown
    )
    async def read_memory(bank_id: BankId, memory_id: MemoryId) -> Response:
        """Read a memory as it is now."""
        return _answer(MemoryDocument.of(await memories().get(bank_id, memory_id)))

    @router.patch(
        "/{bank_id}/memories/{memory_id}",
        summary="Change a memory",
        responses=_problems(404, 409, 413, 422, 504),
        **shown,
    )
    async def update_memory(bank_id: BankId, memory_id: MemoryId, body: UpdateMemory) -> Response:
        """Change a memory. Fields that you leave out keep their values, also if another writer
        changes them at the same time. The scope never changes.
        """
        record = await memories().update(bank_id, memory_id, body.changes(), revision=body.revision.options())
        return _answer(MemoryDocument.of(record))

    @router.delete(
        "/{bank_id}/memories/{memory_id}",
        status_code=HTTPStatus.NO_CONTENT,
        summary="Delete a memory",
        responses=_problems(404, 413, 422, 504),
    )
    async def delete_memory(
        bank_id: BankId, memory_id: MemoryId, body: RevisionWanted | None = None
    ) -> Response:
        """Delete a memory. For 48 hours its revisions stay readable, and a rollback restores the
        memory.
        """
        await memories().delete(bank_id, memory_id, revision=(body or RevisionWanted()).options())
        return Response(status_code=HTTPStatus.NO_CONTENT)


def _add_revisions(router: APIRouter, memories: Verbs) -> None:
    @router.get(
        "/{bank_id}/memories/{memory_id}/revisions",
        summary="Read a memory's history",
        response_model=RevisionPage,
        responses=_problems(404, 422),
    )
    async def list_revisions(
        bank_id: BankId,
        memory_id: MemoryId,
        *,
        label: LabelFilter = [],  # noqa: B006  # FastAPI copies it
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        """Read the memory's content after each change, the newest first. To read on, send
        `next_cursor` as `cursor`.
        """
        revisions, next_cursor = await memories().revisions(
            bank_id, memory_id, labels=label_filter(label) or None, limit=limit, cursor=cursor
        )
        return _answer(
            RevisionPage(
                revisions=[RevisionDocument.of(revision) for revision in revisions], next_cursor=next_cursor
            )
        )

    @router.get(
        "/{bank_id}/memories/{memory_id}/revisions/{revision_id}",
        summary="Read a revision",
        response_model=RevisionDocument,
        responses=_problems(404, 422),
    )
    async def read_revision(bank_id: BankId, memory_id: MemoryId, revision_id: RevisionId) -> Response:
        """Read the memory's content after one change."""
        return _answer(RevisionDocument.of(await memories().revision(bank_id, memory_id, revision_id)))

    @router.post(
        "/{bank_id}/memories/{memory_id}/rollback",
        summary="Roll a memory back",
        response_model=MemoryDocument,
        responses=_problems(404, 409, 413, 422, 504),
    )
    async def roll_back(bank_id: BankId, memory_id: MemoryId, body: RollBack) -> Response:
        """Restore the memory's content after an earlier change, also if the memory was deleted
        since. The rollback is a change of its own.
        """
        record = await memories().rollback(
            bank_id, memory_id, body.revision_id, revision=body.revision.options()
        )
        return _answer(MemoryDocument.of(record))


def _answer(
    document: BaseModel, status: HTTPStatus = HTTPStatus.OK, *, location: str | None = None
) -> Response:
    headers = {"Location": location} if location else None
    return Response(document.model_dump_json(), status, headers, media_type=JSON)
