"""The tenants that this process hosts beside the installation's own: those whose name lies in its
partitions of the installation's catalog. So the one consumer group distributes tenants too.

    registry, own partitions --> a task for each hosted tenant, over connections that all share
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Final

from prometheus_client import Gauge

from runfold.log.catalog import partition_of
from runfold.log.clients import LogClients
from runfold.log.tail import Tail
from runfold.projector.hosted_tenant import HostedTenant, SharedParts
from runfold.projector.parked_tenants import PARKED_PACE, ParkedTenants
from runfold.projector.stuck import Watch
from runfold.projector.worker import Worker
from runfold.settings import Settings
from runfold.store.database import connect, sibling
from runfold.tenants.registry import FollowedTenants, Tenant, settings_of
from runfold_schemas.errors import ConfigurationError, UnavailableError
from runfold_schemas.topics import Topics

_LOOK_SECONDS: Final = 0.5

_RETRY_SECONDS: Final = 1.0

_PARKED_SWEEPS: Final = 6
"""Parked tenants are looked at once in so many times of `sweep_seconds`."""

_NAMED_MAX: Final = 10

_TENANTS: Final = Gauge("runfold_hosted_tenants", "Further tenants that this projector hosts", ["state"])

_log = logging.getLogger(__name__)

Ownership = tuple[Topics, Collection[int]]
"""The topics of the installation, and the partitions of its catalog that this process owns."""


class TenantHost:
    """Hosts tenants. `owned` is what this process owns, None if it is not known at present: then
    it stays as it was. Two processes that host one tenant for a moment do no harm.
    """

    def __init__(self, settings: Settings, owned: Callable[[], Ownership | None]) -> None:
        self._settings = settings
        self._owned = owned
        self._hosted: dict[str, HostedTenant] = {}
        self._running: dict[str, tuple[Tenant, asyncio.Task[None]]] = {}
        self._failure: str | None = None

    def workers(self) -> list[Worker]:
        """The workers of the tenants that are active."""
        return [hosted.worker for hosted in self._hosted.values() if hosted.worker is not None]

    def active(self) -> dict[str, Worker | None]:
        """The tenants that are not parked, each with its worker, None between two attempts."""
        return {name: hosted.worker for name, hosted in self._hosted.items() if hosted.is_active}

    def workers_by_name(self) -> dict[str, Worker]:
        """The workers of the tenants that are active, by the names of the tenants."""
        return {name: worker for name, worker in self.active().items() if worker is not None}

    def failing(self) -> dict[str, datetime]:
        """The tenants whose workers fail, and since when."""
        since = {name: hosted.failing_since for name, hosted in self._hosted.items()}
        return {name: time for name, time in since.items() if time is not None}

    def watches(self) -> list[Watch]:
        return [watch for hosted in self._hosted.values() for watch in hosted.watches]

    def reasons(self) -> list[str]:
        """The reasons why single tenants do not work, or why none does."""
        reasons = [self._failure] if self._failure is not None else []
        named = [reason for hosted in self._hosted.values() for reason in hosted.reasons()]
        if len(named) > _NAMED_MAX:
            named[_NAMED_MAX:] = [f"{len(named) - _NAMED_MAX} more reasons of tenants"]
        return reasons + named

    async def work(self) -> None:
        """Endless. While there are no tenants, it has no connection but that to the registry."""
        async with FollowedTenants(self._settings) as registry:
            while True:
                try:
                    if self._wanted(registry):
                        await self._host(registry)
                except Exception as error:  # noqa: BLE001  # the installation's own tenant goes on
                    self._failure = f"tenants are not hosted: {error}"
                    _log.error("%s; trying again in %s s", self._failure, _RETRY_SECONDS, exc_info=error)
                await asyncio.sleep(_RETRY_SECONDS)

    def _wanted(self, registry: FollowedTenants) -> dict[str, Tenant]:
        """The tenants that this process has to host."""
        owned = self._owned()
        try:
            tenants = registry.tenants
        except (UnavailableError, ConfigurationError):
            owned = None
        if owned is None:
            return {name: tenant for name, (tenant, _) in self._running.items()}
        topics, partitions = owned
        return {
            tenant.name: tenant
            for tenant in tenants.all()
            if not tenant.dropping and partition_of(topics, tenant.name) in partitions
        }

    async def _host(self, registry: FollowedTenants) -> None:
        log = self._settings.log("runfold/projector")
        async with AsyncExitStack() as stack:
            clients = await stack.enter_async_context(LogClients.connect(log))
            database = await stack.enter_async_context(connect(self._settings.mongo, self._settings.database))
            tail = await stack.enter_async_context(
                Tail.connect(log, leaders=clients.leaders, pace=PARKED_PACE, passes_refused=True)
            )
            parked = ParkedTenants(tail)
            shared = SharedParts(clients, database, parked)
            stack.push_async_callback(self._stop_all)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(parked.work())
                tasks.create_task(self._look_at_parked())
                while True:
                    await self._settle(self._wanted(registry), shared)
                    self._failure = None
                    self._report()
                    await asyncio.sleep(_LOOK_SECONDS)

    async def _settle(self, wanted: dict[str, Tenant], shared: SharedParts) -> None:
        """Hosts the tenants in `wanted`, and no others."""
        for name, (tenant, task) in list(self._running.items()):
            if name not in wanted or _place(wanted[name]) != _place(tenant) or task.done():
                await self._stop([name])
        for name, tenant in wanted.items():
            if name not in self._running:
                settings = settings_of(self._settings, tenant)
                hosted = HostedTenant(settings, sibling(shared.database, settings.database), shared)
                self._hosted[name] = hosted
                self._running[name] = tenant, asyncio.create_task(hosted.work())

    async def _stop_all(self) -> None:
        await self._stop(list(self._running))
        self._report()

    async def _stop(self, names: Collection[str]) -> None:
        tasks = [self._running[name][1] for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name in names:
            del self._running[name], self._hosted[name]

    async def _look_at_parked(self) -> None:
        """Endless: looks for work of parked tenants that nobody has announced."""
        while True:
            await asyncio.sleep(_PARKED_SWEEPS * self._settings.sweep_seconds)
            for hosted in list(self._hosted.values()):
                try:
                    await hosted.look()
                except Exception as error:  # noqa: BLE001  # the others are looked at
                    _log.warning("tenant %s was not looked at: %s", hosted.name, error)
                await asyncio.sleep(0)

    def _report(self) -> None:
        active = len(self.workers())
        failing = sum(hosted.is_failing for hosted in self._hosted.values())
        _TENANTS.labels("active").set(active)
        _TENANTS.labels("parked").set(len(self._hosted) - active)
        _TENANTS.labels("failing").set(failing)


def _place(tenant: Tenant) -> tuple[str, int | None]:
    return tenant.database, tenant.partitions
