"""Errors of middleware, which no route answers, in the form of the protocol that the path is of."""

from typing import Final

from starlette.responses import JSONResponse

from runfold.http.problems import problem_of
from runfold_schemas.errors import RunfoldError

_GOOGLES_PATHS: Final = ("/v1beta1/", "/v1/projects/", "/v1/reasoningEngines")

_GOOGLES_STATUS: Final = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


def refusal_of(error: RunfoldError, path: str) -> JSONResponse:
    """A problem document, or below the paths of Google's names an error in Google's form."""
    answer = problem_of(error)
    if not path.startswith(_GOOGLES_PATHS) or answer.status_code not in _GOOGLES_STATUS:
        return answer
    status = _GOOGLES_STATUS[answer.status_code]
    content = {"error": {"code": answer.status_code, "message": str(error), "status": status}}
    kept = {"Retry-After": answer.headers["Retry-After"]} if "Retry-After" in answer.headers else None
    return JSONResponse(content, answer.status_code, kept)
