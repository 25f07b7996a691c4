"""The routes of the quarantine.

    GET  /v1/quarantine             what is set aside; by kind
    GET  /v1/quarantine/{id}        one entry
    POST /v1/quarantine/{id}/retry  fold it once more
    POST /v1/quarantine/{id}/skip   leave out its records for good

An action is answered with 202 when its request is durable. A projector acts on it within seconds:
afterwards the entry is gone, or it is there with a new attempt.
"""

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from runfold.client.runfold import Runfold
from runfold.documents.quarantine import QuarantineEntry, QuarantinePage
from runfold.http.bodies import JSON, JsonRoute
from runfold.http.problems import problem_responses
from runfold.http.requests import RequestBody
from runfold.query.parameters import Cursor, Limit
from runfold.query.quarantine import QuarantineReader, entry_of, skip_of
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.lists import QuarantineKind
from runfold_schemas.topics import OFFSET_MAX

EntryId = Annotated[
    str, Path(description="The entry's id, percent-encoded: `/` is `%2F`.", examples=["run:run-1"])
]
KindFilter = Annotated[QuarantineKind | None, Query(description="Only entries of this kind.")]


Readers = Callable[[], QuarantineReader]


class SkipRecords(RequestBody):
    """The records to skip: those of the entry, which `offset` confirms."""

    offset: int = Field(
        ge=0,
        le=OFFSET_MAX,
        description="The entry's `offset`. If the entry is about other records by now, nothing is skipped.",
    )


_problems = partial(
    problem_responses,
    {
        404: "Nothing is in quarantine under this id.",
        413: "The body is too large.",
        422: "A part of the request is wrong. `field` names it.",
        503: "Kafka or MongoDB does not answer. Retry.",
    },
)


def build_quarantine_router(quarantine: Readers, runfold: Callable[[], Runfold]) -> APIRouter:
    """The routes. `quarantine` and `runfold` return the reader and the client of the request's
    tenant; `runfold` raises while there is no connection.
    """
    router = APIRouter(prefix="/v1/quarantine", tags=["quarantine"], route_class=JsonRoute)
    _add_reads(router, quarantine)
    _add_actions(router, quarantine, runfold)
    return router


def _add_reads(router: APIRouter, quarantine: Readers) -> None:
    @router.get(
        "",
        summary="List what is in quarantine",
        response_model=QuarantinePage,
        responses=_problems(422),
    )
    async def list_quarantine(
        *, kind: KindFilter = None, limit: Limit = 50, cursor: Cursor = None
    ) -> Response:
        """List what projectors have set aside because it cannot be folded or stored, by id."""
        entries, next_cursor = await quarantine().list(kind, limit=limit, cursor=cursor)
        return _answer(
            QuarantinePage(quarantine=[entry_of(entry) for entry in entries], next_cursor=next_cursor)
        )

    @router.get(
        "/{entry_id}",
        summary="Read an entry of the quarantine",
        response_model=QuarantineEntry,
        responses=_problems(404, 422),
    )
    async def read_entry(entry_id: EntryId) -> Response:
        """Read where and why something is in quarantine."""
        return _answer(entry_of(await quarantine().get(entry_id)))


def _add_actions(router: APIRouter, quarantine: Readers, runfold: Callable[[], Runfold]) -> None:
    @router.post(
        "/{entry_id}/retry",
        status_code=HTTPStatus.ACCEPTED,
        summary="Fold something in quarantine once more",
        response_model=QuarantineEntry,
        responses=_problems(404, 422),
    )
    async def retry(entry_id: EntryId) -> Response:
        """Ask the projectors to fold it once more, for example after an upgrade. If it fails again,
        it stays in quarantine with one attempt more.
        """
        entry = await quarantine().request(entry_id, "retry")
        return _answer(entry_of(entry), HTTPStatus.ACCEPTED)

    @router.post(
        "/{entry_id}/skip",
        status_code=HTTPStatus.ACCEPTED,
        summary="Skip the records of an entry for good",
        response_model=QuarantineEntry,
        responses=_problems(404, 413, 422),
    )
    async def skip(entry_id: EntryId, body: SkipRecords) -> Response:
        """Let the records of the entry count for nothing, for every reader and for ever. They stay
        in the log. The answer is sent when the decision is in the log too.
        """
        entry = await quarantine().get(entry_id)
        if body.offset != entry.offset:
            raise InvalidEventError(
                f"offset: the entry is about offset {entry.offset} by now: read it again", field="offset"
            )
        await runfold().connection.skip(skip_of(entry))
        return _answer(entry_of(entry), HTTPStatus.ACCEPTED)


def _answer(document: BaseModel, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(document.model_dump_json(), status, media_type=JSON)
