"""Long-running operations, none of which runs long: each is done when it is first answered.

Clients may ask again all the same, by its name, and another process than the first may be asked. So
nothing is stored: the id says what was done, the name in front of it to what, and the answer is
what can be read of that now. An id that somebody makes up therefore tells nothing that could not be
read without it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runfold.vertex.errors import WireError
from runfold.vertex.messages import Message, rfc3339
from runfold.vertex.names import Name
from runfold.vertex.paging import place_of, token_of
from runfold.vertex.requests import answer, name_of
from runfold_schemas.errors import InvalidEventError

Answer = Callable[[Name, Sequence[str]], Awaitable[Message]]
"""What an operation has led to: of the resource it belongs to, and the facts that were kept in its
id. It may raise that the resource is not there any more.
"""

_PARENTS = (
    "/reasoningEngines/{engine}",
    "/reasoningEngines/{engine}/sessions/{session}",
    "/reasoningEngines/{engine}/memories/{memory}",
)


def done(parent: Name, verb: str, response: Message, *facts: str) -> Response:
    """A finished operation. `verb` is what `answers` of `operation_routes` know it by; `facts` are
    what they need besides the name of the parent.
    """
    now = f"{datetime.now(UTC).timestamp():.6f}"
    return answer(_operation(parent.child("operations", token_of(verb, now, *facts)), now, response))


def operation_routes(answers: Mapping[str, Answer]) -> list[Route]:
    """`GET …/operations/{operation}`; `answers` by the verbs that `done` was called with."""

    async def read_operation(request: Request) -> Response:
        parent, id_ = name_of(request), request.path_params["operation"]
        verb, now, *facts = _said(id_)
        if verb not in answers:
            raise _no_operation(id_)
        response = await answers[verb](parent, facts)
        return answer(_operation(parent.child("operations", id_), now, response))

    return [Route(f"{parent}/operations/{{operation}}", read_operation) for parent in _PARENTS]


def _operation(name: Name, now: str, response: Message) -> dict[str, Any]:
    time = rfc3339(datetime.fromtimestamp(float(now), UTC))
    return {
        "name": str(name),
        "metadata": {"genericMetadata": {"createTime": time, "updateTime": time}},
        "done": True,
        "response": {"@type": f"type.googleapis.com/{response.proto}", **response.json_form()},
    }


def _said(id_: str) -> list[str]:
    try:
        said = place_of(id_)
        _, now, *_rest = said
        datetime.fromtimestamp(float(now), UTC)
    except (InvalidEventError, ValueError, TypeError, OverflowError, OSError) as error:
        raise _no_operation(id_) from error
    if not all(isinstance(each, str) for each in said):
        raise _no_operation(id_)
    return said


def _no_operation(id_: str) -> WireError:
    return WireError("NOT_FOUND", f"operation {id_!r} does not exist")
