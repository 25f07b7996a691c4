"""The registry of tenants: the compacted topic `{prefix}.tenants` of the installation.

A tenant's name is the prefix of its topics. `tenant:{name}` has the tenant, and `dropping:{name}`
says that somebody drops it. The mark has a key of its own, so that no change at the same time
undoes it. The installation's own prefix is a tenant too, which needs no record.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Final, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from runfold.blobs.store import BlobStore
from runfold.log.compacted import CompactedTopic, Followed, append, read_all
from runfold.log.publisher import Publisher
from runfold.log.reader import LogGoneError
from runfold.log.settings import Partitions, Prefix
from runfold.settings import Settings
from runfold_schemas.codec import Record
from runfold_schemas.errors import TenantNotFoundError
from runfold_schemas.topics import Topics

_TENANT: Final = b"tenant:"
_DROPPING: Final = b"dropping:"

IS_DROPPED: Final = "is being dropped: finish that by `runfold tenants drop`"
"""A reason why a command has no tenant."""

IS_UNKNOWN: Final = "does not exist: `runfold tenants list` shows those that do"

Limit = Annotated[int, Field(ge=0, le=2**53)]


class Quotas(BaseModel):
    """How much a tenant may use; None: any amount."""

    # A later version may add quotas.
    model_config = ConfigDict(frozen=True, extra="ignore")

    requests_per_minute: Limit | None = None
    open_runs: Limit | None = None
    bytes_per_day: Limit | None = None
    model_tokens_per_day: Limit | None = None


_UNLIMITED: Final = Quotas()


class Tenant(BaseModel):
    """A tenant. `partitions` is the number of partitions of each of its shared topics."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: Prefix
    database: str
    partitions: Partitions | None
    """None for the installation itself, which reads it from Kafka."""
    quotas: Quotas = _UNLIMITED
    created_at: AwareDatetime | None = None
    dropping: bool = False
    """Whether somebody is deleting the tenant. It answers nobody any more."""

    @classmethod
    def own(cls, settings: Settings) -> Self:
        """The installation itself."""
        return cls(name=settings.prefix, database=settings.database, partitions=settings.partitions)


class Tenants:
    """The tenants of an installation, folded from the registry."""

    def __init__(self, own: Tenant) -> None:
        self._own = own
        self._tenants: dict[str, Tenant] = {}
        self._dropping: set[str] = set()

    def get(self, name: str) -> Tenant | None:
        """The tenant of this name, also one that is being dropped, and the installation itself."""
        tenant = self._tenants.get(name)
        if name == self._own.name:
            return self._own.model_copy(update={"quotas": tenant.quotas}) if tenant else self._own
        if tenant is None:
            return None
        return tenant.model_copy(update={"dropping": True}) if name in self._dropping else tenant

    def active(self, name: str) -> Tenant | None:
        """The tenant of this name, unless it is being dropped."""
        tenant = self.get(name)
        return None if tenant is None or tenant.dropping else tenant

    def is_marked(self, name: str) -> bool:
        """Whether there is the mark of a drop. A drop or an import that broke off may leave nothing
        else.
        """
        return name in self._dropping

    def quotas(self, name: str) -> Quotas | None:
        """The quotas of a tenant; None if it has none."""
        tenant = self._tenants.get(name)
        return None if tenant is None or tenant.quotas == _UNLIMITED else tenant.quotas

    def all(self) -> Sequence[Tenant]:
        """All tenants by name, also those that are being dropped. The installation itself is left
        out.
        """
        names = sorted(self._tenants.keys() - {self._own.name})
        return [tenant for name in names if (tenant := self.get(name)) is not None]

    def take(self, record: Record) -> None:
        """Folds a record of the registry. Raises `ValueError` if it cannot be decoded."""
        key = record.key or b""
        if key.startswith(_TENANT):
            self._put(key.removeprefix(_TENANT).decode(), record.value)
        elif key.startswith(_DROPPING):
            name = key.removeprefix(_DROPPING).decode()
            (self._dropping.discard if record.value is None else self._dropping.add)(name)

    def _put(self, name: str, value: bytes | None) -> None:
        if value is None:
            self._tenants.pop(name, None)
        elif (tenant := Tenant.model_validate_json(value)).name == name:
            self._tenants[name] = tenant


class FollowedTenants(Followed[Tenants]):
    """The tenants as they are now, for the length of the `async with` block. An installation
    without tenants has no registry, and then there is none but itself.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.log("runfold/tenants"), tenant_topic(settings), creates=False)

    @property
    def tenants(self) -> Tenants:
        """Raises `UnavailableError` or `ConfigurationError` until the registry is read."""
        return self.state


def tenant_topic(settings: Settings) -> CompactedTopic[Tenants]:
    """The registry. The first `runfold tenants add` creates it."""
    new = partial(Tenants, Tenant.own(settings))
    return CompactedTopic(Topics(settings.prefix).tenants, "tenants", new, Tenants.take)


async def read_tenants(settings: Settings) -> Tenants:
    """The tenants as they are now."""
    topic = tenant_topic(settings)
    try:
        return (await read_all(settings.log("runfold/tenants"), topic))[0]
    except LogGoneError:
        return topic.new()


async def check_tenant(settings: Settings, name: str) -> None:
    """Raises `TenantNotFoundError` for a tenant that does not exist or that somebody drops."""
    if name != settings.prefix:
        tenant = (await read_tenants(settings)).get(name)
        if tenant is None:
            raise TenantNotFoundError(name)
        if tenant.dropping:
            raise TenantNotFoundError(name, reason=IS_DROPPED)


def settings_of(settings: Settings, tenant: Tenant) -> Settings:
    """The settings of a tenant's services, from those of the installation."""
    if tenant.name == settings.prefix:
        return settings
    return settings.of_tenant(tenant.name, database=tenant.database, partitions=tenant.partitions)


def blobs_of(settings: Settings) -> BlobStore | None:
    """The blobs of a tenant with these settings."""
    if settings.blobs is None:
        return None
    return BlobStore.connect(
        settings.blobs,
        prefix=settings.prefix,
        bytes_min=settings.blob_bytes_min,
        bytes_max=settings.blob_bytes_max,
    )


async def put_tenant(publisher: Publisher, topic: CompactedTopic[Tenants], tenant: Tenant) -> None:
    """Returns when the record is durable."""
    value = tenant.model_dump_json(exclude={"dropping"}).encode()
    await append(publisher, topic, _TENANT + tenant.name.encode(), value)


async def mark_dropping(publisher: Publisher, topic: CompactedTopic[Tenants], name: str) -> None:
    """From here on, no process serves the tenant."""
    await append(publisher, topic, _DROPPING + name.encode(), b"{}")


async def unmark_dropping(publisher: Publisher, topic: CompactedTopic[Tenants], name: str) -> None:
    """From here on, the tenant is served."""
    await append(publisher, topic, _DROPPING + name.encode(), None)


async def remove_tenant(publisher: Publisher, topic: CompactedTopic[Tenants], name: str) -> None:
    """Forgets the tenant, so that the name is free."""
    await append(publisher, topic, _TENANT + name.encode(), None)
    await unmark_dropping(publisher, topic, name)
