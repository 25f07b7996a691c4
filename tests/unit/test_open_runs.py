"""Open runs are counted while runs are opened, and catalogs are closed afterwards."""

import asyncio
from collections.abc import Hashable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from runfold.tenants import open_runs
from runfold.tenants.open_runs import OpenRunCounts, _Catalog
from runfold.tenants.registry import Tenant


class View:
    async def count_open(self) -> int:
        return 5


class Counts(OpenRunCounts):
    """Counts catalogs that need no Kafka."""

    def __init__(self) -> None:
        tenants: Any = SimpleNamespace(
            active=lambda name: SimpleNamespace(name=name, created_at=1, partitions=1)
        )
        super().__init__(None, lambda: tenants)  # type: ignore[arg-type]
        self.is_open, self.is_closed = asyncio.Event(), asyncio.Event()
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.error: Exception | None = None

    async def _open(self, tenant: Tenant, identity: Hashable) -> _Catalog:
        await self.may_open.wait()
        view: Any = View()
        stack = AsyncExitStack()
        stack.callback(self._note_close)
        self._catalogs[tenant.name] = catalog = _Catalog(identity, view, stack=stack)
        self.is_open.set()
        return catalog

    def _note_close(self) -> None:
        self.is_closed.set()
        if self.error is not None:
            raise self.error


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_runs, "COUNT_SECONDS", 0.01)
    monkeypatch.setattr(open_runs, "_QUIET_SECONDS", 0.05)


async def test_a_catalog_is_closed_some_time_after_the_last_opening() -> None:
    async with Counts() as counts, asyncio.timeout(60):
        assert await counts.begin("acme", 6)
        await counts.is_closed.wait()


async def test_counting_goes_on_after_a_catalog_that_cannot_be_closed() -> None:
    async with Counts() as counts, asyncio.timeout(60):
        counts.error = OSError("no connection")
        await counts.begin("acme", 6)
        await counts.is_closed.wait()
        counts.is_open.clear()

        await counts.begin("acme", 6)

        await counts.is_open.wait()


async def test_the_first_openings_wait_for_the_first_count() -> None:
    async with Counts() as counts, asyncio.timeout(60):
        first = await asyncio.gather(*(counts.begin("acme", 7) for _ in range(4)))
        assert first == [True, True, False, False]


async def test_an_opening_does_not_wait_for_ever_for_the_first_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_runs, "_FIRST_SECONDS", 0.01)

    async with Counts() as counts, asyncio.timeout(60):
        counts.may_open.clear()
        assert await counts.begin("acme", 5)
