"""The routes of Agent Engine as an application of its own, below the paths of ours.

It is not a router of ours, because nothing that holds there holds here: errors have another form,
parameters that are not known are passed over, and a path that is not known is Google's to answer.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fastapi import FastAPI
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from runfold.vertex.errors import error_body, on_error, on_http, on_invalid, on_unexpected
from runfold.vertex.operations import Answer, operation_routes
from runfold_schemas.errors import RunfoldError

_LOCATION: Final = "/projects/{project}/locations/{location}"

_PATHS: Final = ("/v1beta1/{rest:path}", "/v1/projects/{rest:path}", "/v1/reasoningEngines{rest:path}")
"""Of `/v1` no more than Google's names, because our own API is there too."""


class RouteGroup(NamedTuple):
    """Some of the protocol: its routes from `/reasoningEngines` on, and how its operations are
    answered once more.
    """

    routes: Sequence[Route]
    operations: Mapping[str, Answer] = {}


def build_vertex_app(*parts: RouteGroup) -> Starlette:
    """The application, for `mount`. Its routes are there under both versions, with and without
    project and location.
    """
    answers = {verb: answer for part in parts for verb, answer in part.operations.items()}
    # Operations come first: what is longer may not be taken for an id.
    routes: list[BaseRoute] = [
        *operation_routes(answers),
        *(route for part in parts for route in part.routes),
    ]
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
            Exception: on_unexpected,
        },
    )


def mount(app: FastAPI, vertex: Starlette) -> None:
    """Hands the paths of Google's names over to `vertex`. `app` comes from
    `runfold.http.app.new_app`, which leaves paths as they were sent.
    """
    app.router.routes.extend(Route(path, vertex, include_in_schema=False) for path in _PATHS)
    app.router.routes.append(Route("/", _without_path, methods=["POST", "PATCH"], include_in_schema=False))


async def _without_path(_: Request) -> Response:
    """To where Google's clients send everything when they are given a base URL and no project."""
    said = "the request has no path: give the client a project and a location, or an API key alone"
    return error_body("INVALID_ARGUMENT", said)
