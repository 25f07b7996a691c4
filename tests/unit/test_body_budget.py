"""The budget of bodies in progress, and the shares of tenants in it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from fastapi import HTTPException
from starlette.types import Message, Receive, Scope, Send

from runfold.http.body_budget import SMALL_BYTES_MAX, BodyBudget
from runfold.http.principal import local_principal, set_principal

PART = SMALL_BYTES_MAX + 1


class Service:
    """A service with a budget of eight parts, whose requests last until they are released."""

    def __init__(self) -> None:
        self.budget = BodyBudget(self._answer, bytes_max=8 * PART)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        scope["received"].set()
        await scope["release"].wait()

    @asynccontextmanager
    async def request(self, tenant: str, size: int) -> AsyncIterator[None]:
        """A request with a body of this size. Raises `HTTPException` if it is refused."""
        received, release = asyncio.Event(), asyncio.Event()
        scope: Scope = {"type": "http", "received": received, "release": release}
        set_principal(scope, local_principal(tenant))

        async def receive() -> Message:
            return {"type": "http.request", "body": b"x" * size, "more_body": False}

        async def send(_: Message) -> None: ...

        answering = asyncio.create_task(self.budget(scope, receive, send))
        waiting = asyncio.create_task(received.wait())
        await asyncio.wait((answering, waiting), return_when=asyncio.FIRST_COMPLETED)
        try:
            if answering.done():
                await answering
            yield
        finally:
            release.set()
            waiting.cancel()
            with suppress(HTTPException):
                await answering


async def test_a_single_tenant_has_the_whole_budget():
    service = Service()
    async with service.request("a", 8 * PART):
        with pytest.raises(HTTPException, match="503"):
            async with service.request("a", PART):
                pass
        async with service.request("a", SMALL_BYTES_MAX):
            pass


async def test_the_bodies_of_one_tenant_leave_room_for_others():
    service = Service()
    async with service.request("a", 1), service.request("b", 4 * PART):
        with pytest.raises(HTTPException, match="503"):
            async with service.request("b", PART):
                pass
        async with service.request("a", 2 * PART):
            pass
    async with service.request("b", 4 * PART):
        pass
