"""One tenant in a process that hosts many.

    parked --a record, an expiry, a finding--> worker --quiet, and everything stored--> parked
       ^                                          |
       +---------- error: again after a pause ----+

A worker of the tenant is like that of an installation, but it has the whole catalog without a
consumer group, and the connections of the process. An error ends the tenant's worker alone.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from runfold.log.clients import LogClients
from runfold.projector.connection import connect_worker
from runfold.projector.parked_tenants import ParkedTenants
from runfold.projector.signing import HeadSigner, head_signer_of
from runfold.projector.stored_tenant import ParkedLook, StoredTenant
from runfold.projector.stuck import Watch
from runfold.projector.worker import Worker
from runfold.settings import Settings
from runfold.store.database import Database
from runfold.store.editions import POINTER_LOOK_SECONDS, Editions
from runfold_schemas.errors import ConfigurationError, UnavailableError

PARK_SECONDS: Final = 30.0
"""How long a hosted worker tails a quiet run at most. Publishers ring again after a third of it."""

_QUIET_SECONDS: Final = 5.0
"""How long a tenant stays active without any work."""

_RETRY_SECONDS: Final = 1.0

_RETRY_MAX_SECONDS: Final = 30.0
"""The longest pause before a tenant is tried again after an error that waiting does not mend."""

_AWAY_MAX_SECONDS: Final = 4.0
"""The longest pause after an error of Kafka or MongoDB."""


_STARTING_MAX: Final = 8
"""How many tenants are looked at, or get a worker, at the same time."""

_log = logging.getLogger(__name__)


@dataclass
class SharedParts:
    """What the tenants of a process share."""

    clients: LogClients
    database: Database
    """Any database of the client."""
    parked: ParkedTenants
    starting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_STARTING_MAX))
    retrying: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_STARTING_MAX))
    """The same for tenants that have failed: if they wait for a server, no other waits for them."""
    prepared: set[tuple[str, str]] = field(default_factory=set)
    """The databases and editions whose indexes exist."""


class HostedTenant:
    """A tenant that this process hosts. `work` runs it."""

    def __init__(self, settings: Settings, database: Database, shared: SharedParts) -> None:
        """`settings` are those of the tenant, and so is `database`."""
        park_seconds = max(min(settings.park_seconds, PARK_SECONDS), settings.publisher_park_seconds)
        self._settings = settings.model_copy(update={"park_seconds": park_seconds, "worker_id": None})
        self._log = self._settings.log("runfold/projector")
        self._database = database
        self._shared = shared
        self._ends = shared.clients.ends(self._log)
        self._look: ParkedLook | None = None
        self._woken: asyncio.Event | None = None
        self._is_unannounced = False
        self._pause = _RETRY_SECONDS
        self._stored_reasons: list[str] = []
        self._failure: str | None = None
        self.failing_since: datetime | None = None
        """When the tenant's worker failed first, None while it works."""
        self.is_active = False
        """Whether the tenant is not parked: it has a worker, or gets one after an error."""
        self._worker_watches: Sequence[Watch] = ()
        self.worker: Worker | None = None
        """None while the tenant is parked."""

    @property
    def name(self) -> str:
        return self._settings.prefix

    @property
    def is_failing(self) -> bool:
        return self._failure is not None

    @property
    def watches(self) -> Sequence[Watch]:
        return self._worker_watches if self.worker is not None else ()

    def reasons(self) -> list[str]:
        """The reasons why the tenant does not work, or not all of it."""
        reasons = [self._failure] if self._failure is not None else []
        reasons += self.worker.quarantine.reasons() if self.worker is not None else self._stored_reasons
        return [f"tenant {self.name}: {reason}" for reason in reasons]

    async def work(self) -> None:
        """Endless. No error of the tenant ends it."""
        while True:
            try:
                await self._work_once()
                continue
            except BaseExceptionGroup as group:
                error = _first_error(group)
            except Exception as failure:  # noqa: BLE001  # a defect of one tenant must not end the others
                error = failure
            self._note(error)
            await asyncio.sleep(self._pause)
            longest = _AWAY_MAX_SECONDS if isinstance(error, UnavailableError) else _RETRY_MAX_SECONDS
            self._pause = min(2 * self._pause, longest)

    async def look(self) -> None:
        """Looks for work that nobody has announced, if the tenant is parked. Raises
        `UnavailableError`.
        """
        look, woken = self._look, self._woken
        if look is None or woken is None or woken.is_set():
            return
        if await look.has_work():
            self._is_unannounced = True
            woken.set()

    @property
    def _gate(self) -> asyncio.Semaphore:
        return self._shared.retrying if self.is_failing else self._shared.starting

    # The cycle.

    async def _work_once(self) -> None:
        async with self._gate:
            stored = await StoredTenant.of(self._log.topics, self._database, self._ends)
        self._stored_reasons = stored.reasons
        if not stored.has_work:
            self._pause = _RETRY_SECONDS
            self._recover()
            self.is_active = False
            await self._stay_parked(stored)
        self.is_active = True
        await self._project()

    async def _stay_parked(self, stored: StoredTenant) -> None:
        self._look = ParkedLook(stored, self._log.topics, self._database, self._ends)
        try:
            async with self._shared.parked.following(stored.positions) as self._woken:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_seconds_until(stored.expires_at)):
                        await self._woken.wait()
        finally:
            self._look = self._woken = None

    async def _project(self) -> None:
        """Runs a worker until the tenant is quiet, or until its edition changes."""
        editions = Editions(self._database)
        async with AsyncExitStack() as stack:
            async with self._gate:
                edition = await editions.current_or_first()
                key = (self._settings.database, edition)
                worker = await stack.enter_async_context(
                    connect_worker(
                        self._settings,
                        self._database,
                        edition,
                        clients=self._shared.clients,
                        has_indexes=key in self._shared.prepared,
                    )
                )
                self._shared.prepared.add(key)
            await self._run(worker, editions, edition)

    async def _run(self, worker: Worker, editions: Editions, edition: str) -> None:
        for watch in worker.watches:
            watch.tenant = self.name
        self.worker, self._worker_watches = worker, worker.watches
        signer = await self._signer(worker, edition)
        working = [asyncio.create_task(worker.work())]
        if signer is not None:
            working.append(asyncio.create_task(signer.work(seconds=self._settings.signing_seconds)))
        try:
            await self._until_quiet(worker, working, editions, edition)
            if signer is not None:
                await signer.sign_new()
        finally:
            for task in working:
                task.cancel()
            await asyncio.wait(working)
            self._stored_reasons = worker.quarantine.reasons()
            self.worker = None

    async def _signer(self, worker: Worker, edition: str) -> HeadSigner | None:
        signer = head_signer_of(
            self._settings,
            self._log,
            self._database,
            edition,
            publisher=self._shared.clients.publisher,
            partitions=lambda: worker.partitions,
        )
        if signer is not None:
            await self._shared.clients.admin(self._log).create_evidence_topic()
        return signer

    async def _until_quiet(
        self, worker: Worker, working: Sequence[asyncio.Task[None]], editions: Editions, edition: str
    ) -> None:
        """Returns when everything is stored and nothing has come for a while, or when the edition
        has changed. Raises the error of a task.
        """
        sweeps = 1 if self._is_unannounced else 0
        self._is_unannounced = False
        busy_at, taken = time.monotonic(), -1
        while True:
            done, _ = await asyncio.wait(
                working, timeout=POINTER_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
            if await editions.current_or_first() != edition:
                return
            if worker.partitions:
                self._recover()
            now = time.monotonic()
            if worker.is_busy or worker.steps.sweeping.done < sweeps or worker.steps.taking.done != taken:
                busy_at, taken = now, worker.steps.taking.done
            else:
                self._pause = _RETRY_SECONDS
                if now - busy_at >= _QUIET_SECONDS:
                    return

    def _recover(self) -> None:
        self._failure = self.failing_since = None

    def _note(self, error: Exception) -> None:
        self.is_active = True
        self.failing_since = self.failing_since or datetime.now(UTC)
        failure = f"{type(error).__name__}: {error}"
        is_defect = not isinstance(error, UnavailableError | ConfigurationError)
        trace = error if is_defect and failure != self._failure else None
        _log.error("tenant %s: %s; trying again in %s s", self.name, failure, self._pause, exc_info=trace)
        self._failure = str(error) if not is_defect else failure


def _first_error(group: BaseExceptionGroup[BaseException]) -> Exception:
    """An error of a server, if there is one. Raises the group if it has anything but errors."""
    errors: list[Exception] = []
    waiting: list[BaseException] = [group]
    while waiting:
        error = waiting.pop()
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
        elif isinstance(error, Exception):
            errors.append(error)
        else:
            raise group
    return next((each for each in errors if isinstance(each, UnavailableError)), errors[0])


def _seconds_until(time_: datetime | None) -> float | None:
    return None if time_ is None else max(0.0, (time_ - datetime.now(UTC)).total_seconds())
