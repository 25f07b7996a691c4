"""The route that deletes a run.

    DELETE /v1/runs/{run_id}  delete a run that is no session's own

A session's own run is deleted with the session.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Path
from fastapi.responses import Response

from runfold.client.runfold import Runfold
from runfold.http.problems import problem_responses
from runfold.query.stored_runs import StoredRuns
from runfold_schemas.errors import UnavailableError

RunId = Annotated[str, Path(description="The run's id, percent-encoded: `/` is `%2F`.", examples=["run-1"])]

_WAIT_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.02

_problems = partial(
    problem_responses,
    {
        404: "There is no such run, or it was deleted.",
        422: "The run has the events of a session, and is deleted with the session.",
        503: "Kafka or MongoDB does not answer, or no projector runs. Retry.",
    },
)


def build_deletion_router(runfold: Callable[[], Runfold], stored: Callable[[], StoredRuns]) -> APIRouter:
    """The route. The parameters return what the tenant of the request has open, or raise while
    there is no connection.
    """
    router = APIRouter(prefix="/v1/runs", tags=["ingest"])

    @router.delete(
        "/{run_id}",
        status_code=HTTPStatus.NO_CONTENT,
        summary="Delete a run",
        responses=_problems(404, 422),
    )
    async def delete_run(run_id: RunId) -> Response:
        """Delete a run with its events. Its id is not used again. What its events have changed of
        memories, banks and shared state stays.
        """
        await runfold().delete_run(run_id)
        await _wait_until_hidden(stored(), run_id)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    return router


async def _wait_until_hidden(stored: StoredRuns, run_id: str) -> None:
    """Returns when no edition that is read has the run."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while any([await edition.runs.document(run_id) for edition in await stored.editions()]):
        if time.monotonic() > deadline:
            raise UnavailableError("The projector", reason=f"run {run_id!r} is deleted, and still shown")
        await asyncio.sleep(_LOOK_SECONDS)
