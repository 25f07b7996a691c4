"""The routes of state that sessions share.

    GET    /v1/apps/{app}/state               the state that all users of an app share
    DELETE /v1/apps/{app}/state               delete some keys of it, or all
    GET    /v1/apps/{app}/users/{user}/state  the state that all sessions of a user share
    DELETE /v1/apps/{app}/users/{user}/state  delete some keys of it, or all

A session's own state is read and deleted with the session.
"""

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from runfold.documents.sessions import StateDocument, state_json
from runfold.http.bodies import JSON
from runfold.http.problems import problem_responses
from runfold.permissions.sessions import ServedSessions

App = Annotated[str, Path(description="The app, percent-encoded: `/` is `%2F`.", examples=["shop"])]
User = Annotated[str, Path(description="The user, percent-encoded.", examples=["u-1"])]
Keys = Annotated[
    list[str] | None,
    Query(alias="key", description="A key with its prefix. Repeat it for several. By default, all keys."),
]

_problems = partial(
    problem_responses,
    {
        422: "A part of the request is wrong. `field` names it.",
        503: "Kafka or MongoDB does not answer, or no projector runs. Retry.",
    },
)


def build_state_router(sessions: Callable[[], ServedSessions]) -> APIRouter:
    """The routes. `sessions` returns the verbs of the current connection, or raises while there is
    none.
    """
    router = APIRouter(prefix="/v1/apps", tags=["sessions"])
    _add_reads(router, sessions)
    _add_deletions(router, sessions)
    return router


def _add_reads(router: APIRouter, sessions: Callable[[], ServedSessions]) -> None:
    shown: dict[str, Any] = {"response_model": StateDocument, "responses": _problems(422)}

    @router.get("/{app}/state", summary="Read an app's state", **shown)
    async def read_app_state(app: App) -> Response:
        """Read the state that all users of an app share. It is empty for an unknown app."""
        return Response(state_json(await sessions().app_state(app)), media_type=JSON)

    @router.get("/{app}/users/{user}/state", summary="Read a user's state", **shown)
    async def read_user_state(app: App, user: User) -> Response:
        """Read the state that all sessions of a user of an app share."""
        return Response(state_json(await sessions().user_state(app, user)), media_type=JSON)

    @router.get("/{app}/users//state", include_in_schema=False)
    async def read_state_of_no_user(app: App) -> Response:
        """Sessions without a user share a state too."""
        return Response(state_json(await sessions().user_state(app, "")), media_type=JSON)


def _add_deletions(router: APIRouter, sessions: Callable[[], ServedSessions]) -> None:
    deletes: dict[str, Any] = {"status_code": HTTPStatus.NO_CONTENT, "responses": _problems(422)}

    @router.delete("/{app}/state", summary="Delete an app's state", **deletes)
    async def delete_app_state(app: App, key: Keys = None) -> Response:
        """Delete values that all users of an app share. A value that is set later stays."""
        await sessions().delete_app_state(app, key)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    @router.delete("/{app}/users/{user}/state", summary="Delete a user's state", **deletes)
    async def delete_user_state(app: App, user: User, key: Keys = None) -> Response:
        """Delete values that all sessions of a user of an app share. A value that is set later
        stays.
        """
        await sessions().delete_user_state(app, user, key)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    @router.delete("/{app}/users//state", include_in_schema=False, status_code=HTTPStatus.NO_CONTENT)
    async def delete_state_of_no_user(app: App, key: Keys = None) -> Response:
        """Sessions without a user share a state too."""
        await sessions().delete_user_state(app, "", key)
        return Response(status_code=HTTPStatus.NO_CONTENT)
