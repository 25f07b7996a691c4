"""Counts the runs of tenants that have not ended, for the quota of open runs.

The catalog has all of them, by whichever program they were opened, also while projectors are late.
Each process reads it once a second while runs are opened, and adds what it has opened since. So no
request waits for Kafka but the first of a tenant, which waits for the first count. A process may
allow what others open within a second.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Hashable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Final, NoReturn, Self

from runfold.log.catalog_view import CatalogView
from runfold.log.leaders import Leaders
from runfold.settings import Settings
from runfold.tenants.registry import Tenant, Tenants, settings_of
from runfold_schemas.errors import RunfoldError

COUNT_SECONDS: Final = 1.0

_QUIET_SECONDS: Final = 300.0
"""How long a catalog is followed after the last opening of a run."""

_FIRST_SECONDS: Final = 5.0
"""How long an opening waits for the first count of its tenant, which may fail."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _OpenRuns:
    """What is known of a tenant's open runs."""

    listed: int = 0
    """The open runs in the catalog, when it was last read."""
    opening: int = 0
    """The requests in progress that open a run."""
    opened: int = 0
    """The requests since that have ended. Those that failed count until the next count."""
    is_asked: bool = False
    first: asyncio.Task[None] | None = None
    """The count for which the first opening waits. None after a quiet time as well."""

    @property
    def total(self) -> int:
        return self.listed + self.opening + self.opened


@dataclass
class _Catalog:
    """The catalog of a tenant, open."""

    identity: Hashable
    view: CatalogView
    used_at: float = 0.0
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)


class OpenRunCounts:
    """The open runs of tenants that have a quota of them, for the length of the `async with`
    block. `tenants` returns the tenants as they are now.
    """

    def __init__(self, settings: Settings, tenants: Callable[[], Tenants]) -> None:
        self._settings = settings
        self._tenants = tenants
        self._runs: dict[str, _OpenRuns] = {}
        self._catalogs: dict[str, _Catalog] = {}
        self._leaders: Leaders | None = None
        self._connecting = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._has_work = asyncio.Event()
        self._failure = ""
        self._counting: asyncio.Task[NoReturn]

    async def __aenter__(self) -> Self:
        self._counting = asyncio.create_task(self._count_always())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        counting = [self._counting, *(runs.first for runs in self._runs.values() if runs.first is not None)]
        for task in counting:
            task.cancel()
        await asyncio.gather(*counting, return_exceptions=True)
        for name in list(self._catalogs):
            await self._close(name)
        await self._stack.aclose()

    async def begin(self, tenant: str, limit: int) -> bool:
        """Counts a request that opens a run, unless so many runs are open. Returns whether it may.
        `end` belongs to it.
        """
        runs = self._runs.setdefault(tenant, _OpenRuns())
        self._ask(runs)
        if runs.first is None:
            runs.first = asyncio.create_task(self._count_first(tenant, runs))
        if not runs.first.done():
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(runs.first), _FIRST_SECONDS)
        if runs.total >= limit:
            return False
        runs.opening += 1
        return True

    def end(self, tenant: str) -> None:
        """The request has opened its run, or failed."""
        runs = self._runs[tenant]
        runs.opening -= 1
        runs.opened += 1
        self._ask(runs)

    def _ask(self, runs: _OpenRuns) -> None:
        runs.is_asked = True
        self._has_work.set()

    async def _count_always(self) -> NoReturn:
        """Endless. Connects when a run is opened for the first time."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_work.wait(), _QUIET_SECONDS)
            self._has_work.clear()
            for name, runs in list(self._runs.items()):
                if runs.is_asked and runs.first is not None and runs.first.done():
                    await self._count(name, runs)
            for name, catalog in list(self._catalogs.items()):
                if time.monotonic() - catalog.used_at > _QUIET_SECONDS:
                    await self._close(name)
                    self._runs[name].first = None
            await asyncio.sleep(COUNT_SECONDS)

    async def _count_first(self, name: str, runs: _OpenRuns) -> None:
        await self._count(name, runs)
        if runs.is_asked:
            self._has_work.set()

    async def _count(self, name: str, runs: _OpenRuns) -> None:
        runs.is_asked, opened = False, runs.opened
        try:
            tenant = self._tenants().active(name)
            runs.listed = 0 if tenant is None else await self._listed(tenant)
            self._failure = ""
        except RunfoldError as error:
            self._note(str(error))
        except Exception as error:  # noqa: BLE001  # a later attempt may succeed
            self._note(repr(error))
        else:
            runs.opened -= opened
            return
        await self._close(name)
        self._ask(runs)

    async def _listed(self, tenant: Tenant) -> int:
        identity = tenant.created_at, tenant.partitions
        catalog = self._catalogs.get(tenant.name)
        if catalog is not None and catalog.identity != identity:
            await self._close(tenant.name)
            catalog = None
        if catalog is None:
            catalog = await self._open(tenant, identity)
        catalog.used_at = time.monotonic()
        return await catalog.view.count_open()

    async def _open(self, tenant: Tenant, identity: Hashable) -> _Catalog:
        async with self._connecting:
            if self._leaders is None:
                connect = Leaders.connect(self._settings.log("runfold/quotas"))
                self._leaders = await self._stack.enter_async_context(connect)
        log = settings_of(self._settings, tenant).log("runfold/quotas")
        async with AsyncExitStack() as stack:
            view = await stack.enter_async_context(CatalogView.connect(log, leaders=self._leaders))
            catalog = self._catalogs[tenant.name] = _Catalog(identity, view, stack=stack.pop_all())
        return catalog

    async def _close(self, name: str) -> None:
        catalog = self._catalogs.pop(name, None)
        if catalog is not None:
            try:
                await catalog.stack.aclose()
            except Exception as error:  # noqa: BLE001  # counting goes on
                _log.warning("the catalog of %s was not closed: %r", name, error)

    def _note(self, failure: str) -> None:
        if failure != self._failure:
            _log.warning("open runs are counted by this process alone: %s", failure)
        self._failure = failure
