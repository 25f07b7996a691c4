"""Reads requests and writes answers. The status of an answer is always 200, because Google's
clients treat every other status as an error.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from runfold.http.bodies import DOCUMENT_BYTES_MAX, JSON, parse_json, read_body, read_media_type
from runfold.vertex.messages import Message, camel_name
from runfold.vertex.names import ENGINES, Name
from runfold_schemas.errors import InvalidEventError

MessageT = TypeVar("MessageT", bound=Message)

_PARAMETER_LENGTH_MAX: Final = 8_000
"""Longer than any page token, which contains ids."""

_COLLECTIONS: Final = {
    "engine": ENGINES,
    "session": "sessions",
    "memory": "memories",
    "revision": "revisions",
    "event": "events",
}
"""By the names of the routes' path parameters, in the order of a resource's name."""


def name_of(request: Request) -> Name:
    """The name of the resource in the request's path. Raises `InvalidEventError`."""
    ids = request.path_params
    path = [f"{collection}/{ids[key]}" for key, collection in _COLLECTIONS.items() if key in ids]
    if "project" in ids:
        path = [f"projects/{ids['project']}/locations/{ids['location']}", *path]
    return Name.parse("/".join(path)) if path else Name()


def query_parameter(request: Request, name: str) -> str | None:
    """A parameter of the query. `name` is in camelCase; clients may send it in snake_case too. None
    if it is missing or empty. Raises `InvalidEventError` if it is too long.
    """
    for key, value in request.query_params.items():
        if camel_name(key) == name and value:
            if len(value) > _PARAMETER_LENGTH_MAX:
                raise InvalidEventError(
                    f"{name}: it has {len(value):,} characters; {_PARAMETER_LENGTH_MAX:,} are allowed",
                    field=name,
                )
            return value
    return None


async def read_message(request: Request, kind: type[MessageT]) -> MessageT:
    """The message in the body; without a body, the message without fields. Answers 415 for a body
    of another media type: pages of any site may make a browser send those. Raises
    `InvalidEventError` if the body is not JSON, and pydantic's `ValidationError`.
    """
    body = await read_body(request, bytes_max=DOCUMENT_BYTES_MAX)
    if body.strip():
        read_media_type(request, allowed=(JSON,))
    fields = await parse_json(body) if body.strip() else {}
    if not isinstance(fields, dict):
        raise InvalidEventError("the body is not a JSON object")
    return kind.model_validate(fields)


def json_response(message: Message | Mapping[str, Any]) -> Response:
    """An answer with status 200 and the message."""
    fields = message.json_form() if isinstance(message, Message) else message
    # Python's own encoder writes integers of any size exactly.
    return Response(json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(), media_type=JSON)


def json_page(field: str, items: Sequence[Mapping[str, Any]], next_token: str | None) -> Response:
    """An answer with a page of a list, and the token of the next page if there is one."""
    token = {"nextPageToken": next_token} if next_token else {}
    return json_response({field: items, **token})


def masked_fields(mask: str, *, known: Collection[str]) -> set[str]:
    """The fields that an update mask names, in camelCase. Raises `InvalidEventError` for a field
    that is not among the `known`.
    """
    fields = {camel_name(path.strip()) for path in mask.split(",")}
    if unknown := sorted(fields - set(known)):
        raise InvalidEventError(
            f"updateMask: {unknown[0]!r} is not among the fields {', '.join(known)}", field="updateMask"
        )
    return fields
