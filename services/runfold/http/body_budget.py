"""How many bytes of bodies a service holds for all requests in progress together.

Each body has a limit of its own, but many clients may each send nearly that much and then stop. So
the bytes of large bodies count against a budget of the process until their requests are answered.
Once requests of several tenants have come, each tenant may have as many bytes as are free: so a
single one takes half of them at most.
"""

from collections import Counter
from http import HTTPStatus
from typing import Final

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runfold.http.principal import principal_of

BODIES_BYTES_MAX: Final = 256 * 1024 * 1024
"""The most bytes of large bodies in progress: eight of the longest. Small machines have them
besides what the work on a body takes.
"""

SMALL_BYTES_MAX: Final = 64 * 1024
"""A body up to this length always passes. With all 2,000 connections that is 128 MB."""

_RETRY_AFTER_SECONDS: Final = 1


class BodyBudget:
    """ASGI middleware. Answers 503 when a large body exceeds the budget. The bytes that arrive
    count, and not the announced length, because a client may announce what it never sends.
    """

    def __init__(self, app: ASGIApp, *, bytes_max: int = BODIES_BYTES_MAX) -> None:
        self._app = app
        self._bytes_max = bytes_max
        self._bytes: Counter[str] = Counter()
        """The bytes in progress, of each tenant that has sent a request so far."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            tenant = principal_of(scope).tenant
        except LookupError:  # a public path, where no body is read, or no request
            await self._app(scope, receive, send)
            return
        received = counted = 0
        self._bytes[tenant] += 0
        has_answer = False

        async def receive_counted() -> Message:
            nonlocal received, counted
            message = await receive()
            if has_answer:  # what arrives now is thrown away
                return message
            received += len(message.get("body", b""))
            if received > SMALL_BYTES_MAX:
                self._bytes[tenant] += received - counted
                counted = received
                self._check_room(tenant)
            return message

        async def send_noted(message: Message) -> None:
            nonlocal has_answer
            has_answer = True
            await send(message)

        try:
            await self._app(scope, receive_counted, send_noted)
        finally:
            self._bytes[tenant] -= counted

    def _check_room(self, tenant: str) -> None:
        free = self._bytes_max - self._bytes.total()
        if free < 0:
            reason = (
                f"the bodies of the requests in progress have more than {self._bytes_max:,} bytes together"
            )
        elif len(self._bytes) > 1 and self._bytes[tenant] > free:
            reason = (
                f"the bodies of this tenant's requests in progress have {self._bytes[tenant]:,} bytes"
                " together, and no more are free for others"
            )
        else:
            return
        raise HTTPException(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"{reason}: retry later, or send bodies of at most {SMALL_BYTES_MAX:,} bytes",
            headers={"Retry-After": str(_RETRY_AFTER_SECONDS)},
        )
