"""What an administrator does with API keys: make, list, rotate and revoke them.

Each change reads the log first: changes are rare, and the keys that a service follows may be a
moment behind.
"""

import asyncio
from collections.abc import Awaitable, Callable
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from runfold.identity.key_log import append_key, append_revocation, key_topic
from runfold.identity.keys import ApiKeyRing, KeyGrant, Revocation, StoredKey, new_key, rotated
from runfold.log.compacted import Followed, create, read_all
from runfold.log.publisher import Publisher
from runfold.log.reader import LogGoneError
from runfold.log.settings import LogSettings
from runfold_schemas.errors import ForbiddenError, KeyNotFoundError, TenantNotFoundError

_VISIBLE_SECONDS: Final = 2.0

Status = Literal["active", "expired", "revoked"]


class ApiKey(BaseModel):
    """A key, without its secret."""

    model_config = ConfigDict(frozen=True)

    key_id: str
    tenant: str
    name: str
    status: Status
    scopes: tuple[str, ...]
    agents: tuple[str, ...] | None
    users: tuple[str, ...] | None
    created_at: AwareDatetime
    created_by: str
    expires_at: AwareDatetime | None
    rotated_at: AwareDatetime | None
    old_secret_until: AwareDatetime | None = Field(
        description="Until then an earlier secret is valid beside the present one; null: there is none."
    )
    revoked_at: AwareDatetime | None

    @classmethod
    def of(cls, key: StoredKey, revocation: Revocation | None, now: datetime) -> Self:
        is_expired = key.expires_at is not None and key.expires_at <= now
        valid = [old.valid_until for old in key.previous if old.valid_until > now]
        return cls(
            status="revoked" if revocation else "expired" if is_expired else "active",
            revoked_at=revocation and revocation.revoked_at,
            old_secret_until=max(valid, default=None),
            **key.model_dump(include=_SHARED),
        )


_SHARED: Final = set(ApiKey.model_fields) & set(StoredKey.model_fields)


class SecretKey(NamedTuple):
    """A key that was just made or rotated, and its text, which nobody can read again."""

    info: ApiKey
    text: str


CheckTenant = Callable[[str], Awaitable[None]]
"""Raises `TenantNotFoundError` for a tenant that has no keys."""


class KeyAdministration:
    """The verbs for the keys of all tenants. `publisher` returns the connection to Kafka, or raises
    while there is none. With `followed`, a change returns when this process has read it. Without
    `check_tenant`, there is no tenant but the installation's own.
    """

    def __init__(
        self,
        settings: LogSettings,
        publisher: Callable[[], Publisher],
        followed: Followed[ApiKeyRing] | None = None,
        *,
        check_tenant: CheckTenant | None = None,
    ) -> None:
        self._settings = settings
        self._topic = key_topic(settings.prefix)
        self._publisher = publisher
        self._followed = followed
        self._check_tenant = check_tenant or self._check_own
        self._tenant: str | None = None
        self._changing = asyncio.Lock()

    def within(self, tenant: str) -> Self:
        """The verbs for an administrator of this tenant, who manages the keys of the tenant only.
        An administrator of the installation's own tenant is the operator, who manages all keys.
        """
        limited = copy(self)
        limited._tenant = None if tenant == self._settings.prefix else tenant  # noqa: SLF001  # of our class
        return limited

    async def list(self, tenant: str | None = None) -> list[ApiKey]:
        """All keys, or those of a tenant, the oldest first."""
        now = datetime.now(UTC)
        return [
            ApiKey.of(key, end, now)
            for key, end in (await self._ring(creates=False)).entries()
            if tenant in (None, key.tenant) and self._may_have(key)
        ]

    async def get(self, key_id: str) -> ApiKey:
        """Raises `KeyNotFoundError`."""
        key, end = self._find(await self._ring(), key_id)
        return ApiKey.of(key, end, datetime.now(UTC))

    async def add(self, grant: KeyGrant, *, by: str) -> SecretKey:
        """Makes a key. `by` says who does. Raises `TenantNotFoundError`, and `ForbiddenError` for
        the tenant of others.
        """
        tenant = grant.tenant or self._tenant or self._settings.prefix
        if self._tenant not in (None, tenant):
            raise ForbiddenError(f"only the operator makes keys for the tenant {tenant}")
        async with self._changing:
            await self._check_tenant(tenant)
            await self._ring()  # creates the topic
            now = datetime.now(UTC)
            key, text = new_key(grant, tenant=tenant, by=by, now=now)
            await self._put(key)
        try:
            # Whoever drops the tenant revokes the keys that are there after the mark.
            await self._check_tenant(tenant)
        except TenantNotFoundError:
            await self.revoke(key.key_id, by=by)
            raise
        return SecretKey(ApiKey.of(key, None, now), text)

    async def rotate(self, key_id: str, *, overlap_seconds: float) -> SecretKey:
        """Gives the key a new secret. The old one stays valid for the overlap. Raises
        `KeyNotFoundError`, also for a key that was revoked.
        """
        async with self._changing:
            before, end = self._find(await self._ring(), key_id)
            if end is not None:
                raise KeyNotFoundError(key_id, reason="was revoked: make another one")
            now = datetime.now(UTC)
            key, text = rotated(before, now=now, overlap=timedelta(seconds=overlap_seconds))
            await self._put(key)
            return SecretKey(ApiKey.of(key, None, now), text)

    async def revoke(self, key_id: str, *, by: str) -> ApiKey:
        """Ends the key for good. Revoking it again changes nothing. Raises `KeyNotFoundError`."""
        async with self._changing:
            key, end = self._find(await self._ring(), key_id)
            if end is None:
                end = Revocation(revoked_at=datetime.now(UTC), revoked_by=by)
                await self._wait_for(await append_revocation(self._publisher(), self._topic, key_id, end))
            return ApiKey.of(key, end, datetime.now(UTC))

    def _may_have(self, key: StoredKey) -> bool:
        return self._tenant in (None, key.tenant)

    def _find(self, ring: ApiKeyRing, key_id: str) -> tuple[StoredKey, Revocation | None]:
        entry = ring.get(key_id)
        if entry is None or not self._may_have(entry[0]):
            raise KeyNotFoundError(key_id)
        return entry

    async def _check_own(self, tenant: str) -> None:
        if tenant != self._settings.prefix:
            raise TenantNotFoundError(tenant)

    async def _ring(self, *, creates: bool = True) -> ApiKeyRing:
        try:
            return (await read_all(self._settings, self._topic))[0]
        except LogGoneError:
            if creates:
                await create(self._settings, self._topic)
            return ApiKeyRing()

    async def _put(self, key: StoredKey) -> None:
        await self._wait_for(await append_key(self._publisher(), self._topic, key))

    async def _wait_for(self, offset: int) -> None:
        if self._followed is not None:
            await self._followed.wait_for(offset, timeout_seconds=_VISIBLE_SECONDS)
