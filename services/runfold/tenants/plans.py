"""How the tenants of the registry are opened."""

from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple

from runfold.settings import Settings
from runfold.tenants.registry import Tenant, Tenants, settings_of
from runfold_schemas.errors import ForbiddenError

_QUOTED_MAX: Final = 50


class TenantPlan(NamedTuple):
    """How a tenant is opened. A tenant that was made anew has another `identity`."""

    identity: Hashable
    settings: Callable[[], Settings]


class Plans:
    """The plans of tenants of the installation with these settings. `tenants` returns them as they
    are now, or raises if they are not known yet.
    """

    def __init__(self, settings: Settings, tenants: Callable[[], Tenants]) -> None:
        self._settings = settings
        self._tenants = tenants

    def of(self, name: str) -> TenantPlan:
        """Raises `ForbiddenError` for a tenant that does not exist, and `UnavailableError` if that
        is not known yet.
        """
        tenant = self._tenants().active(name)
        if tenant is None:
            raise ForbiddenError(
                f"the tenant {name[:_QUOTED_MAX]!r} does not exist or is being dropped: the operator sees all"
                " in `runfold tenants list`"
            )
        identity = tenant.created_at, tenant.database, tenant.partitions
        return TenantPlan(identity, lambda: settings_of(self._settings, tenant))

    def all(self) -> Sequence[Tenant]:
        """All tenants but the installation itself. Raises `UnavailableError` as `of` does."""
        return self._tenants().all()
