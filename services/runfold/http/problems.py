"""Problem documents (RFC 9457): the answer of every route that fails."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from runfold.printable import QUOTED_MAX, shortened
from runfold.telemetry.request_context import note_unavailable
from runfold_schemas.archive_errors import ArchiveDamagedError
from runfold_schemas.errors import (
    BankConflictError,
    BankNotEmptyError,
    BankNotFoundError,
    BlobNotFoundError,
    BudgetExceededError,
    ConfigurationError,
    DamagedError,
    DeadLetterNotFoundError,
    EventTooLargeError,
    ForbiddenError,
    GenerationFailedError,
    InexpressibleError,
    InvalidEventError,
    InvalidIdError,
    KeyNotFoundError,
    MemoryChangedError,
    MemoryConflictError,
    MemoryNotFoundError,
    NoModelError,
    NotQuarantinedError,
    NotYetVisibleError,
    QuarantinedError,
    QuotaExceededError,
    RejectedError,
    RevisionNotFoundError,
    RunConflictError,
    RunEndedError,
    RunfoldError,
    RunNotFoundError,
    SessionConflictError,
    SessionEndedError,
    SessionNotFoundError,
    TenantNotFoundError,
    UnauthenticatedError,
    UnavailableError,
    UndecidedError,
)

PROBLEM_JSON: Final = "application/problem+json"

_DETAIL_MAX: Final = 2_000
_MEMBER_MAX: Final = 1_000

_CLIENT_CLOSED_REQUEST: Final = 499
"""The status in metrics; web servers use it for this case."""

_STATUS: Final[Mapping[type[RunfoldError], HTTPStatus]] = {
    ForbiddenError: HTTPStatus.FORBIDDEN,
    EventTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    InvalidEventError: HTTPStatus.UNPROCESSABLE_ENTITY,
    InexpressibleError: HTTPStatus.UNPROCESSABLE_ENTITY,
    BudgetExceededError: HTTPStatus.UNPROCESSABLE_ENTITY,
    InvalidIdError: HTTPStatus.UNPROCESSABLE_ENTITY,
    UnauthenticatedError: HTTPStatus.UNAUTHORIZED,
    KeyNotFoundError: HTTPStatus.NOT_FOUND,
    TenantNotFoundError: HTTPStatus.NOT_FOUND,
    RunNotFoundError: HTTPStatus.NOT_FOUND,
    BlobNotFoundError: HTTPStatus.NOT_FOUND,
    RunConflictError: HTTPStatus.CONFLICT,
    RunEndedError: HTTPStatus.CONFLICT,
    SessionNotFoundError: HTTPStatus.NOT_FOUND,
    SessionConflictError: HTTPStatus.CONFLICT,
    SessionEndedError: HTTPStatus.CONFLICT,
    BankNotFoundError: HTTPStatus.NOT_FOUND,
    BankConflictError: HTTPStatus.CONFLICT,
    BankNotEmptyError: HTTPStatus.CONFLICT,
    MemoryNotFoundError: HTTPStatus.NOT_FOUND,
    MemoryConflictError: HTTPStatus.CONFLICT,
    MemoryChangedError: HTTPStatus.CONFLICT,
    RevisionNotFoundError: HTTPStatus.NOT_FOUND,
    NoModelError: HTTPStatus.CONFLICT,
    GenerationFailedError: HTTPStatus.BAD_GATEWAY,
    RejectedError: HTTPStatus.CONFLICT,
    # Not 503, after which clients try again: only an operator can help.
    QuarantinedError: HTTPStatus.CONFLICT,
    DeadLetterNotFoundError: HTTPStatus.NOT_FOUND,
    NotQuarantinedError: HTTPStatus.NOT_FOUND,
    QuotaExceededError: HTTPStatus.TOO_MANY_REQUESTS,
    ConfigurationError: HTTPStatus.SERVICE_UNAVAILABLE,
    NotYetVisibleError: HTTPStatus.GATEWAY_TIMEOUT,
    UndecidedError: HTTPStatus.GATEWAY_TIMEOUT,
    UnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    DamagedError: HTTPStatus.SERVICE_UNAVAILABLE,
    ArchiveDamagedError: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""The first class that an error is an instance of decides, so a subclass stands before its base."""

Responses = dict[int | str, dict[str, Any]]
"""The `responses` of a route, as FastAPI takes them."""


