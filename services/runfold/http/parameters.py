"""Parameters of paths and queries. Every application checks them in the same way.

Ids are percent-encoded: a route is found by the path as the client sent it, and the ids are decoded
afterwards. So `%2F` in an id does not end the id.
"""

from urllib.parse import unquote

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from runfold_schemas.errors import InvalidEventError


class PathsAsSent:
    """ASGI middleware: routes are found by the path before percent-decoding."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("ascii")}
        await self._app(scope, receive, send)


async def decode_path_parameters(request: Request) -> None:
    for name, value in request.path_params.items():
        request.path_params[name] = unquote(value)


async def refuse_unknown_parameters(request: Request) -> None:
    """Raises `InvalidEventError` for a query parameter that the route does not have. Without this
    check, a mistyped parameter would have no effect and no error.
    """
    if not request.query_params:
        return
    paths = request.app.openapi()["paths"]
    described = paths.get(request.scope["route"].path_format, {}).get(request.method.lower(), {})
    parameters = described.get("parameters", [])
    known = {parameter["name"] for parameter in parameters if parameter["in"] == "query"}
    for name in request.query_params:
        if name not in known:
            raise InvalidEventError(
                f"unknown parameter {name!r}; known are {', '.join(sorted(known)) or 'none'}", field=name
            )
