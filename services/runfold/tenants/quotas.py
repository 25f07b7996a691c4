"""Counts what tenants use, and says when a quota is used up.

Each process counts for itself and adds its counts to MongoDB every second, which returns the sum of
all processes. So no request waits for MongoDB, and each process may allow what it gets within about
a second more. While MongoDB is away, each process goes on with what it knows.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NoReturn, Self

from prometheus_client import Counter

from runfold.settings import Settings
from runfold.store.database import Database, connect
from runfold.store.usage import UsageStore
from runfold.tenants.open_runs import OpenRunCounts
from runfold.tenants.registry import Quotas, Tenants
from runfold.token_notes import bytes_note, token_note
from runfold_schemas.errors import QuotaExceededError, RunfoldError

FLUSH_SECONDS: Final = 1.0

_RETRY_OPEN_RUNS_SECONDS: Final = 5

_SECONDS: Final = {
    "requests_per_minute": 60,
    "bytes_per_day": 24 * 3600,
    "model_tokens_per_day": 24 * 3600,
}
"""The length of the time that a quota is for. Times begin at full minutes, and at midnight UTC."""

_WORDS: Final = {
    "requests_per_minute": "requests a minute",
    "open_runs": "open runs",
    "bytes_per_day": "published bytes a day",
    "model_tokens_per_day": "model tokens a day",
}

_REFUSED = Counter("runfold_quota_refusals", "Requests refused because of a quota", ["tenant", "quota"])

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Window:
    """What a tenant has used of a quota until a time."""

    ends_at: float
    stored: int = 0
    """The sum of all processes, when it was last read."""
    own: int = 0
    """What this process has to add."""


class QuotaKeeper:
    """The quotas of all tenants of an installation, for the length of the `async with` block.
    `tenants` returns the tenants as they are now.
    """

    def __init__(self, settings: Settings, tenants: Callable[[], Tenants]) -> None:
        self._settings = settings
        self._tenants = tenants
        self._windows: dict[tuple[str, str], _Window] = {}
        self._open_runs = OpenRunCounts(settings, tenants)
        self._has_work = asyncio.Event()
        self._failure = ""
        self._working: asyncio.Task[NoReturn]

    async def __aenter__(self) -> Self:
        self._working = asyncio.create_task(self._work())
        await self._open_runs.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._working.cancel()
        await asyncio.gather(self._working, return_exceptions=True)
        await self._open_runs.__aexit__(*exc_info)

    def meter(self, tenant: str) -> "TenantMeter | None":
        """The meter of a request. None if the tenant has no quotas."""
        try:
            quotas = self._tenants().quotas(tenant)
        except RunfoldError:  # the registry is not read yet
            return None
        return None if quotas is None else TenantMeter(self, tenant, quotas)

    def check(self, tenant: str, quota: str, limit: int | None) -> None:
        """Raises `QuotaExceededError` if nothing of the quota is left."""
        if limit is not None:
            window = self._window(tenant, quota)
            if window.stored + window.own >= limit:
                raise _refusal(tenant, quota, limit, window.ends_at)

    def add(self, tenant: str, quota: str, amount: int) -> None:
        self._window(tenant, quota).own += amount
        self._has_work.set()

    def count_tokens(self, tenant: str) -> None:
        """From here on, the tokens that the current task uses count for the tenant, and so do those
        of the tasks that it starts.
        """

        def note(tokens: int) -> None:
            meter = self.meter(tenant)
            if meter is not None and meter.limits_tokens:
                self.add(tenant, "model_tokens_per_day", tokens)

        token_note.set(note)

    async def open_run(self, tenant: str, limit: int) -> None:
        """Counts a run that is being opened, until `end_opening`. Raises `QuotaExceededError`."""
        if not await self._open_runs.begin(tenant, limit):
            raise _refusal(tenant, "open_runs", limit, None)

    def end_opening(self, tenant: str) -> None:
        """The request that opens a run has ended."""
        self._open_runs.end(tenant)

    def _window(self, tenant: str, quota: str) -> _Window:
        now = time.time()
        window = self._windows.get((tenant, quota))
        if window is None or window.ends_at <= now:
            seconds = _SECONDS[quota]
            window = self._windows[tenant, quota] = _Window(ends_at=(now // seconds + 1) * seconds)
        return window

    async def _work(self) -> NoReturn:
        """Endless. Connects when there is something to count for the first time."""
        while True:
            await self._has_work.wait()
            try:
                async with connect(self._settings.mongo, self._settings.database) as database:
                    await UsageStore(database).create_indexes()
                    while True:
                        await self._has_work.wait()
                        self._has_work.clear()
                        await self._flush(database)
                        self._failure = ""
                        await asyncio.sleep(FLUSH_SECONDS)
            except RunfoldError as error:
                self._note(str(error))
            except Exception as error:  # noqa: BLE001  # counting goes on with a new connection
                self._note(repr(error))
            self._has_work.set()
            await asyncio.sleep(FLUSH_SECONDS)

    async def _flush(self, database: Database) -> None:
        store = UsageStore(database)
        for (tenant, quota), window in list(self._windows.items()):
            if amount := window.own:
                ends_at = datetime.fromtimestamp(window.ends_at, UTC)
                window.stored = await store.add(tenant, quota, ends_at, amount)
                window.own -= amount
            elif window.ends_at <= time.time() and self._windows.get((tenant, quota)) is window:
                # Meanwhile a request may have begun the next window.
                del self._windows[tenant, quota]

    def _note(self, failure: str) -> None:
        if failure != self._failure:
            _log.warning("quotas are counted by this process alone: %s", failure)
        self._failure = failure


class TenantMeter:
    """Counts one request of a tenant."""

    def __init__(self, keeper: QuotaKeeper, tenant: str, quotas: Quotas) -> None:
        self._keeper = keeper
        self._tenant = tenant
        self._quotas = quotas
        self._received = 0
        self._publishes = False
        self._opens_run = False

    @property
    def limits_tokens(self) -> bool:
        return self._quotas.model_tokens_per_day is not None

    def begin(self) -> None:
        limit = self._quotas.requests_per_minute
        if limit is not None:
            self._keeper.check(self._tenant, "requests_per_minute", limit)
            self._keeper.add(self._tenant, "requests_per_minute", 1)
        if self.limits_tokens:
            self._keeper.count_tokens(self._tenant)
        bytes_note.set(self.receive)

    async def enter(self, *, publishes: bool, opens_run: bool) -> None:
        if not publishes:
            return
        self._keeper.check(self._tenant, "bytes_per_day", self._quotas.bytes_per_day)
        self._keeper.check(self._tenant, "model_tokens_per_day", self._quotas.model_tokens_per_day)
        if opens_run and self._quotas.open_runs is not None:
            await self._keeper.open_run(self._tenant, self._quotas.open_runs)
            self._opens_run = True
        self._publishes = True
        received, self._received = self._received, 0
        self.receive(received)

    def receive(self, size: int) -> None:
        """Counts a part of the body, as soon as it is known that the route publishes."""
        if not self._publishes:
            self._received += size
        elif size and self._quotas.bytes_per_day is not None:
            self._keeper.add(self._tenant, "bytes_per_day", size)

    def end(self) -> None:
        if self._opens_run:
            self._keeper.end_opening(self._tenant)


def _refusal(tenant: str, quota: str, limit: int, ends_at: float | None) -> QuotaExceededError:
    _REFUSED.labels(tenant, quota).inc()
    message = f"the tenant {tenant} has used up its quota of {limit:,} {_WORDS[quota]}"
    seconds, until = _RETRY_OPEN_RUNS_SECONDS, ""
    if ends_at is None:
        message += ": a run has to end first"
    else:
        until = datetime.fromtimestamp(ends_at, UTC).isoformat().replace("+00:00", "Z")
        seconds = max(1, math.ceil(ends_at - time.time()))
        message += f" until {until}"
    return QuotaExceededError(message, quota=quota, limit=limit, retry_after_seconds=seconds, until=until)
