"""Errors in Google's form: `{"error": {"code", "message", "status", "details"}}`, with the code as
the HTTP status.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, Literal

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from runfold.http.problems import problem_of
from runfold_schemas.errors import (
    BankNotEmptyError,
    MemoryChangedError,
    NoModelError,
    QuarantinedError,
    RejectedError,
    RunEndedError,
    RunfoldError,
    SessionEndedError,
)

Status = Literal[
    "INVALID_ARGUMENT",
    "FAILED_PRECONDITION",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "NOT_FOUND",
    "ABORTED",
    "ALREADY_EXISTS",
    "RESOURCE_EXHAUSTED",
    "INTERNAL",
    "UNIMPLEMENTED",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
]

_CODES: Final[Mapping[Status, int]] = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "ALREADY_EXISTS": 409,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}

_OF_HTTP: Final[Mapping[int, Status]] = {
    HTTPStatus.BAD_REQUEST: "INVALID_ARGUMENT",
    HTTPStatus.UNAUTHORIZED: "UNAUTHENTICATED",
    HTTPStatus.FORBIDDEN: "PERMISSION_DENIED",
    HTTPStatus.NOT_FOUND: "NOT_FOUND",
    HTTPStatus.METHOD_NOT_ALLOWED: "NOT_FOUND",
    HTTPStatus.CONFLICT: "ALREADY_EXISTS",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "INVALID_ARGUMENT",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "INVALID_ARGUMENT",
    HTTPStatus.UNPROCESSABLE_ENTITY: "INVALID_ARGUMENT",
    HTTPStatus.SERVICE_UNAVAILABLE: "UNAVAILABLE",
    HTTPStatus.GATEWAY_TIMEOUT: "DEADLINE_EXCEEDED",
}
"""The protocol's status for HTTP statuses; all other HTTP statuses are INTERNAL."""


class WireError(RunfoldError):
    """An error of this protocol for which Runfold has no other error class."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status: Status = status


def error_body(status: Status, message: str, *, code: int | None = None) -> JSONResponse:
    """An error. `code` is the HTTP status if it differs from that of `status`."""
    code = code or _CODES[status]
    error = {"code": code, "message": message, "status": status, "details": []}
    headers = {"Retry-After": "1"} if status == "UNAVAILABLE" else None
    return JSONResponse({"error": error}, code, headers)


def status_of(error: RunfoldError) -> Status:
    """The protocol's status for the error."""
    match error:
        case WireError():
            return error.status
        case (
            SessionEndedError() | RunEndedError() | BankNotEmptyError() | NoModelError() | QuarantinedError()
        ):
            return "FAILED_PRECONDITION"
        case RejectedError() | MemoryChangedError():
            return "ABORTED"
        case _:
            # Runfold's own API has an HTTP status for every error.
            return _OF_HTTP.get(problem_of(error).status_code, "INTERNAL")


async def on_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RunfoldError)
    return error_body(status_of(error), str(error))


async def on_invalid(_: Request, error: Exception) -> JSONResponse:
    """Answers an invalid message with its first fault and the path of the field."""
    assert isinstance(error, ValidationError)
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(map(str, fault["loc"]))
    message = fault["msg"].removeprefix("Value error, ")
    return error_body("INVALID_ARGUMENT", f"{field}: {message}" if field else message)


async def on_http(request: Request, error: Exception) -> JSONResponse:
    """Answers an unknown path, an unknown method, or a body that is too large."""
    assert isinstance(error, HTTPException)
    status = _OF_HTTP.get(error.status_code, "INTERNAL")
    if status == "NOT_FOUND":
        return error_body(status, f"there is no {request.method} {request.url.path}")
    is_of_media_type = error.status_code == HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    return error_body(status, error.detail, code=error.status_code if is_of_media_type else None)


async def on_unexpected(_: Request, __: Exception) -> JSONResponse:
    """Answers without details; they are in the service's log."""
    return error_body("INTERNAL", "an internal error")
