"""`Idempotency-Key`: a request that is sent again counts once
(draft-ietf-httpapi-idempotency-key-header-07).

What holds everywhere, after a crash and on another ingest process too: the key decides the ids. The
events of a request that bring no `event_id`, and a run that is opened without `run_id`, get one
that is a function of the run (or the agent) and the key, so the log has a second copy at most, and
every reader counts the first. The answer then names the copy's offset. Another body under the same
key is taken for a copy as well: a key is for one request.

What one process adds for the keys it remembers: the first answer again, offset and all; 409 while
the first request is still on its way; 422 for a key that comes back with another body. Only
successes are remembered, so a request that failed may be sent again, corrected or not.
"""

import hashlib
import json
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from fastapi import HTTPException
from fastapi.responses import Response

from runfold.http.app import problem

_NAMESPACE: Final = uuid.UUID("f05d7fc3-3b25-4a0c-93d5-0f2e1d2b8a61")
_KEY_BYTES_MAX: Final = 255

Fingerprint = bytes


def key_of(header: str | None) -> str | None:
    """The key in a header: a quoted string as the draft has it, or bare as many clients send it.
    Answers 400.
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


def derived_id(*names: str | int) -> str:
    """A UUIDv5 that any process derives from the same names."""
    return str(uuid.uuid5(_NAMESPACE, json.dumps(names)))


def fingerprint(body: bytes, *parameters: str) -> Fingerprint:
    """What tells two requests under one key apart."""
    return hashlib.sha256(json.dumps(parameters).encode() + b"\n" + body).digest()


class Replays:
    """The answers to the last keys that this process has seen, the oldest forgotten first."""

    def __init__(self, *, keys_max: int = 10_000, bytes_max: int = 64 * 1024 * 1024) -> None:
        self._keys_max = keys_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._answered: OrderedDict[tuple[str, str], tuple[Fingerprint, Response]] = OrderedDict()
        self._in_progress: dict[tuple[str, str], Fingerprint] = {}

    async def answer(
        self, path: str, key: str | None, request: Fingerprint, handle: Callable[[], Awaitable[Response]]
    ) -> Response:
        """What `handle` answers, or answered the first time that this key came to this path."""
        if key is None:
            return await handle()
        name = (path, key)
        first, response = self._answered.get(name, (self._in_progress.get(name), None))
        if first is None:
            return await self._first(name, request, handle)
        if first != request:
            return problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"Idempotency-Key {key!r} was used for another request: choose a new one",
                type_="urn:runfold:problem:IdempotencyKeyReused",
            )
        return response or problem(
            HTTPStatus.CONFLICT,
            f"the first request with Idempotency-Key {key!r} is still in progress: retry",
            type_="urn:runfold:problem:IdempotencyKeyInProgress",
        )

    async def _first(
        self, name: tuple[str, str], request: Fingerprint, handle: Callable[[], Awaitable[Response]]
    ) -> Response:
        self._in_progress[name] = request
        try:
            response = await handle()
        finally:
            del self._in_progress[name]
        if response.status_code < HTTPStatus.BAD_REQUEST:
            self._remember(name, request, response)
        return response

    def _remember(self, name: tuple[str, str], request: Fingerprint, response: Response) -> None:
        self._answered[name] = (request, response)
        self._bytes += len(response.body)
        while len(self._answered) > self._keys_max or self._bytes > self._bytes_max:
            _, (_, forgotten) = self._answered.popitem(last=False)
            self._bytes -= len(forgotten.body)
