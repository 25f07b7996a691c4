"""What an operator does with tenants: add them, and change their quotas."""

from datetime import UTC, datetime

from pydantic import ValidationError

from runfold.log.admin import LogAdmin
from runfold.log.compacted import create
from runfold.log.leaders import Leaders
from runfold.log.partition_counts import read_partitions
from runfold.log.publisher import Publisher
from runfold.log.settings import LogSettings, checked_prefix
from runfold.settings import Settings, checked_database
from runfold.tenants.registry import (
    IS_DROPPED,
    IS_UNKNOWN,
    Quotas,
    Tenant,
    Tenants,
    put_tenant,
    read_tenants,
    settings_of,
    tenant_topic,
    unmark_dropping,
)
from runfold_schemas.errors import ConfigurationError, TenantNotFoundError

PARTITIONS = 1
"""The number of partitions of a new tenant's shared topics. Each of them costs the broker."""


class TenantAdministration:
    """The verbs of an operator. `publisher` is connected to the installation's Kafka."""

    def __init__(self, settings: Settings, publisher: Publisher) -> None:
        self._settings = settings
        self._publisher = publisher
        self._registry = tenant_topic(settings)

    async def add(self, name: str, *, database: str | None = None, partitions: int | None = None) -> Tenant:
        """Adds a tenant, with its topics. Topics that exist stay as they are, so an installation of
        another prefix can become a tenant. Adding a tenant again changes nothing.

        Raises `ConfigurationError` if the name or the database cannot be used, or if the tenant has
        another database or number of partitions.
        """
        tenants = await read_tenants(self._settings)
        tenant = self._checked(tenants, name, database)
        if tenant.dropping:
            raise TenantNotFoundError(name, reason=IS_DROPPED)
        if (known := tenants.get(name)) is not None and partitions not in (None, known.partitions):
            raise ConfigurationError(
                f"the tenant {name!r} has {known.partitions} partitions, and that number never changes"
            )
        count = await self._create_topics(tenant.model_copy(update={"partitions": partitions}))
        await create(self._settings.log(), self._registry)
        if known is None:
            tenant = tenant.model_copy(update={"partitions": count})
            # A drop or an import that broke off may have left the mark alone.
            await unmark_dropping(self._publisher, self._registry, name)
            await put_tenant(self._publisher, self._registry, tenant)
        return tenant

    async def set_quotas(self, name: str, changes: dict[str, int | None]) -> Tenant:
        """Changes quotas of a tenant, or of the installation itself; None lifts a quota. Raises
        `TenantNotFoundError`, and `ConfigurationError` for a wrong value.
        """
        tenant = (await read_tenants(self._settings)).get(name)
        if tenant is None or tenant.dropping:
            raise TenantNotFoundError(name, reason=IS_DROPPED if tenant else IS_UNKNOWN)
        try:
            quotas = Quotas.model_validate(tenant.quotas.model_dump() | changes)
        except ValidationError as error:
            raise ConfigurationError("a quota is a number from 0 on") from error
        changed = tenant.model_copy(update={"quotas": quotas})
        if changed != tenant:
            await create(self._settings.log(), self._registry)
            await put_tenant(self._publisher, self._registry, changed)
        return changed

    def _checked(self, tenants: Tenants, name: str, database: str | None) -> Tenant:
        """The tenant with this name, or a new one. Raises `ConfigurationError`."""
        known = tenants.get(name)
        if known is not None and name != self._settings.prefix:
            if database not in (None, known.database):
                raise ConfigurationError(f"the tenant {name!r} has the database {known.database!r}")
            return known
        return new_tenant(self._settings, tenants, name, database)

    async def _create_topics(self, tenant: Tenant) -> int:
        """Creates the topics that do not exist, and returns the number of partitions of each shared
        topic. Raises `ConfigurationError` if existing topics have another one.
        """
        log = settings_of(self._settings, tenant).log()
        if log.partitions is None:
            log = log.model_copy(update={"partitions": await _existing_partitions(log) or PARTITIONS})
        async with LogAdmin.connect(log) as admin:
            await admin.check_broker()
            settled = await admin.create_shared_topics()
        assert settled.partitions is not None
        return settled.partitions


def new_tenant(settings: Settings, tenants: Tenants, name: str, database: str | None) -> Tenant:
    """A tenant that `tenants` does not have yet. Raises `ConfigurationError` for a name that cannot
    be used, and for a database that belongs to another tenant or to the installation.
    """
    if name == settings.prefix:
        raise ConfigurationError(f"{name!r} is the prefix of the installation itself")
    try:
        name, database = checked_prefix(name), checked_database(database or name)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    # MongoDB refuses two databases whose names differ in their case only.
    used = {other.database.lower(): other.name for other in tenants.all()}
    used[settings.database.lower()] = settings.prefix
    if (owner := used.get(database.lower())) is not None:
        raise ConfigurationError(
            f"the database {database!r} belongs to the tenant {owner!r}: name another by --database"
        )
    return Tenant(name=name, database=database, partitions=None, created_at=datetime.now(UTC))


async def _existing_partitions(log: LogSettings) -> int | None:
    async with Leaders.connect(log) as leaders:
        return (await read_partitions(log, leaders.client)).partitions
