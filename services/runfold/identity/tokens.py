"""Tokens of an identity provider: JWTs by OpenID Connect.

A token counts if a key of the provider signed it with an asymmetric algorithm, and if it names our
audience, the provider as its issuer, a subject and an end. Settings say which claims limit it.
"""

import hmac
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import jwt

from runfold.http.principal import Principal, Scope
from runfold.http.settings import OIDC_SCOPES
from runfold.identity.provider_keys import ProviderKeys
from runfold.settings import Settings
from runfold_schemas.errors import UnauthenticatedError

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Asymmetric ones only: with a symmetric one, the provider's public key would be the secret."""

EXPIRY_LEEWAY_SECONDS: Final = 60.0
"""For so long a token counts after its end, for clocks that differ a little."""

_TOKEN_BYTES_MAX: Final = 12_000

_FAULTS: Final[tuple[tuple[type[jwt.PyJWTError], str], ...]] = (
    (jwt.ExpiredSignatureError, "it has expired"),
    (jwt.ImmatureSignatureError, "it is not valid yet: compare this machine's clock with the provider's"),
    (jwt.InvalidAudienceError, "it is for another audience"),
    (jwt.InvalidIssuerError, "it has another issuer"),
    (jwt.InvalidSignatureError, "its signature is wrong"),
    (jwt.InvalidAlgorithmError, "its algorithm is not allowed"),
)


class Token(NamedTuple):
    """What a valid token proves, and until when, in seconds since 1970."""

    principal: Principal
    valid_until: float


class Tokens:
    """Reads the tokens of one provider. `is_tenant` says whether a tenant exists, and raises
    `UnavailableError` while that is unknown. Without it, there is none but the installation itself.
    """

    def __init__(
        self, settings: Settings, keys: ProviderKeys, is_tenant: Callable[[str], bool] | None = None
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._is_tenant = is_tenant or (lambda name: name == settings.prefix)

    async def read(self, text: str) -> Token:
        """Raises `UnauthenticatedError`, and `UnavailableError` if the provider's keys are neither
        known nor to be had.
        """
        claims = await self._claims_of(text, audience=self._settings.oidc_audience)
        return Token(self._principal(claims), claims["exp"] + EXPIRY_LEEWAY_SECONDS)

    async def check_id_token(self, text: str, *, client_id: str, nonce: str) -> None:
        """Raises as `read` does, and unless the token is for this client and this login."""
        claims = await self._claims_of(text, audience=client_id)
        if claims.get("azp", client_id) != client_id:
            raise UnauthenticatedError("the token is not valid: it was made for another client")
        if not hmac.compare_digest(str(claims.get("nonce")).encode(), nonce.encode()):
            raise UnauthenticatedError("the token is not valid: it belongs to another login")

    async def close(self) -> None:
        await self._keys.close()

    async def _claims_of(self, text: str, *, audience: str | None) -> Mapping[str, Any]:
        try:
            return self._claims(text, await self._key_of(text), audience)
        except jwt.PyJWTError as error:
            reason = next((reason for kind, reason in _FAULTS if isinstance(error, kind)), "it is malformed")
            if isinstance(error, jwt.MissingRequiredClaimError):
                reason = f"it has no claim {error.claim!r}"
            raise UnauthenticatedError(f"the token is not valid: {reason}") from error

    async def _key_of(self, text: str) -> jwt.PyJWK:
        if len(text) > _TOKEN_BYTES_MAX:
            raise jwt.DecodeError
        header = jwt.get_unverified_header(text)
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            raise jwt.InvalidAlgorithmError
        key = await self._keys.find(header.get("kid"))
        if key is None:
            raise UnauthenticatedError("the token is not valid: the provider has no such key")
        # Most providers leave `alg` out of their keys, and then the token chooses from our list.
        return jwt.PyJWK(dict(key), key.get("alg") or algorithm)

    def _claims(self, text: str, key: jwt.PyJWK, audience: str | None) -> Mapping[str, Any]:
        # A clock that is minutes off must not refuse a token that was just made. An end counts more
        # exactly, because it limits what a stolen token is good for.
        claims: dict[str, Any] = jwt.decode(
            text,
            key,
            algorithms=ALGORITHMS,
            audience=audience,
            issuer=self._settings.oidc_issuer,
            leeway=self._settings.oidc_clock_skew_seconds,
            options={
                "require": ["exp", "iss", "aud", "sub"],
                "verify_exp": False,
                "enforce_minimum_key_length": True,
            },
        )
        if not _is_number(claims["exp"]):
            raise jwt.DecodeError
        if time.time() >= claims["exp"] + EXPIRY_LEEWAY_SECONDS:
            raise jwt.ExpiredSignatureError
        return claims

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        settings = self._settings
        values = _texts(_claim(claims, settings.oidc_scopes_claim), separator=" ")
        allowed = OIDC_SCOPES if settings.oidc_scopes is None else settings.oidc_scopes
        scopes = frozenset(scope for value in values for scope in allowed.get(value, ()))
        # An administrator can make a key without limits, so limits would only pretend to be some.
        limited = Scope.administer not in scopes
        return Principal(
            tenant=self._tenant_of(claims),
            subject=f"token:{claims['sub']}",
            scopes=scopes,
            agents=_limit(claims, settings.oidc_agents_claim) if limited else None,
            users=_limit(claims, settings.oidc_users_claim) if limited else None,
        )

    def _tenant_of(self, claims: Mapping[str, Any]) -> str:
        claim = self._settings.oidc_tenant_claim
        if claim is None:
            return self._settings.prefix
        tenants = {name for name in _texts(_claim(claims, claim)) if self._is_tenant(name)}
        if not tenants:
            raise UnauthenticatedError(f"the token is not valid: {claim} names no tenant of this service")
        if len(tenants) > 1:
            raise UnauthenticatedError(f"the token is not valid: {claim} names several tenants")
        return tenants.pop()


def _limit(claims: Mapping[str, Any], name: str | None) -> tuple[str, ...] | None:
    """The ids in a claim. A token without the claim is limited to none."""
    return None if name is None else tuple(_texts(_claim(claims, name)))


def _claim(claims: Mapping[str, Any], name: str) -> object:
    """The claim of this name, or with dots the one within others: `realm_access.roles`."""
    if name in claims:
        return claims[name]
    value: object = claims
    for step in name.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _texts(value: object, *, separator: str | None = None) -> Iterable[str]:
    """The texts of a claim, which is one or a list."""
    if isinstance(value, str):
        return value.split(separator) if separator else [value]
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
