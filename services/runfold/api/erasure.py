"""The routes of erasures, for administrators.

    DELETE /v1/users/{user}         delete all data of a user
    GET    /v1/erasures             the receipts of erasures, the newest first
    GET    /v1/erasures/{subject}   the state of one, and its receipt

A call that takes longer is answered with 202, and goes on. If the service dies meanwhile, a
repeated call finishes the work.
"""

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final, Literal
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Path, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from runfold.erasure.erasure import Erased
from runfold.erasure.erasures import Erasures, Running
from runfold.erasure.receipt import Receipt, SignedReceipt
from runfold.http.bodies import JSON
from runfold.http.problems import problem_responses

WAIT_SECONDS: Final = 10.0
"""How long a call waits for the end of the erasure."""

User = Annotated[str, Path(description="The user, percent-encoded.", examples=["u-1"])]
Subject = Annotated[str, Path(description="The hash that stands for the user.", pattern="^[0-9a-f]{64}$")]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many.")]


class Finished(BaseModel):
    """A finished erasure."""

    state: Literal["finished"] = "finished"
    receipt: Receipt
    signed_text: str = Field(description="The receipt byte for byte as it was signed.")
    signature: str | None = Field(description="Ed25519, in hexadecimal digits. Null: not signed.")
    public_key: str | None
    sessions: list[str] = Field([], description="The ids of the erased sessions. No receipt has them.")
    runs: list[str] = Field([], description="The ids of the erased runs.")


class Unfinished(BaseModel):
    """An erasure that goes on."""

    state: Literal["running"] = "running"
    subject: str
    doing: str = Field(description="What it is doing, in a few words.")


class Receipts(BaseModel):
    """Finished erasures, the newest first."""

    erasures: list[Finished]


_problems = partial(
    problem_responses,
    {
        404: "No user with this hash was erased.",
        422: "A part of the request is wrong. `field` names it.",
        503: "Kafka or MongoDB does not answer. Repeat the call.",
    },
)


def build_erasure_router(erasures: Callable[[], Erasures]) -> APIRouter:
    """The routes. `erasures` returns those of the tenant of the request."""
    router = APIRouter(prefix="/v1", tags=["erasure"])
    _add_erasure(router, erasures)
    _add_reads(router, erasures)
    return router


def _add_erasure(router: APIRouter, erasures: Callable[[], Erasures]) -> None:
    @router.delete(
        "/users/{user}",
        summary="Erase a user",
        response_model=Finished,
        responses={**_problems(422), 202: {"model": Unfinished, "description": "It goes on."}},
    )
    async def erase_user(user: User) -> Response:
        """Delete all data of a user: sessions, runs, `user:` state of all apps, memories, and logs
        of their generation. The answer is the receipt. If that takes longer, the answer is 202:
        repeat the call, or look where `Location` says.
        """
        outcome = await erasures().erase(user, wait_seconds=WAIT_SECONDS)
        if isinstance(outcome, Erased):
            sessions, runs = outcome.sessions, outcome.runs
            return _answer(_finished(outcome.signed).model_copy(update={"sessions": sessions, "runs": runs}))
        return _answer_running(outcome)


def _add_reads(router: APIRouter, erasures: Callable[[], Erasures]) -> None:
    @router.get("/erasures", summary="List erasures", response_model=Receipts, responses=_problems(422))
    async def list_erasures(limit: Limit = 50) -> Response:
        """List the receipts of the last erasures, the newest first."""
        return _answer(Receipts(erasures=[_finished(each) for each in await erasures().newest(limit)]))

    @router.get(
        "/erasures/{subject}",
        summary="Read an erasure",
        response_model=Finished,
        responses={**_problems(404, 422), 202: {"model": Unfinished, "description": "It goes on."}},
    )
    async def read_erasure(subject: Subject) -> Response:
        """Read the last receipt of a user, or what an erasure that goes on is doing."""
        if (running := erasures().running(subject)) is not None:
            return _answer_running(running)
        if (signed := await erasures().last(subject)) is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "no user with this hash was erased: repeat the erasure")
        return _answer(_finished(signed))


def _finished(signed: SignedReceipt) -> Finished:
    receipt, text, signature, public_key = signed
    return Finished(receipt=receipt, signed_text=text, signature=signature, public_key=public_key)


def _answer_running(running: Running) -> Response:
    response = _answer(Unfinished(subject=running.subject, doing=running.doing), HTTPStatus.ACCEPTED)
    response.headers["Location"] = f"/v1/erasures/{quote(running.subject)}"
    response.headers["Retry-After"] = "2"
    return response


def _answer(document: BaseModel, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(
        document.model_dump_json(), status, headers={"Cache-Control": "no-store"}, media_type=JSON
    )
