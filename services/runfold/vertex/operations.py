"""Long-running operations, all of which are finished in the first answer.

A client may read an operation again by its name, and from another process. Nothing is stored for
that: the operation's id contains the verb, the name before it is the resource, and the answer is
read from the resource as it is then. So an invented id reveals only what is readable without it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runfold.http.audited_ids import note_ids
from runfold.vertex.errors import WireError
from runfold.vertex.messages import Message, rfc3339
from runfold.vertex.names import Name
from runfold.vertex.paging import token_of, token_values
from runfold.vertex.requests import json_response, name_of
from runfold_schemas.errors import InvalidEventError

ResultReader = Callable[[Name, Sequence[str]], Awaitable[Message]]
"""Reads the result of an operation again. It gets the resource, and the details that were kept in
the operation's id. It may raise an error if the resource does not exist any more.
"""

_PARENTS = (
    "/reasoningEngines/{engine}",
    "/reasoningEngines/{engine}/sessions/{session}",
    "/reasoningEngines/{engine}/memories/{memory}",
)


def finished_operation(parent: Name, verb: str, response: Message, *details: str) -> Response:
    """The answer with a finished operation. `verb` selects the reader of its result, which needs
    the `details` besides the name of the resource.
    """
    now = f"{datetime.now(UTC).timestamp():.6f}"
    if verb.startswith("create"):
        note_ids({"created": str(parent)})
    return json_response(_operation(parent.child("operations", token_of(verb, now, *details)), now, response))


def operation_routes(readers: Mapping[str, ResultReader]) -> list[Route]:
    """The routes that read an operation. The keys of `readers` are the verbs of operations."""

    async def read_operation(request: Request) -> Response:
        parent, id_ = name_of(request), request.path_params["operation"]
        verb, now, *details = _parse_id(id_)
        if verb not in readers:
            raise _no_operation(id_)
        response = await readers[verb](parent, details)
        return json_response(_operation(parent.child("operations", id_), now, response))

    return [Route(f"{parent}/operations/{{operation}}", read_operation) for parent in _PARENTS]


def _operation(name: Name, now: str, response: Message) -> dict[str, Any]:
    time = rfc3339(datetime.fromtimestamp(float(now), UTC))
    return {
        "name": str(name),
        "metadata": {"genericMetadata": {"createTime": time, "updateTime": time}},
        "done": True,
        "response": {"@type": f"type.googleapis.com/{response.proto}", **response.json_form()},
    }


def _parse_id(id_: str) -> list[str]:
    try:
        values = token_values(id_)
        _, now, *_rest = values
        datetime.fromtimestamp(float(now), UTC)
    except (InvalidEventError, ValueError, TypeError, OverflowError, OSError) as error:
        raise _no_operation(id_) from error
    if not all(isinstance(each, str) for each in values):
        raise _no_operation(id_)
    return values


def _no_operation(id_: str) -> WireError:
    return WireError("NOT_FOUND", f"operation {id_!r} does not exist")
