"""The route that forks a run."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path
from fastapi.responses import JSONResponse, Response

from runfold.client.run import Run
from runfold.http.audited_ids import note_ids
from runfold.http.idempotency import RepeatableCommand, Replays, repetition
from runfold.http.problems import Responses
from runfold.http.requests import parse_request
from runfold.ingest.connection import Connection
from runfold.ingest.requests import FORK_BODY, ForkRun
from runfold.permissions.permissions import Permissions, PermissionsOfRequest
from runfold_schemas.errors import RunConflictError

RunId = Annotated[
    str, Path(description="The source's id, percent-encoded: `/` is `%2F`.", examples=["run-1"])
]


def add_forks(
    router: APIRouter,
    connection: Callable[[], Connection],
    permissions: PermissionsOfRequest,
    replays: Replays,
    *,
    problems: Responses,
) -> None:
    """Adds the route."""

    @router.post(
        "/{run_id}/fork",
        status_code=HTTPStatus.CREATED,
        summary="Fork a run",
        responses=problems | repetition(),
        openapi_extra=FORK_BODY,
    )
    async def fork_run(run_id: RunId, request: RepeatableCommand) -> Response:
        """Begin a new run with the events of this one up to a place. The copies change no memory
        and no shared state, and their tokens count for this run alone. The answer is 200 instead of
        201 if the fork exists already.
        """

        async def handle() -> Response:
            body = parse_request(ForkRun, await request.json())
            if body.run_id is None:
                body = body.model_copy(update={"run_id": request.derived_id("fork", run_id)})
            source = await connection().run(run_id)
            return await _fork(source, body, connection(), permissions())

        return await replays.answer(f"fork/{run_id}", request, handle)


async def _fork(source: Run, body: ForkRun, connection: Connection, permissions: Permissions) -> Response:
    life = source.life
    note_ids({"agent_id": life.agent_id, "session_id": body.session_id})
    await permissions.check_fork(life, session_id=body.session_id)
    try:
        fork = await source.fork(**dict(body))
    except RunConflictError as error:
        if permissions.is_complete:
            raise
        raise RunConflictError(error.run_id) from None
    return await _answer(fork, connection)


async def _answer(fork: Run, connection: Connection) -> Response:
    life, log = fork.life, connection.runfold().connection.log_of(fork.life)
    content = {
        "run_id": life.run_id,
        "agent_id": life.agent_id,
        "session_id": life.session_id,
        "ended": fork.ended,
        "topic": log.topic,
        "forked_from": fork.forked_from.model_dump() if fork.forked_from is not None else None,
        "next_offset": await log.end(),
    }
    status = HTTPStatus.CREATED if fork.is_new else HTTPStatus.OK
    return JSONResponse(content, status, headers={"Location": f"/v1/runs/{quote(life.run_id, safe='')}"})
