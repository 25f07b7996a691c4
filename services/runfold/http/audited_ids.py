"""The ids in a line of the audit log: of the path and the query, of what the request has created,
and those that its handler notes because they are in the body alone.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final
from urllib.parse import parse_qsl, unquote

from starlette.datastructures import Headers
from starlette.types import Message, Scope

from runfold.http.parameters import has_decoded_parameters

_WHOLE_PATH: Final = "rest"
"""The parameter of the routes that lead to Google's protocol. Its own routes have ids."""

_OF_QUERY: Final = frozenset({"agent_id", "app", "session_id", "sessionId", "user", "user_id"})
"""The parameters of a query that are ids: of the thing to create, or of the owner of a list."""

_noted: ContextVar[dict[str, str]] = ContextVar("ids for the audit log")


def note_scope(scope: Mapping[str, str] | None) -> None:
    """Has the line of the current request name this scope of memories."""
    note_ids({f"scope.{key}": value for key, value in (scope or {}).items()})


def note_ids(ids: Mapping[str, str | None]) -> None:
    """Adds ids to the line of the current request. Without an audit log it does nothing."""
    if (noted := _noted.get(None)) is not None:
        noted.update((name, id_) for name, id_ in ids.items() if id_ is not None)


class AuditedIds:
    """The ids of one request. Make it in the task that answers the request."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._found: dict[str, str] = {}
        _noted.set(self._found)

    def take_answer(self, start: Message) -> None:
        """Notes what the request has created, if its answer names it."""
        if location := Headers(raw=start["headers"]).get("location"):
            self._found["created"] = location

    def all(self) -> dict[str, str]:
        return {**_ids_of_query(self._scope), **_ids_of_path(self._scope), **self._found}


def _ids_of_path(scope: Scope) -> dict[str, str]:
    """The parameters of the path, as the client meant them."""
    parameters = {
        name: str(value) for name, value in scope.get("path_params", {}).items() if name != _WHOLE_PATH
    }
    if has_decoded_parameters(scope):
        return parameters
    return {name: unquote(value) for name, value in parameters.items()}


def _ids_of_query(scope: Scope) -> dict[str, str]:
    query = scope["query_string"]
    if not query:
        return {}
    return {name: value for name, value in parse_qsl(query.decode("latin-1")) if name in _OF_QUERY}
