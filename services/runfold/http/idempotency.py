"""`Idempotency-Key`: a request that is sent again counts once
(draft-ietf-httpapi-idempotency-key-header-07).

Two things make it so.

- In every process, and after a crash: ids are derived from the key. Events that have no `event_id`
  get an id derived from the run and the key; a new run gets an id derived from the agent and the
  key. The log may then hold a second copy, but every reader counts only the first. The answer names
  the offset of the copy.
- In one process, for the keys that it remembers: a repeated request gets the first answer again,
  with the same offset. The answer is 409 while the first request is still in progress, and 422 if
  the key comes with another body. Only successes are remembered, so a failed request may be sent
  again, corrected or not.

A creation is answered with 201, and a repetition of the creation with 200: the resource as it is
now. Only a process that remembers the key repeats its first answer, which is 201. Without a key,
the `event_id` of a request for a session, a bank or a memory makes the request repeatable too. It
comes before the key: no id is derived from the key then.

A key belongs to one request: other processes take another body under the same key for a copy. API
keys that are limited to agents or users do not share their `Idempotency-Key`s with others.
"""

import asyncio
import hashlib
import json
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, NamedTuple

from fastapi import Depends, Header, HTTPException, Request
from fastapi.responses import Response
from pydantic import BaseModel

from runfold.http.authorisation import current_principal, is_limited
from runfold.http.bodies import (
    BATCH_BYTES_MAX,
    COMMAND_BYTES_MAX,
    DOCUMENT_BYTES_MAX,
    JSON,
    NDJSON,
    parse_json,
    read_body,
    read_media_type,
)
from runfold.http.items import Item, parse_items
from runfold.http.problems import Responses, problem
from runfold.http.tenancy import Held, held_tenant
from runfold_schemas.outline import chunks_of

_NAMESPACE: Final = uuid.UUID("f05d7fc3-3b25-4a0c-93d5-0f2e1d2b8a61")
_KEY_BYTES_MAX: Final = 255

KEPT_SECONDS: Final = 600.0
"""How long a process repeats its answer. Later the ids that are derived from the key still make the
request count once. An answer may have data of a user who is erased meanwhile.
"""

IdempotencyKey = Annotated[
    str | None,
    Header(
        description="Any text that is new for each request. A request that is sent again with the same"
        " key counts once."
    ),
]


class CreationIds(NamedTuple):
    """The id of a resource to create, and the id of the event that creates it. None: a new id."""

    resource_id: str | None
    event_id: str | None


@dataclass(frozen=True, slots=True)
class RepeatableRequest:
    """A request's body, and the key that the client sends again with the same request."""

    body: bytes
    media_type: str
    key: str | None
    sender: tuple[str, ...] = ()
    """The subject of a principal that is limited. Two of them may use one key for requests of their
    own, so they get neither the same ids nor each other's answers.
    """

    @classmethod
    def of(cls, body: bytes, media_type: str, header: str | None) -> "RepeatableRequest":
        """A request of the current principal with the key of this header. Answers 400 for a wrong
        key.
        """
        principal = current_principal()
        sender = (principal.subject,) if is_limited(principal) else ()
        return cls(body, media_type, _parse_key(header), sender)

    async def json(self) -> Any:
        """The body's JSON value. Raises `InvalidItemError` for broken JSON."""
        return await parse_json(self.body)

    def items(self) -> AsyncIterator[Item]:
        """The body's objects. Raises `InvalidEventError`."""
        return parse_items(self.body, self.media_type)

    def derived_id(self, *names: str, index: int | None = None) -> str | None:
        """An id that every process derives from these names and the key, as a UUIDv5. None without
        a key.
        """
        if self.key is None:
            return None
        numbered = [] if index is None else [index]
        return str(uuid.uuid5(_NAMESPACE, json.dumps([*names, *self.sender, self.key, *numbered])))

    def creation_ids(
        self, kind: str, *place: str, resource_id: str | None, event_id: str | None
    ) -> CreationIds:
        """The ids that the request's body names. If it has no `event_id`, missing ids are derived
        from the key. `place` names the place of the new resource.
        """
        if event_id is not None:
            return CreationIds(resource_id, event_id)
        if resource_id is None:
            resource_id = self.derived_id(kind, *place)
        return CreationIds(resource_id, self.derived_id(f"{kind} created", *place, resource_id or ""))

    async def fingerprint(self, *parameters: str) -> bytes:
        """A digest by which two requests under one key differ."""
        digest = hashlib.sha256(json.dumps([self.media_type, *parameters]).encode() + b"\n")
        for chunk in chunks_of(self.body):
            digest.update(chunk)
            if len(self.body) > len(chunk):
                await asyncio.sleep(0)
        return digest.digest()


def _repeatable(*media_types: str, bytes_max: int) -> Any:
    async def read(request: Request, idempotency_key: IdempotencyKey = None) -> RepeatableRequest:
        media_type = read_media_type(request, allowed=media_types)
        body = await read_body(request, bytes_max=bytes_max)
        return RepeatableRequest.of(body, media_type, idempotency_key)

    return Depends(read)


