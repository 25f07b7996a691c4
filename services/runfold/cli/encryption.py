"""`runfold encryption`."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from runfold.cli.memory_lines import local_time
from runfold.cli.running import report
from runfold.cli.terminal import new_console
from runfold.encryption.key_ring import COMPACTION_SECONDS
from runfold.encryption.rotation import rotate
from runfold.encryption.wrapping import wrapping_of
from runfold.log.publisher import Publisher
from runfold.settings import Settings
from runfold.tenants.registry import read_tenants, settings_of
from runfold_schemas.errors import ConfigurationError

_TENANTS_AT_ONCE: Final = 16
"""How many tenants are rotated at the same time. Each waits for its services."""


async def rotate_keys(settings: Settings) -> None:
    """Rotates the keys of the installation and of all its tenants."""
    if settings.encryption_key is None:
        raise ConfigurationError("RUNFOLD_ENCRYPTION_KEY is not set: there are no keys to rotate")
    wrapping = wrapping_of(settings.encryption_key)
    registry = await read_tenants(settings)
    tenants = [settings, *(settings_of(settings, each) for each in registry.all() if not each.dropping)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("keys"))
    log = settings.log("runfold/encryption")
    slots = asyncio.Semaphore(_TENANTS_AT_ONCE)
    async with Publisher.connect(log) as publisher:
        with Progress(*columns, console=new_console(stderr=True)) as bar:

            async def rotate_tenant(tenant: Settings) -> None:
                async with slots:
                    task = bar.add_task(tenant.prefix, total=None)
                    show = partial(_show, bar, task)
                    count = await rotate(tenant.log("runfold/encryption"), wrapping, publisher, report=show)
                    bar.update(task, visible=count is not None)

            async with asyncio.TaskGroup() as tasks:
                for tenant in tenants:
                    tasks.create_task(rotate_tenant(tenant))
    final = datetime.now(UTC) + timedelta(seconds=5 * COMPACTION_SECONDS)
    report(
        "",
        "the keys of all tenants are rotated. Kafka removes the old ones by"
        f" {local_time(final)}, if a process that seals is up. Then remove the operator's old key",
    )


def _show(bar: Progress, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)
