"""The routes of dead letters.

GET  /v1/dead-letters               the newest first
GET  /v1/dead-letters/{id}          one, with its content
POST /v1/dead-letters/{id}/requeue  publish its event again, mended or as it is
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from runfold.client.run import Run
from runfold.client.runfold import Runfold
from runfold.documents.dead_letters import DeadLetterDocument, DeadLetterEntry, DeadLetterPage
from runfold.http.authorisation import current_principal
from runfold.http.bodies import JSON, JsonRoute
from runfold.http.problems import problem_responses
from runfold.http.requests import RequestBody
from runfold.permissions.permissions import PermissionsOfRequest
from runfold.query.dead_letters import LISTED_MAX, DeadLetters
from runfold.query.parameters import Cursor, Limit
from runfold_schemas.events import AnyEvent

LetterId = Annotated[
    str,
    Path(description="The id, percent-encoded: `/` is `%2F`.", examples=["runfold.run.r-1.0198:7"]),
]


class RequeueDeadLetter(RequestBody):
    """How the event is published."""

    event: dict[str, Any] | None = Field(
        None,
        description="A mended event, with `type` and `data`. Its `event_id`, `run_id` and `timestamp` follow"
        " from the dead letter if they are missing. Without it, the record is published as it is.",
    )


_problems = partial(
    problem_responses,
    {
        404: "There is no such dead letter, or its run is gone.",
        409: "The run has ended, and the event would change it.",
        413: "The body is too large.",
        422: "The event cannot be published. `field` names the fault.",
        503: "Kafka does not answer. Retry.",
    },
)


def build_dead_letter_router(
    letters: Callable[[], DeadLetters], runfold: Callable[[], Runfold], permissions: PermissionsOfRequest
) -> APIRouter:
    """The routes. `letters` and `runfold` return what is open of the request's tenant."""
    router = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"], route_class=JsonRoute)
    _add_reads(router, letters, runfold)
    _add_requeue(router, letters, runfold, permissions)
    return router


def _add_reads(router: APIRouter, letters: Callable[[], DeadLetters], runfold: Callable[[], Runfold]) -> None:
    @router.get("", summary="List dead letters", response_model=DeadLetterPage, responses=_problems(422))
    async def list_dead_letters(
        *,
        topic: Annotated[str | None, Query(description="Only records of this topic.")] = None,
        run_id: Annotated[str | None, Query(description="Only records of this run.")] = None,
        requeued: Annotated[
            bool | None, Query(description="Only records whose event was published again, or was not.")
        ] = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        return _answer(
            await letters().list(topic=topic, run_id=run_id, requeued=requeued, limit=limit, cursor=cursor)
        )

    list_dead_letters.__doc__ = (
        "List the records that could not be decoded, the newest first. Kafka keeps them for 30 days,"
        f" and the newest {LISTED_MAX:,} are listed."
    )

    @router.get(
        "/{letter_id}",
        summary="Read a dead letter",
        response_model=DeadLetterDocument,
        responses=_problems(404, 422),
    )
    async def read_dead_letter(letter_id: LetterId) -> Response:
        """Read the record, where it comes from, and why it could not be decoded. A service without
        the key of encryption shows `[sealed]`. `[erased]` says that the record's log is deleted.
        """
        return _answer(await letters().get(letter_id, sealing=runfold().connection.sealing))


def _add_requeue(
    router: APIRouter,
    letters: Callable[[], DeadLetters],
    runfold: Callable[[], Runfold],
    permissions: PermissionsOfRequest,
) -> None:
    async def check(run: Run, event: AnyEvent) -> None:
        await permissions().check_events([event], app=run.life.agent_id, user=run.life.user_id)

    @router.post(
        "/{letter_id}/requeue",
        summary="Publish the event of a dead letter again",
        response_model=DeadLetterEntry,
        responses=_problems(404, 409, 413, 422),
    )
    async def requeue_dead_letter(letter_id: LetterId, body: RequeueDeadLetter) -> Response:
        """Publish the event at the end of its run. A repetition publishes nothing, and has the same
        answer. What the event changes beyond its run needs the scopes of that.
        """
        by = current_principal().subject
        return _answer(await letters().requeue(letter_id, runfold(), event=body.event, by=by, check=check))


def _answer(document: BaseModel) -> Response:
    return Response(document.model_dump_json(), media_type=JSON)
