"""The routes of Agent Engine as an application of its own, mounted beside Runfold's own API.

It is not a router of that API, because its rules differ: errors have another form, unknown
parameters are ignored, and unknown paths below Google's names are answered in Google's form.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from fastapi import FastAPI
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from runfold.http.authorisation import guard
from runfold.http.problems import answer_nobody
from runfold.http.route_rules import RULES, Rule
from runfold.vertex.errors import error_body, on_error, on_http, on_invalid, on_unexpected
from runfold.vertex.operations import ResultReader, operation_routes
from runfold_schemas.errors import RunfoldError

_LOCATION: Final = "/projects/{project}/locations/{location}"

_PATHS: Final = ("/v1beta1/{rest:path}", "/v1/projects/{rest:path}", "/v1/reasoningEngines{rest:path}")
"""The paths of Google's names. Below `/v1`, the other paths are Runfold's own."""


class ResourceHandlers(Protocol):
    """The handlers of a resource that can be created, listed, read, updated and deleted."""

    async def create(self, request: Request) -> Response: ...
    async def list(self, request: Request) -> Response: ...
    async def get(self, request: Request) -> Response: ...
    async def update(self, request: Request) -> Response: ...
    async def delete(self, request: Request) -> Response: ...


class RouteGroup(NamedTuple):
    """Routes below `/reasoningEngines`, and for each verb of their operations the function that
    reads its result again.
    """

    routes: Sequence[Route]
    operations: Mapping[str, ResultReader] = {}


def resource_routes(collection: str, parameter: str, handlers: ResourceHandlers) -> list[Route]:
    """The routes of a resource. `parameter` is the name of its id in paths."""
    item = f"{collection}/{{{parameter}}}"
    return [
        Route(collection, handlers.create, methods=["POST"]),
        Route(collection, handlers.list, methods=["GET"]),
        Route(item, handlers.get, methods=["GET"]),
        Route(item, handlers.update, methods=["PATCH"]),
        Route(item, handlers.delete, methods=["DELETE"]),
    ]


def build_vertex_app(*groups: RouteGroup, rules: Mapping[str, Rule] = RULES) -> Starlette:
    """The application, for `mount`. It has each route under both versions, with and without project
    and location.
    """
    readers = {verb: reader for group in groups for verb, reader in group.operations.items()}
    # Operations come first: their longer paths must not be taken for an id.
    own = [*operation_routes(readers), *(route for group in groups for route in group.routes)]
    routes: list[BaseRoute] = [guard(route, rules) for route in own]
    versions = [
        Mount(f"/{version}", routes=[Mount(_LOCATION, routes=routes), *routes])
        for version in ("v1beta1", "v1")
    ]
    return Starlette(
        routes=versions,
        exception_handlers={
            RunfoldError: on_error,
            ValidationError: on_invalid,
            HTTPException: on_http,
            ClientDisconnect: answer_nobody,
            Exception: on_unexpected,
        },
    )


def mount(app: FastAPI, vertex: Starlette) -> None:
    """Routes the paths of Google's names to `vertex`. `app` comes from `runfold.http.app.new_app`,
    which leaves paths as they were sent.
    """
    app.router.routes.extend(Route(path, vertex, include_in_schema=False) for path in _PATHS)
    app.router.routes.append(
        Route("/", _answer_without_path, methods=["POST", "PATCH"], include_in_schema=False)
    )


async def _answer_without_path(_: Request) -> Response:
    """Google's clients send everything to `/` if they have a base URL and no project."""
    message = "the request has no path: give the client a project and a location, or an API key alone"
    return error_body("INVALID_ARGUMENT", message)
