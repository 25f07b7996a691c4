"""Memories over HTTP, in our own words.

    POST   /v1/banks                                       create a bank
    GET    /v1/banks, /v1/banks/{bank_id}                  list them, read one
    PATCH  /v1/banks/{bank_id}                             its configuration
    DELETE /v1/banks/{bank_id}?force=true                  gone, with its memories
    POST   /v1/banks/{bank_id}/memories                    create a memory
    GET    /v1/banks/{bank_id}/memories                    list them by scope
    POST   /v1/banks/{bank_id}/memories/retrieve           by scope and meaning
    POST   /v1/banks/{bank_id}/memories/purge              delete or count them
    GET    /v1/banks/{bank_id}/memories/{id}               read one; PATCH changes, DELETE deletes it
    GET    /v1/banks/{bank_id}/memories/{id}/revisions     its history, the newest first; .../{revision_id} reads one
    POST   /v1/banks/{bank_id}/memories/{id}/rollback      to what it held after an earlier change

They write to the log and read from MongoDB, so they are served where ingest and query are one
process. A 2xx means durable, and every answer has all that was acknowledged before it was asked
for.
"""

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from pydantic import BaseModel

from runfold.client.memories import Memories
from runfold.client.memory import MemoriesWanted, Near
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
from runfold.http.bodies import JSON, JsonRoute
from runfold.http.idempotency import RepeatableModel
from runfold.http.problems import problem_responses
from runfold.query.parameters import Cursor, Limit, label_filter
from runfold_schemas.memories import BankConfig

Verbs = Callable[[], Memories]

BankId = Annotated[
    str, Path(description="The bank's id, percent-encoded: `/` is `%2F`.", examples=["travel"])
]
MemoryId = Annotated[str, Path(description="The memory's id, percent-encoded.", examples=["m-1"])]
RevisionId = Annotated[str, Path(description="The revision's id, which is that of the event that made it.")]
ScopeWanted = Annotated[
    list[str],
    Query(
        description="`key:value`, split at the first colon: memories of exactly these pairs.",
        examples=[["user:ann"]],
    ),
]
Order = Annotated[Literal["created_at", "updated_at"], Query(description="By which time.")]
Ascending = Annotated[bool, Query(description="The oldest first.")]
Force = Annotated[bool, Query(description="With all that is in it.")]
LabelsWanted = Annotated[
    list[str], Query(description="`key:value`, split at the first colon. Several must all be there.")
]

_problems = partial(
    problem_responses,
    {
        400: "`Idempotency-Key` is empty or too long.",
        404: "There is no such bank, memory or revision, or it was deleted.",
        409: "The id is taken, the bank is not empty, or other writers keep changing the memory.",
        413: "The body is too large, or a value in it is.",
        422: "A part of the request is wrong. `field` names it.",
        503: "Kafka or MongoDB does not answer, or no projector runs. Retry.",
        504: "The change is recorded, but its result could not be read in time. Read it later, and do not repeat the change.",
    },
)


def build_memory_router(memories: Verbs) -> APIRouter:
    """The routes. `memories` gives what they speak to, or raises while there is no connection.

    The application has to come from `runfold.http.app.new_app`, which makes problem documents of
    our errors.
    """
    router = APIRouter(prefix="/v1/banks", tags=["memories"], route_class=JsonRoute)
    for add in (_add_banks, _add_lists, _add_memories, _add_revisions):
        add(router, memories)
    return router


def _add_banks(router: APIRouter, memories: Verbs) -> None:
    @router.post(
        "",
        status_code=HTTPStatus.CREATED,
        summary="Create a bank",
        response_model=BankDocument,
        responses=_problems(409, 413, 422),
    )
    async def create_bank(asked: CreateBank) -> Response:
        """A new bank, of a new id unless one is given; 409 where that is taken."""
        bank = BankDocument.of(await memories().create_bank(asked.bank_id, asked.config))
        return _answer(bank, HTTPStatus.CREATED, location=f"/v1/banks/{quote(bank.bank_id, safe='')}")

    @router.get("", summary="List banks", response_model=BankPage, responses=_problems(422))
    async def list_banks(*, limit: Limit = 50, cursor: Cursor = None) -> Response:
        """The newest first; go on with `next_cursor`."""
        banks, following = await memories().banks(limit=limit, cursor=cursor)
        return _answer(BankPage(banks=[BankDocument.of(bank) for bank in banks], next_cursor=following))

    @router.get(
        "/{bank_id}", summary="Read a bank", response_model=BankDocument, responses=_problems(404, 422)
    )
    async def read_bank(bank_id: BankId) -> Response:
        return _answer(BankDocument.of(await memories().bank(bank_id)))

    @router.patch(
        "/{bank_id}",
        summary="Change a bank's configuration",
        response_model=BankDocument,
        responses=_problems(404, 413, 422),
    )
    async def update_bank(bank_id: BankId, asked: BankConfig) -> Response:
        """Fields that are not there stay as they are."""
        changes = {name: getattr(asked, name) for name in asked.model_fields_set}
        return _answer(BankDocument.of(await memories().update_bank(bank_id, changes)))

    @router.delete(
        "/{bank_id}",
        status_code=HTTPStatus.NO_CONTENT,
        summary="Delete a bank",
        responses=_problems(404, 409, 422),
    )
    async def delete_bank(bank_id: BankId, *, force: Force = False) -> Response:
        """Delete a bank; 409 where there are memories in it, unless by force."""
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
        scope: ScopeWanted = [],  # noqa: B006  # FastAPI copies it
        order: Order = "created_at",
        ascending: Ascending = False,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        """The newest first; go on with `next_cursor`, in the same order."""
        wanted = MemoriesWanted(
            scope=label_filter(scope, field="scope") or None, order=order, ascending=ascending
        )
        found, following = await memories().list(bank_id, wanted, limit=limit, cursor=cursor)
        return _answer(MemoryPage(memories=[MemoryDocument.of(one) for one in found], next_cursor=following))

    @router.post(
        "/{bank_id}/memories/retrieve",
        summary="Retrieve memories of a scope",
        response_model=Retrieved,
        responses=_problems(404, 413, 422),
    )
    async def retrieve_memories(bank_id: BankId, asked: Retrieve) -> Response:
        """Those of exactly this scope: the nearest in meaning to the query, or without one the
        newest.
        """
        if asked.query is None:
            page, _ = await memories().list(bank_id, MemoriesWanted(scope=asked.scope), limit=asked.limit)
            return _answer(Retrieved(retrieved=[NearMemory(memory=MemoryDocument.of(one)) for one in page]))
        found: list[Near] = list(
            await memories().nearest(bank_id, asked.scope, asked.query, limit=asked.limit)
        )
        return _answer(Retrieved(retrieved=[NearMemory.of(near) for near in found]))

    @router.post(
        "/{bank_id}/memories/purge",
        summary="Delete memories of a bank, or count them",
        response_model=Purged,
        responses=_problems(404, 413, 422),
    )
    async def purge_memories(bank_id: BankId, asked: Purge) -> Response:
        wanted = MemoriesWanted(scope=asked.scope)
        return _answer(Purged(count=await memories().purge(bank_id, wanted, force=asked.force)))


