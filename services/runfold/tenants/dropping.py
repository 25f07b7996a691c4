"""Drops a tenant: its topics, database, archive, blobs, consumer groups and keys.

    marked as dropping --> all processes leave it --> everything is deleted, until nothing comes
    back --> the name is free

The mark stays until the end, so whatever interrupts a drop, another one goes on with it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from runfold.archive.files import TableFiles
from runfold.log.admin import TOPICS_MAX, LogAdmin
from runfold.log.publisher import Publisher
from runfold.settings import Settings
from runfold.store.database import Database, connect, sibling
from runfold.store.tenants import drop_database
from runfold.store.usage import UsageStore
from runfold.tenants.archived import has_archived
from runfold.tenants.open_tenants import LEAVE_SECONDS
from runfold.tenants.registry import (
    IS_UNKNOWN,
    Tenant,
    Tenants,
    blobs_of,
    mark_dropping,
    read_tenants,
    remove_tenant,
    settings_of,
    tenant_topic,
    unmark_dropping,
)
from runfold_schemas.errors import ConfigurationError, TenantNotFoundError, UnavailableError

_LOOK_SECONDS: Final = 1.0
_QUIET_LOOKS: Final = 2
"""So many looks in a row must find nothing: what was under way may create a topic again."""

_PATIENCE_SECONDS: Final = 120.0


class Dropped(NamedTuple):
    """How much there was of a tenant."""

    topics: int
    archived_files: int
    groups: int
    blobs: int
    keys: int


RevokeKeys = Callable[[str], Awaitable[int]]
"""Revokes the keys of a tenant, and returns how many were valid."""


async def drop_tenant(
    settings: Settings,
    publisher: Publisher,
    name: str,
    *,
    revoke_keys: RevokeKeys,
    report: Callable[[str], None],
) -> Dropped:
    """Returns when nothing is left, and the name can be used again. `report` is called with each
    step. Raises `TenantNotFoundError`, and `UnavailableError` if something comes back again and
    again, for example because a process of another installation uses the same topics.
    """
    tenants, registry = await read_tenants(settings), tenant_topic(settings)
    if tenants.get(name) is None and tenants.is_marked(name):
        # A drop deletes the tenant's record last, and an import writes it first.
        keys = await revoke_keys(name)
        await unmark_dropping(publisher, registry, name)
        return Dropped(0, 0, 0, 0, keys)
    tenant = _check(settings, tenants, name)
    own = settings_of(settings, tenant)
    if own.archive_url is None and await has_archived(own):
        raise ConfigurationError(
            f"the tenant {name!r} has archived runs, so it is not dropped: set RUNFOLD_ARCHIVE_URL, and their"
            " files are deleted too"
        )
    if not tenant.dropping:
        await mark_dropping(publisher, registry, name)
    report("waiting until all processes have left the tenant")
    await asyncio.sleep(LEAVE_SECONDS)
    keys = await revoke_keys(name)
    report("deleting topics, the database and the archive")
    archive = TableFiles(own.archive_url, own.prefix) if own.archive_url is not None else None
    async with LogAdmin.connect(own.log()) as admin, connect(own.mongo, own.database) as database:
        topics, archived_files = await _delete_until_quiet(admin, database, archive)
        groups = await admin.delete_groups()
        await UsageStore(sibling(database, settings.database)).forget(name)
    report("deleting blobs")
    store = blobs_of(own)
    blobs = 0 if store is None else await store.delete_all()
    await remove_tenant(publisher, registry, name)
    return Dropped(topics, archived_files, groups, blobs, keys)


def _check(settings: Settings, tenants: Tenants, name: str) -> Tenant:
    if name == settings.prefix:
        raise ConfigurationError(f"{name!r} is the installation itself, which no command drops")
    if (tenant := tenants.get(name)) is None:
        raise TenantNotFoundError(name, reason=IS_UNKNOWN)
    shared = [other.name for other in tenants.all() if other.database == tenant.database]
    if shared != [name] or tenant.database == settings.database:
        raise ConfigurationError(
            f"the database {tenant.database!r} of the tenant {name!r} has other data too"
        )
    return tenant


async def _delete_until_quiet(
    admin: LogAdmin, database: Database, archive: TableFiles | None
) -> tuple[int, int]:
    """Deletes the topics, the database and the archive until nothing comes back. Returns how many
    topics and archived files there were.
    """
    deleted, archived = set[str](), 0
    deadline = time.monotonic() + _PATIENCE_SECONDS
    quiet = 0
    while quiet < _QUIET_LOOKS:
        names = sorted(await admin.list_topics())
        for first in range(0, len(names), TOPICS_MAX):
            await admin.delete_topics(names[first : first + TOPICS_MAX])
        deleted.update(names)
        had_data = await drop_database(database)
        files = await asyncio.to_thread(archive.remove_all) if archive is not None else 0
        archived += files
        quiet = 0 if names or had_data or files else quiet + 1
        if time.monotonic() > deadline:
            reason = f"the tenant's data comes back, such as {(*names, database.name)[0]}"
            raise UnavailableError("A process that uses the tenant", reason=reason)
        await asyncio.sleep(_LOOK_SECONDS)
    return len(deleted), archived
