"""`runfold tenants`: the registry of tenants, and what belongs to a tenant."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import AwareDatetime, BaseModel
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as ProgressBar

from runfold.cli.memory_lines import local_time, print_json, print_rows
from runfold.cli.running import report
from runfold.cli.terminal import new_console
from runfold.identity.administration import KeyAdministration
from runfold.log.publisher import Publisher
from runfold.settings import Settings
from runfold.store.database import connect, sibling
from runfold.store.tenants import count_open_runs
from runfold.tenants.administration import TenantAdministration
from runfold.tenants.dropping import drop_tenant
from runfold.tenants.export import Progress, Report, export_tenant
from runfold.tenants.registry import (
    IS_UNKNOWN,
    Quotas,
    Tenant,
    blobs_of,
    check_tenant,
    read_tenants,
    settings_of,
)
from runfold.tenants.restoring import import_tenant
from runfold_schemas.errors import TenantNotFoundError

_AT_ONCE: Final = 16

_OPERATOR: Final = "operator"


class TenantLine(BaseModel):
    """A tenant, as `runfold tenants list --json` prints it."""

    name: str
    database: str
    partitions: int | None
    open_runs: int | None
    quotas: Quotas
    created_at: AwareDatetime | None
    dropping: bool


async def add(settings: Settings, *, name: str, partitions: int | None, database: str | None) -> None:
    """Adds a tenant."""
    async with _administration(settings) as tenants:
        tenant = await tenants.add(name, database=database, partitions=partitions)
    report(
        "",
        f"tenant {tenant.name}: database {tenant.database}, {tenant.partitions} partitions a shared topic."
        f" Make a key: runfold keys add NAME --tenant {tenant.name}",
    )


async def ls(settings: Settings, *, as_json: bool) -> None:
    """Lists the tenants."""
    lines = await _lines(settings)
    if as_json:
        for line in lines:
            print_json(line)
        return
    print_rows(
        new_console(),
        ("tenant", "database", "partitions", "open runs", "created", "quotas"),
        map(_row, lines),
    )


async def quota(settings: Settings, *, name: str, changes: Mapping[str, int | None], as_json: bool) -> None:
    """Changes the quotas of a tenant, and prints them."""
    async with _administration(settings) as tenants:
        tenant = await tenants.set_quotas(name, dict(changes))
    if as_json:
        print_json(tenant.quotas)
    else:
        report("", f"tenant {tenant.name}: {_limits(tenant.quotas) or 'no quotas'}")


async def export(settings: Settings, *, name: str, folder: Path, without_archive: bool) -> None:
    """Exports a tenant."""
    tenant = (await read_tenants(settings)).get(name)
    if tenant is None:
        raise TenantNotFoundError(name, reason=IS_UNKNOWN)
    with _progress(f"exporting {name}") as show:
        store = blobs_of(settings_of(settings, tenant))
        done = await export_tenant(
            settings, tenant, folder, blobs=store, report=show, without_archive=without_archive
        )
    report("", f"tenant {name}: {done.done:,} records and {done.blobs:,} blobs are in {folder}")


async def bring_back(settings: Settings, *, folder: Path, database: str | None) -> None:
    """Imports an exported tenant."""
    with _progress("importing") as show:
        async with Publisher.connect(settings.log("runfold/tenants")) as publisher:
            tenant = await import_tenant(settings, publisher, folder, database=database, report=show)
    report("", f"tenant {tenant.name} is back. Its API keys are not: make new ones")


@contextmanager
def _progress(description: str) -> Iterator[Report]:
    """A bar on the terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("records"))
    with ProgressBar(*columns, console=new_console(stderr=True)) as bar:
        task = bar.add_task(description, total=None)

        def show(progress: Progress) -> None:
            bar.update(task, completed=progress.done, total=progress.total)

        yield show


async def drop(settings: Settings, *, name: str) -> None:
    """Drops a tenant."""
    log = settings.log("runfold/tenants")
    async with Publisher.connect(log) as publisher:
        keys = KeyAdministration(log, lambda: publisher, check_tenant=partial(check_tenant, settings))

        async def revoke_keys(tenant: str) -> int:
            valid = [key.key_id for key in await keys.list(tenant) if key.status == "active"]
            for key_id in valid:
                await keys.revoke(key_id, by=_OPERATOR)
            return len(valid)

        dropped = await drop_tenant(
            settings, publisher, name, revoke_keys=revoke_keys, report=partial(report, "")
        )
    report(
        "",
        f"tenant {name} is gone: {dropped.topics:,} topics, the database, {dropped.archived_files:,} files of"
        f" the archive, {dropped.groups} consumer groups, {dropped.blobs:,} blobs, {dropped.keys} keys",
    )


@asynccontextmanager
async def _administration(settings: Settings) -> AsyncIterator[TenantAdministration]:
    async with Publisher.connect(settings.log("runfold/tenants")) as publisher:
        yield TenantAdministration(settings, publisher)


async def _lines(settings: Settings) -> list[TenantLine]:
    """The tenants, the installation itself first."""
    tenants = await read_tenants(settings)
    own = tenants.get(settings.prefix)
    assert own is not None, "the installation is a tenant"
    turns = asyncio.Semaphore(_AT_ONCE)
    async with connect(settings.mongo, settings.database) as database:

        async def line(tenant: Tenant) -> TenantLine:
            async with turns:
                count: int | None = None
                if not tenant.dropping:
                    count = await count_open_runs(sibling(database, tenant.database))
            fields = tenant.model_dump(include=set(TenantLine.model_fields))
            return TenantLine(open_runs=count, **fields)

        return list(await asyncio.gather(*map(line, [own, *tenants.all()])))


def _row(line: TenantLine) -> tuple[str, ...]:
    return (
        line.name,
        line.database,
        "" if line.partitions is None else str(line.partitions),
        "" if line.open_runs is None else f"{line.open_runs:,}",
        local_time(line.created_at) if line.created_at else "",
        "is being dropped" if line.dropping else _limits(line.quotas),
    )


_WORDS: Final = {
    "requests_per_minute": "requests a minute",
    "open_runs": "open runs",
    "bytes_per_day": "bytes a day",
    "model_tokens_per_day": "model tokens a day",
}


def _limits(quotas: Quotas) -> str:
    limits = quotas.model_dump(exclude_none=True)
    return ", ".join(f"{limit:,} {_WORDS[name]}" for name, limit in limits.items())