async def repeatable_document(request: Request, key: str | None) -> RepeatableRequest:
    """A JSON body with the `Idempotency-Key` of its header, for a route that takes other bodies as
    well. Answers 415 for another media type.
    """
    media_type = read_media_type(request, allowed=(JSON,))
    body = await read_body(request, bytes_max=DOCUMENT_BYTES_MAX)
    return RepeatableRequest.of(body, media_type, key)


async def _repeatable_model(request: Request, idempotency_key: IdempotencyKey = None) -> RepeatableRequest:
    return RepeatableRequest.of(await request.body(), JSON, idempotency_key)


RepeatableCommand = Annotated[RepeatableRequest, _repeatable(JSON, bytes_max=COMMAND_BYTES_MAX)]
"""A route's parameter: a small JSON body, which the route parses."""

RepeatableDocument = Annotated[RepeatableRequest, _repeatable(JSON, bytes_max=DOCUMENT_BYTES_MAX)]
"""A route's parameter: a JSON body, which the route parses."""

RepeatableBatch = Annotated[RepeatableRequest, _repeatable(JSON, NDJSON, bytes_max=BATCH_BYTES_MAX)]
"""A route's parameter: a body of one object or several."""

RepeatableModel = Annotated[RepeatableRequest, Depends(_repeatable_model)]
"""A parameter of a `JsonRoute` that declares its body as a model."""


_Name = tuple[Held | None, tuple[str, ...]]
"""The tenant of a request, its path and its key."""


class Replays:
    """The answers to the last keys of this process. The oldest key is forgotten first."""

    def __init__(
        self,
        *,
        keys_max: int = 10_000,
        bytes_max: int = 64 * 1024 * 1024,
        seconds_max: float = KEPT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds_max = seconds_max
        self._clock = clock
        self._keys_max = keys_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._answered: OrderedDict[_Name, tuple[bytes, Response]] = OrderedDict()
        self._times: deque[float] = deque()
        """When the answers were made, in the same order."""
        self._in_progress: dict[_Name, bytes] = {}

    async def answer(
        self,
        path: str,
        request: RepeatableRequest,
        handle: Callable[[], Awaitable[Response]],
        *parameters: str,
    ) -> Response:
        """The answer of `handle`, or its first answer to the same key at this path. `parameters`
        are part of the request beside its body.
        """
        if request.key is None:
            return await handle()
        name = held_tenant(), (path, *request.sender, request.key)
        fingerprint = await request.fingerprint(*parameters)
        self._forget_old()
        first, response = self._answered.get(name, (self._in_progress.get(name), None))
        if first is None:
            return await self._answer_first(name, fingerprint, handle)
        if first != fingerprint:
            return problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"Idempotency-Key {request.key!r} was used for another request: choose a new one",
                type_="urn:runfold:problem:IdempotencyKeyReused",
            )
        return response or problem(
            HTTPStatus.CONFLICT,
            f"the first request with Idempotency-Key {request.key!r} is still in progress: retry",
            type_="urn:runfold:problem:IdempotencyKeyInProgress",
        )

    async def _answer_first(
        self, name: _Name, fingerprint: bytes, handle: Callable[[], Awaitable[Response]]
    ) -> Response:
        self._in_progress[name] = fingerprint
        try:
            response = await handle()
        finally:
            del self._in_progress[name]
        if response.status_code < HTTPStatus.BAD_REQUEST:
            self._remember(name, fingerprint, response)
        return response

    def _remember(self, name: _Name, fingerprint: bytes, response: Response) -> None:
        self._answered[name] = (fingerprint, response)
        self._times.append(self._clock())
        self._bytes += len(response.body)
        while len(self._answered) > self._keys_max or self._bytes > self._bytes_max:
            self._forget_oldest()

    def _forget_old(self) -> None:
        while self._times and self._times[0] < self._clock() - self._seconds_max:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        self._times.popleft()
        _, (_, forgotten) = self._answered.popitem(last=False)
        self._bytes -= len(forgotten.body)


def status_of_creation(created_at: datetime, *, received_at: datetime) -> HTTPStatus:
    """201 if the request that was received then has created the resource, 200 if an earlier one
    has.
    """
    return HTTPStatus.CREATED if created_at >= received_at else HTTPStatus.OK


def repetition(model: type[BaseModel] | None = None) -> Responses:
    """The answer to a repeated creation, for the OpenAPI description of its route."""
    response: dict[str, Any] = {"description": "An earlier copy of the request has created it."}
    return {200: response if model is None else {**response, "model": model}}


def _parse_key(header: str | None) -> str | None:
    """The key in a header: a quoted string as the draft has it, or bare as many clients send it.
    Answers 400 for a key that is empty or too long.
    """
    if header is None:
        return None
    key = header.strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    if not 0 < len(key.encode()) <= _KEY_BYTES_MAX:
        raise HTTPException(
            HTTPStatus.BAD_REQUEST, f"Idempotency-Key is not 1 to {_KEY_BYTES_MAX} bytes long"
        )
    return key