class Problem(BaseModel):
    """What went wrong (RFC 9457). Further members carry the facts, for example `run_id`."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "type": "urn:runfold:problem:RunNotFound",
                "title": "Not Found",
                "status": 404,
                "detail": "run 'run-9' does not exist: open it first",
                "run_id": "run-9",
            }
        },
    )

    type: str
    title: str
    status: int
    detail: str
    field: str | None = Field(None, description="The parameter or the field of the body that is wrong.")


def problem(status: HTTPStatus, detail: str, *, type_: str = "about:blank", **members: Any) -> JSONResponse:
    """A problem document; `members` are its extension members."""
    content = {"type": type_, "title": status.phrase, "status": status.value, "detail": _cut(detail)}
    headers = None
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        headers = {"Retry-After": "1"}
        # Google's protocol has errors of its own, whose status comes from a problem document.
        note_unavailable(detail)
    extensions = {name: _cut_member(value) for name, value in members.items() if value is not None}
    return JSONResponse({**content, **extensions}, status, headers, media_type=PROBLEM_JSON)


def _cut(text: str) -> str:
    """The text without most of the long words that it quotes from a request."""
    short = shortened(text)
    return short if len(short) <= _DETAIL_MAX else f"{short[:_DETAIL_MAX]}…"


def _cut_member(value: Any) -> Any:
    # No valid id is longer, so clients get every valid id whole.
    return f"{value[:QUOTED_MAX]}…" if isinstance(value, str) and len(value) > _MEMBER_MAX else value


def problem_of(error: RunfoldError, **members: Any) -> JSONResponse:
    """The problem document of one of our errors. The error's attributes are extension members."""
    status = next(
        (status for kind, status in _STATUS.items() if isinstance(error, kind)),
        HTTPStatus.INTERNAL_SERVER_ERROR,
    )
    facts = {
        name: value
        for name, value in vars(error).items()
        if isinstance(value, str | int | float) and value != ""
    }
    if isinstance(error, InvalidIdError):
        facts["field"] = error.name
    name = type(error).__name__.removesuffix("Error")
    answer = problem(status, str(error), type_=f"urn:runfold:problem:{name}", **{**facts, **members})
    if isinstance(error, QuotaExceededError):
        answer.headers["Retry-After"] = str(error.retry_after_seconds)
    return answer


def problem_responses(meanings: Mapping[int, str], *statuses: int) -> Responses:
    """The problems that a route may answer, for its OpenAPI description. Every route may answer
    401, 403 and 503.
    """
    content = {PROBLEM_JSON: {"schema": _PROBLEM_SCHEMA}}
    meanings = {**_REFUSALS, **meanings}
    return {
        status: {"description": meanings[status], "content": content}
        for status in sorted({*statuses, *_REFUSALS, 503})
    }


_PROBLEM_SCHEMA: Final = Problem.model_json_schema()
"""Made once, because it takes 3 ms."""

_REFUSALS: Final = {
    401: "The request has no valid API key or token.",
    403: "The key or the token lacks a scope, or is limited to other agents or users.",
    429: "The tenant has used up a quota. `quota` names it; retry after the time in `Retry-After`.",
}


def add_problem_handlers(app: FastAPI) -> None:
    """From here on the application answers errors with problem documents."""
    app.exception_handler(RunfoldError)(_answer_error)
    app.exception_handler(RequestValidationError)(_answer_invalid)
    app.exception_handler(HTTPException)(_answer_http)
    app.exception_handler(ClientDisconnect)(answer_nobody)


async def answer_nobody(_: Request, __: Exception) -> Response:
    """For a client that left before its request was complete: nobody reads the answer, and the
    service has nothing to report.
    """
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _answer_error(_: Request, error: RunfoldError) -> JSONResponse:
    return problem_of(error)


async def _answer_invalid(_: Request, error: RequestValidationError) -> JSONResponse:
    fault = error.errors()[0]
    # The first step of a location is where FastAPI looked: body, query, path. Broken JSON has a
    # position instead.
    field = ".".join(str(step) for step in fault["loc"][1:] if fault["type"] != "json_invalid")
    return problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        f"{field}: {fault['msg']}" if field else fault["msg"],
        field=field or None,
    )


async def _answer_http(_: Request, error: HTTPException) -> JSONResponse:
    answer = problem(HTTPStatus(error.status_code), error.detail)
    answer.headers.update(error.headers or {})
    return answer
