"""Requests taken apart, and answers: always 200, since Google's clients take any other status for
an error.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from runfold.http.bodies import JSON, parse_json, read_body
from runfold.vertex.messages import Message, camel_name
from runfold.vertex.names import ENGINES, Name
from runfold_schemas.errors import InvalidEventError

MessageT = TypeVar("MessageT", bound=Message)

_BODY_BYTES_MAX: Final = 32 * 1024 * 1024
"""An event alone has 8 MiB at the most, and the clients send it twice: as it is here and as it is
with them.
"""

_COLLECTIONS: Final = {
    "engine": ENGINES,
    "session": "sessions",
    "memory": "memories",
    "revision": "revisions",
    "event": "events",
}
"""By the names that ids have in the paths of routes, and in the order that a name has them."""


def name_of(request: Request) -> Name:
    """The resource that the path names: with the parameters `engine`, `session`, `memory`,
    `revision` of its route. Raises `InvalidEventError`.
    """
    given = request.path_params
    path = [f"{collection}/{given[key]}" for key, collection in _COLLECTIONS.items() if key in given]
    if "project" in given:
        path = [f"projects/{given['project']}/locations/{given['location']}", *path]
    return Name.parse("/".join(path)) if path else Name()


def parameter(request: Request, name: str) -> str | None:
    """A parameter of the query by its name in camelCase, which may come in either spelling. An
    empty one says nothing.
    """
    for key, value in request.query_params.items():
        if camel_name(key) == name and value:
            return value
    return None


async def read(request: Request, kind: type[MessageT]) -> MessageT:
    """The message in the body; an empty one for an empty body. Raises `InvalidEventError` for
    broken JSON, and pydantic's `ValidationError`.
    """
    body = await read_body(request, bytes_max=_BODY_BYTES_MAX)
    fields = parse_json(body) if body.strip() else {}
    if not isinstance(fields, dict):
        raise InvalidEventError("the body is not a JSON object")
    return kind.model_validate(fields)


def answer(message: Message | Mapping[str, Any]) -> Response:
    """200 with the message."""
    fields = message.json_form() if isinstance(message, Message) else message
    # Python's own encoder writes integers of any size to the last digit.
    return Response(json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(), media_type=JSON)
