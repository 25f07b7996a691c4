"""Finds the principal of an API key or a token, without asking another server in most cases."""

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Final, Self

from prometheus_client import Gauge

from runfold.http.authentication import Proof
from runfold.identity.key_log import key_topic
from runfold.identity.keys import KEY_MARK, StoredKey
from runfold.identity.provider_keys import ProviderKeys
from runfold.identity.provider_login import ProviderLogin
from runfold.identity.tokens import Tokens
from runfold.log.compacted import Followed
from runfold.settings import Settings
from runfold.tenants.plans import Plans
from runfold.tenants.quotas import QuotaKeeper
from runfold.tenants.registry import FollowedTenants
from runfold_schemas.errors import UnauthenticatedError

Check = Callable[[], Awaitable[Sequence[str] | None]]

_SILENT_SECONDS: Final = 60.0
"""After this time without an answer of Kafka, a service says that it may accept revoked keys."""

_SILENT = Gauge(
    "runfold_api_keys_silent_seconds",
    "For how long Kafka has not answered, so that a revocation of an API key may be missing here",
)


class Authenticator:
    """What a service with authentication knows of its clients, for the length of the `async with`
    block. Call it with the text of a credential.
    """

    def __init__(self, settings: Settings) -> None:
        self._own = settings.prefix
        self.tenants = FollowedTenants(settings)
        self.keys = Followed(settings.log("runfold/keys"), key_topic(settings.prefix))
        self.tokens: Tokens | None = None
        if settings.oidc_issuer is not None:
            provider = ProviderKeys(settings.oidc_issuer, url=settings.oidc_jwks_url)
            self.tokens = Tokens(settings, provider, self._is_active)

    async def __aenter__(self) -> Self:
        await self.keys.__aenter__()
        await self.tenants.__aenter__()
        _SILENT.set_function(lambda: self.keys.silent_seconds)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.tenants.__aexit__(*exc_info)
        await self.keys.__aexit__(*exc_info)
        if self.tokens is not None:
            await self.tokens.close()

    def check(self) -> list[str]:
        """The reason why keys may count that were revoked elsewhere, if there is one. Raises
        `UnavailableError` or `ConfigurationError` until the API keys and the tenants are read.
        """
        _ = self.keys.state, self.tenants.tenants
        if (seconds := self.keys.silent_seconds) < _SILENT_SECONDS:
            return []
        return [f"API keys: Kafka has not answered for {seconds:.0f} s, so a key revoked since counts here"]

    async def __call__(self, credential: str) -> Proof:
        """What the credential proves. Raises `UnauthenticatedError`, and `UnavailableError` while
        the keys that it needs are not known.
        """
        if credential.startswith(KEY_MARK):
            return self._prove_key(credential)
        if self.tokens is None:
            raise UnauthenticatedError(
                f"the credential is not an API key of Runfold, which begins with {KEY_MARK}"
            )
        token = await self.tokens.read(credential)
        tenant = token.principal.tenant
        return Proof(token.principal, lambda: time.time() < token.valid_until and self._is_active(tenant))

    def _prove_key(self, text: str) -> Proof:
        def is_valid() -> bool:
            try:
                return self._check_key(text) is not None
            except UnauthenticatedError:
                return False

        return Proof(self._check_key(text).principal(), is_valid)

    def _check_key(self, text: str) -> StoredKey:
        key = self.keys.state.check(text, now=datetime.now(UTC))
        if not self._is_active(key.tenant):
            raise UnauthenticatedError(
                f"the API key {key.key_id} is for the tenant {key.tenant}, which does not exist or is being"
                " dropped: the operator sees all in `runfold tenants list`"
            )
        return key

    def _is_active(self, tenant: str) -> bool:
        """Whether there is such a tenant. The installation itself needs no registry."""
        return tenant == self._own or self.tenants.tenants.active(tenant) is not None


def ready_when_known(authenticator: Authenticator | None, ready: Check) -> Check:
    """`ready`, of a service that is not ready before it knows its clients."""

    async def check() -> Sequence[str] | None:
        reasons = authenticator.check() if authenticator is not None else []
        return [*reasons, *(await ready() or ())]

    return check


def authenticator_of(settings: Settings) -> Authenticator | None:
    """None if the settings ask for no authentication."""
    return Authenticator(settings) if settings.authentication == "required" else None


def provider_login_of(settings: Settings, authenticator: Authenticator | None) -> ProviderLogin | None:
    """None if the settings name no client at an identity provider."""
    tokens = None if authenticator is None else authenticator.tokens
    if tokens is None or settings.oidc_client_id is None:
        return None
    return ProviderLogin(settings, tokens, client_id=settings.oidc_client_id)


def plans_in(settings: Settings, authenticator: Authenticator | None) -> Plans | None:
    """How tenants are opened, for a service with authentication. Without it, every principal is of
    the installation's own tenant.
    """
    return None if authenticator is None else Plans(settings, lambda: authenticator.tenants.tenants)


def quotas_in(settings: Settings, authenticator: Authenticator | None) -> QuotaKeeper | None:
    """The quotas of tenants, for a service with authentication."""
    return None if authenticator is None else QuotaKeeper(settings, lambda: authenticator.tenants.tenants)
