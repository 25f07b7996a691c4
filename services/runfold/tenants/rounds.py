"""Opens tenants that nobody asks for, so that memories are generated from their completed runs and
their streams too.

A tenant is opened if its catalog has grown since it was open: new runs, ends of runs and contents
of streams have records there. What is left to do keeps it open.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, Self

from runfold.settings import Settings
from runfold.tenants.open_tenants import OpenTenants
from runfold.tenants.registry import Tenant, settings_of
from runfold_schemas.errors import RunfoldError
from runfold_schemas.topics import Partition

ROUND_SECONDS: Final = 60.0

_LOOK_SECONDS: Final = 30.0
"""How long a tenant is open at least: the group that reads completed runs takes seconds to form."""

_AT_ONCE: Final = 10

_log = logging.getLogger(__name__)

Ends = tuple[int, ...]


class Rounds:
    """Use it as an async context manager, inside of `tenants`. `is_needed` says whether memories
    are generated at all, and `all_tenants` returns the registry's.
    """

    def __init__(
        self,
        tenants: OpenTenants[Any],
        settings: Settings,
        all_tenants: Callable[[], Sequence[Tenant]],
        *,
        is_needed: Callable[[], bool],
    ) -> None:
        self._tenants = tenants
        self._settings = settings
        self._all_tenants = all_tenants
        self._is_needed = is_needed
        self._seen: dict[str, Ends] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._going: asyncio.Task[NoReturn] | None = None

    async def __aenter__(self) -> Self:
        if self._is_needed():
            self._going = asyncio.create_task(self._go())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._going is not None:
            self._going.cancel()
            await asyncio.gather(self._going, return_exceptions=True)

    async def _go(self) -> NoReturn:
        while True:
            try:
                await self._round()
            except RunfoldError as error:
                _log.info("tenants are looked at later: %s", error)
            except Exception:  # noqa: BLE001  # the next round may succeed
                _log.exception("tenants are looked at later")
            await asyncio.sleep(ROUND_SECONDS)

    async def _round(self) -> None:
        listed = [tenant for tenant in self._all_tenants() if not tenant.dropping]
        ends = await self._ends(listed) if listed else {}
        self._seen = {name: seen for name, seen in self._seen.items() if name in ends}
        grown = []
        for tenant in listed:
            if tenant.name in self._tenants.names:
                self._seen[tenant.name] = ends[tenant.name]
            elif self._seen.get(tenant.name, ()) != ends[tenant.name]:
                grown.append(tenant.name)
        await asyncio.gather(*(self._look_in(name, ends[name]) for name in grown))

    async def _look_in(self, name: str, ends: Ends) -> None:
        async with self._places:
            try:
                opening = await self._tenants.hold(name)
            except RunfoldError as error:
                _log.info("tenant %s is looked at later: %s", name, error)
                return
            try:
                await asyncio.sleep(_LOOK_SECONDS)
                self._seen[name] = ends
            finally:
                opening.release()

    async def _ends(self, tenants: Sequence[Tenant]) -> dict[str, Ends]:
        """The ends of the partitions of each catalog. Raises `UnavailableError`."""
        catalogs = {
            tenant.name: [
                Partition(settings_of(self._settings, tenant).log().topics.catalog, number)
                for number in range(tenant.partitions or 1)
            ]
            for tenant in tenants
        }
        clients = await self._tenants.connected()
        partitions = [at for catalog in catalogs.values() for at in catalog]
        found = await clients.ends(self._settings.log()).ends_of(partitions)
        return {name: tuple(found.get(at, 0) for at in catalog) for name, catalog in catalogs.items()}
