"""The tenants that a service has open: each from its first request on, until it is quiet.

A service has connections, readers and caches of each open tenant: its parts. They are opened by a
task of their own, which closes them again. So concurrent first requests share one opening, and no
request's context outlives the request.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import Context
from typing import Any, Final, Generic, NoReturn, Protocol, Self, TypeVar

from runfold.http.tenancy import held_tenant
from runfold.log.clients import LogClients
from runfold.settings import Settings
from runfold.tenants.plans import Plans
from runfold_schemas.errors import ForbiddenError, RunfoldError, UnavailableError

QUIET_SECONDS: Final = 300.0
"""How long a tenant stays open without a request. Opening it again reads its catalog anew."""

LEAVE_SECONDS: Final = 15.0
"""This long after the mark of a drop, all services have left the tenant: it takes a second until
they look, a second for requests, and the grace of its generation, which is 10 s.
"""

_GRACE_SECONDS: Final = 1.0
"""How long the requests of a tenant that is closed may take to end."""

_FAILURE_SECONDS: Final = 1.0
"""For this time after a failed opening, requests get its error without another attempt."""

_LOOK_SECONDS_MAX: Final = 1.0

_log = logging.getLogger(__name__)


class Parts(Protocol):
    """What a service has open of one tenant."""

    @property
    def is_busy(self) -> bool:
        """Whether the parts have work to do without a request."""


PartsT = TypeVar("PartsT", bound=Parts)


class Opening(Generic[PartsT]):
    """One time that a tenant is open. What a service remembers of requests belongs to an opening,
    because a tenant may be dropped, and another one made with its name.
    """

    def __init__(self, tenant: str, identity: Hashable = None) -> None:
        self.tenant: Final = tenant
        self.identity: Final = identity
        self.parts: PartsT | None = None
        self.users = 0
        self.used_at = time.monotonic()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.left = asyncio.Event()
        """Is set when the parts shall be closed."""
        self.unused = asyncio.Event()
        """Is set while no request uses the tenant."""
        self._is_dropped = False
        self._blocks: set[asyncio.Timeout] = set()

    def hold(self) -> None:
        self.users += 1
        self.unused.clear()

    def release(self) -> None:
        self.users -= 1
        self.used_at = time.monotonic()
        if not self.users:
            self.unused.set()

    def drop(self) -> None:
        """Ends the requests, and has the parts closed."""
        self._is_dropped = True
        for block in self._blocks:
            block.reschedule(asyncio.get_running_loop().time())
        self.left.set()

    @asynccontextmanager
    async def until_dropped(self) -> AsyncIterator[None]:
        """Cancels the block when the tenant is dropped, and raises `ForbiddenError` instead."""
        block, refusal = asyncio.timeout(None), ForbiddenError(f"the tenant {self.tenant} is being dropped")
        if self._is_dropped:
            raise refusal
        try:
            async with block:
                self._blocks.add(block)
                yield
        except TimeoutError:
            if not block.expired():
                raise
            raise refusal from None
        finally:
            self._blocks.discard(block)

    @property
    def is_used(self) -> bool:
        return self.users > 0 or (self.parts is not None and self.parts.is_busy)


OpenParts = Callable[[Settings, LogClients], AbstractAsyncContextManager[PartsT]]
"""The parts of a tenant with these settings, over clients that tenants share."""


class OpenTenants(Generic[PartsT]):
    """Use it as an async context manager: inside, the parts of the installation's own tenant are
    open, and those of others when they are held. `plans` is None if there are no others.

    While several tenants are open, each may have as many requests in progress as further ones are
    possible. So a single one takes half of `connections_max` at most.
    """

    def __init__(
        self,
        settings: Settings,
        own_parts: AbstractAsyncContextManager[PartsT],
        *,
        open_parts: OpenParts[PartsT],
        plans: Plans | None,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self._settings = settings
        self._own: Final = settings.prefix
        self._own_parts = own_parts
        self._open_parts = open_parts
        self._plans = plans
        self._quiet_seconds = quiet_seconds
        self._openings: dict[str, Opening[PartsT]] = {}
        self._hosting: dict[asyncio.Task[None], Opening[PartsT]] = {}
        self._looking: asyncio.Task[NoReturn] | None = None
        self._clients: LogClients | None = None
        self._connecting = asyncio.Lock()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        opening = Opening[PartsT](self._own)
        opening.parts = await self._own_parts.__aenter__()
        opening.opened.set_result(None)
        self._openings[self._own] = opening
        if self._plans is not None:
            self._looking = asyncio.create_task(self._close_unused())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        for task, opening in self._hosting.items():
            opening.left.set()
            if not opening.opened.done():
                task.cancel()
        await asyncio.gather(*self._hosting, return_exceptions=True)
        await self._stack.aclose()
        await self._own_parts.__aexit__(None, None, None)

    def parts(self) -> PartsT:
        """The parts of the tenant of the request that this task answers. Raises `LookupError` if
        the task answers none.
        """
        held: Any = held_tenant()
        if held is None or held.parts is None:
            raise LookupError("this task answers no request of a tenant that is open")
        parts: PartsT = held.parts
        return parts

    # Opening and closing.

    @property
    def names(self) -> frozenset[str]:
        """The tenants that are open, or that are being opened."""
        return frozenset(self._openings)

    async def hold(self, tenant: str) -> Opening[PartsT]:
        """Opens the tenant if it is not open, and keeps it open until `Opening.release`. Raises as
        `Plans.of` does, and the errors of opening it.
        """
        opening = self._openings[tenant] if tenant == self._own else self._opening_of(tenant)
        if len(self._openings) > 1:
            self._check_share(opening)
        opening.hold()
        if opening.parts is None:
            try:
                # Shielded: other requests wait for the same opening.
                await asyncio.shield(opening.opened)
            except BaseException:
                opening.release()
                raise
        return opening

    def _check_share(self, opening: Opening[PartsT]) -> None:
        """Raises `UnavailableError` if the tenant gets no further request now."""
        free = self._settings.connections_max - sum(each.users for each in self._openings.values())
        if opening.users and opening.users >= free:
            raise UnavailableError(
                "A place for another request",
                reason=f"this tenant has {opening.users:,} requests in progress, and no more are free for"
                " others",
            )

    def _opening_of(self, tenant: str) -> Opening[PartsT]:
        if self._plans is None:
            raise ForbiddenError(f"this service has no tenant but {self._own}")
        plan = self._plans.of(tenant)
        opening = self._openings.get(tenant)
        if opening is not None and opening.identity != plan.identity:
            self._forget(opening)
            opening.drop()
            opening = None
        if opening is None:
            opening = self._openings[tenant] = Opening(tenant, plan.identity)
            hosting = self._host(opening, plan.settings)
            # An empty context: what the parts start belongs to no request.
            task = asyncio.create_task(hosting, name=f"tenant {tenant}", context=Context())
            self._hosting[task] = opening
            task.add_done_callback(self._hosting.pop)
        return opening

    async def _host(self, opening: Opening[PartsT], settings: Callable[[], Settings]) -> None:
        """Has the tenant open until `opening.left` is set."""
        try:
            clients = await self.connected()
            async with self._open_parts(settings(), clients) as parts:
                opening.parts = parts
                opening.opened.set_result(None)
                await opening.left.wait()
                await self._wait_for_users(opening)
        except Exception as error:  # noqa: BLE001  # the requests raise it, and other tenants go on
            if opening.opened.done():
                _log.exception("tenant %s was not closed cleanly", opening.tenant)
            else:
                _fail(opening, error)
                await asyncio.sleep(_FAILURE_SECONDS)
        finally:
            opening.parts = None
            self._forget(opening)

    async def connected(self) -> LogClients:
        """The clients that tenants share, from the first tenant on that needs them."""
        async with self._connecting:
            if self._clients is None:
                connect = LogClients.connect(self._settings.log("runfold/ingest"))
                self._clients = await self._stack.enter_async_context(connect)
            return self._clients

    async def _wait_for_users(self, opening: Opening[PartsT]) -> None:
        """Returns when no request uses the tenant any more, or after some time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                await opening.unused.wait()

    async def _close_unused(self) -> NoReturn:
        """Endless. Closes what nothing has used for a while, and what was dropped."""
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS_MAX, self._quiet_seconds / 4))
            for opening in list(self._openings.values()):
                if opening.tenant == self._own or not opening.opened.done():
                    continue
                if opening.is_used:
                    opening.used_at = time.monotonic()
                if not self._still_exists(opening):
                    self._forget(opening)
                    opening.drop()
                elif time.monotonic() - opening.used_at >= self._quiet_seconds:
                    self._forget(opening)
                    opening.left.set()

    def _still_exists(self, opening: Opening[PartsT]) -> bool:
        assert self._plans is not None
        try:
            return self._plans.of(opening.tenant).identity == opening.identity
        except UnavailableError:
            return True
        except RunfoldError:
            return False

    def _forget(self, opening: Opening[PartsT]) -> None:
        """A further request opens the tenant anew."""
        if self._openings.get(opening.tenant) is opening:
            del self._openings[opening.tenant]


def _fail(opening: Opening[PartsT], error: Exception) -> None:
    if not isinstance(error, RunfoldError):
        _log.error("tenant %s cannot be opened", opening.tenant, exc_info=error)
        error = UnavailableError(f"The tenant {opening.tenant}", reason=type(error).__name__)
    opening.opened.set_exception(error)
    opening.opened.exception()  # nobody may wait for it any more
