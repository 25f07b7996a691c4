"""Parameters of paths and queries. Every application checks them in the same way.

Ids are percent-encoded: a route is found by the path as the client sent it, and the ids are decoded
afterwards. So `%2F` in an id does not end the id.
"""

import inspect
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

from fastapi import Depends, Request
from fastapi.openapi.utils import get_openapi
from starlette.types import ASGIApp, Receive, Scope, Send

from runfold_schemas.errors import InvalidEventError

_DECODED: Final = "runfold.decoded"


class PathsAsSent:
    """ASGI middleware: routes are found by the path before percent-decoding."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("ascii")}
        await self._app(scope, receive, send)


async def decode_path_parameters(request: Request) -> None:
    request.scope[_DECODED] = True
    for name, value in request.path_params.items():
        request.path_params[name] = unquote(value)


def has_decoded_parameters(scope: Scope) -> bool:
    """Whether the parameters of the path are decoded. A request may be refused before."""
    return _DECODED in scope


async def refuse_unknown_parameters(request: Request) -> None:
    """Raises `InvalidEventError` for a query parameter that the route does not have. Without this
    check, a mistyped parameter would have no effect and no error.
    """
    if not request.query_params:
        return
    known = _query_parameters(request)
    for name in request.query_params:
        if name not in known:
            raise InvalidEventError(
                f"unknown parameter {name!r}; known are {', '.join(sorted(known)) or 'none'}", field=name
            )


def _query_parameters(request: Request) -> frozenset[str]:
    """The names that the route is described with. Only this route is described, and only once: all
    routes together would stop the event loop for a second.
    """
    described: dict[tuple[str, str], frozenset[str]] = request.app.state.query_parameters
    route, method = request.scope["route"], request.method.lower()
    key = (route.path_format, method)
    if key not in described:
        paths = get_openapi(title="", version="", routes=[route])["paths"]
        parameters = paths.get(route.path_format, {}).get(method, {}).get("parameters", [])
        described[key] = frozenset(each["name"] for each in parameters if each["in"] == "query")
    return described[key]


def made(model: Callable[..., Any]) -> Any:
    """A dependency that makes a `model` of the parameters that its fields declare. FastAPI would
    call a class in a thread, as any function without `async`, which costs more than the parameters.
    """

    async def make(**parameters: Any) -> Any:
        return model(**parameters)

    make.__signature__ = inspect.signature(model)  # type: ignore[attr-defined]
    return Depends(make)