def _add_memories(router: APIRouter, memories: Verbs) -> None:
    shown: dict[str, Any] = {"response_model": MemoryDocument}

    @router.post(
        "/{bank_id}/memories",
        status_code=HTTPStatus.CREATED,
        summary="Create a memory",
        responses=_problems(400, 404, 409, 413, 422, 504),
        **shown,
    )
    async def create_memory(bank_id: BankId, asked: CreateMemory, request: RepeatableModel) -> Response:
        """A new memory, of a new id unless one is given; 409 where that is taken."""
        memory_id = asked.memory_id or request.derived_id("memory", bank_id)
        event_id = request.derived_id("memory created", bank_id, memory_id) if memory_id else None
        record = await memories().create(
            bank_id,
            asked.memory(),
            memory_id=memory_id,
            revision=asked.revision.options(),
            event_id=event_id,
        )
        ids = "/memories/".join(quote(part, safe="") for part in (bank_id, record.memory_id))
        return _answer(MemoryDocument.of(record), HTTPStatus.CREATED, location=f"/v1/banks/{ids}")

    @router.get(
        "/{bank_id}/memories/{memory_id}", summary="Read a memory", responses=_problems(404, 422), **shown
    )
    async def read_memory(bank_id: BankId, memory_id: MemoryId) -> Response:
        return _answer(MemoryDocument.of(await memories().get(bank_id, memory_id)))

    @router.patch(
        "/{bank_id}/memories/{memory_id}",
        summary="Change a memory",
        responses=_problems(404, 409, 413, 422, 504),
        **shown,
    )
    async def update_memory(bank_id: BankId, memory_id: MemoryId, asked: UpdateMemory) -> Response:
        """Fields that are not there stay as they are, whoever changes them at the same time. The
        scope never changes.
        """
        record = await memories().update(
            bank_id, memory_id, asked.changes(), revision=asked.revision.options()
        )
        return _answer(MemoryDocument.of(record))

    @router.delete(
        "/{bank_id}/memories/{memory_id}",
        status_code=HTTPStatus.NO_CONTENT,
        summary="Delete a memory",
        responses=_problems(404, 413, 422, 504),
    )
    async def delete_memory(
        bank_id: BankId, memory_id: MemoryId, asked: RevisionWanted | None = None
    ) -> Response:
        """Delete a memory. For 48 hours its revisions can be read, and it can be rolled back to one
        of them.
        """
        await memories().delete(bank_id, memory_id, revision=(asked or RevisionWanted()).options())
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
        label: LabelsWanted = [],  # noqa: B006  # FastAPI copies it
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        """What it was after each change, the newest first; go on with `next_cursor`."""
        found, following = await memories().revisions(
            bank_id, memory_id, labels=label_filter(label) or None, limit=limit, cursor=cursor
        )
        return _answer(
            RevisionPage(revisions=[RevisionDocument.of(one) for one in found], next_cursor=following)
        )

    @router.get(
        "/{bank_id}/memories/{memory_id}/revisions/{revision_id}",
        summary="Read a revision",
        response_model=RevisionDocument,
        responses=_problems(404, 422),
    )
    async def read_revision(bank_id: BankId, memory_id: MemoryId, revision_id: RevisionId) -> Response:
        return _answer(RevisionDocument.of(await memories().revision(bank_id, memory_id, revision_id)))

    @router.post(
        "/{bank_id}/memories/{memory_id}/rollback",
        summary="Roll a memory back",
        response_model=MemoryDocument,
        responses=_problems(404, 409, 413, 422, 504),
    )
    async def roll_back(bank_id: BankId, memory_id: MemoryId, asked: RollBack) -> Response:
        """The memory holds again what it held after an earlier change, also if it was deleted
        since. This is a change too.
        """
        record = await memories().rollback(
            bank_id, memory_id, asked.revision_id, revision=asked.revision.options()
        )
        return _answer(MemoryDocument.of(record))


def _answer(
    document: BaseModel, status: HTTPStatus = HTTPStatus.OK, *, location: str | None = None
) -> Response:
    headers = {"Location": location} if location else None
    return Response(document.model_dump_json(), status, headers, media_type=JSON)
