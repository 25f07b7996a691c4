"""API keys: `rf_{id}_{secret}`. This module does no I/O.

The secret is 32 random bytes. So a fast hash is enough, since nobody can try 2^256 secrets, and a
slow one would cost each request milliseconds. Only the hash is stored.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from runfold.http.principal import Principal, Scope
from runfold.log.settings import Prefix
from runfold_schemas.errors import UnauthenticatedError

KEY_MARK: Final = "rf_"
"""How every API key begins."""

NAME_MAX: Final = 100
LIMITS_MAX: Final = 1_000
"""The most agents, or users, that a key can be limited to."""

OVERLAP_SECONDS: Final = 24 * 3600
"""How long the old secret stays valid after a rotation, by default."""

OVERLAP_SECONDS_MAX: Final = 90 * 24 * 3600

SCOPES: Final = (Scope.publish, Scope.read, Scope.memories)
"""The scopes of a key for an agent, by default."""

_KEY = re.compile(r"rf_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")

_PREVIOUS_MAX: Final = 8
"""The most earlier secrets that are valid at once."""

_INVALID: Final = "the API key is not valid: there is no such key, or its secret is wrong"

Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=NAME_MAX)]
Limit = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1, max_length=1_000)], ...],
    Field(max_length=LIMITS_MAX),
]


class KeyGrant(BaseModel):
    """What a key is for: its name, and what its holder may do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name = Field(description="Says what the key is for. Names need not be unique.")
    tenant: Prefix | None = Field(
        None,
        description="The tenant whose data the holder may use; null: that of the request. Only the"
        " operator makes keys for other tenants.",
    )
    scopes: tuple[Scope, ...] = Field(SCOPES, description="What the holder may do.")
    agents: Limit | None = Field(
        None, description="Only the data of these agents, apps and banks; null: of all."
    )
    users: Limit | None = Field(None, description="Only the data of these users; null: of all.")
    expires_at: AwareDatetime | None = Field(
        None, description="From then on the key is refused; null: never."
    )

    @model_validator(mode="after")
    def _administers_everything(self) -> Self:
        if Scope.administer in self.scopes and (self.agents is not None or self.users is not None):
            raise ValueError(
                "a key that administers cannot be limited to agents or users: it could make a key without"
                " limits"
            )
        return self


class _Stored(BaseModel):
    # A later version may add fields.
    model_config = ConfigDict(frozen=True, extra="ignore")


class PreviousSecret(_Stored):
    """The hash of a secret that a rotation has replaced, and until when the secret is valid."""

    sha256: str
    valid_until: AwareDatetime


class StoredKey(_Stored):
    """A key as the log has it, without its secret."""

    key_id: str
    tenant: str
    name: str
    scopes: tuple[str, ...]
    agents: tuple[str, ...] | None = None
    users: tuple[str, ...] | None = None
    created_at: AwareDatetime
    created_by: str = ""
    rotated_at: AwareDatetime | None = None
    expires_at: AwareDatetime | None = None
    sha256: str
    previous: tuple[PreviousSecret, ...] = ()

    def principal(self) -> Principal:
        """The holder. Scopes of a later version are left out."""
        known = frozenset(scope for scope in Scope if scope.value in self.scopes)
        return Principal(
            tenant=self.tenant,
            subject=f"key:{self.key_id}",
            scopes=known,
            agents=self.agents,
            users=self.users,
        )

    def has_secret(self, sha256: str, now: datetime) -> bool:
        """Whether this is the hash of a valid secret. Every stored hash is compared, whatever the
        others say.
        """
        matches = hmac.compare_digest(self.sha256, sha256)
        for previous in self.previous:
            is_valid = now < previous.valid_until
            matches |= hmac.compare_digest(previous.sha256, sha256) and is_valid
        return matches

    def rotated(self, sha256: str, *, now: datetime, overlap: timedelta) -> Self:
        """This key with a new secret. The old ones stay valid for at most `overlap`."""
        end = now + overlap
        before = [PreviousSecret(sha256=self.sha256, valid_until=end), *self.previous]
        previous = tuple(
            secret.model_copy(update={"valid_until": min(secret.valid_until, end)})
            for secret in before[:_PREVIOUS_MAX]
            if now < min(secret.valid_until, end)
        )
        return self.model_copy(update={"sha256": sha256, "previous": previous, "rotated_at": now})


class Revocation(_Stored):
    """The end of a key. It is final."""

    revoked_at: AwareDatetime
    revoked_by: str = ""


def new_key(grant: KeyGrant, *, tenant: str, by: str, now: datetime) -> tuple[StoredKey, str]:
    """A new key, and its text with the secret, which is stored nowhere."""
    key_id = secrets.token_hex(8)
    text = _new_text(key_id)
    fields = grant.model_dump() | {"scopes": tuple(scope.value for scope in grant.scopes), "tenant": tenant}
    key = StoredKey(key_id=key_id, created_at=now, created_by=by, sha256=_hashed(text), **fields)
    return key, text


def rotated(key: StoredKey, *, now: datetime, overlap: timedelta) -> tuple[StoredKey, str]:
    """The key with a new secret, and its text."""
    text = _new_text(key.key_id)
    return key.rotated(_hashed(text), now=now, overlap=overlap), text


class ApiKeyRing:
    """The keys of an installation, folded from their log. Of the records under one id the last
    counts, and a revocation stands under a name of its own, so that no rotation at the same time
    undoes it.
    """

    def __init__(self) -> None:
        self._keys: dict[str, StoredKey] = {}
        self._revoked: dict[str, Revocation] = {}

    def put(self, key: StoredKey) -> None:
        self._keys[key.key_id] = key

    def revoke(self, key_id: str, revocation: Revocation) -> None:
        self._revoked.setdefault(key_id, revocation)

    def entries(self) -> Sequence[tuple[StoredKey, Revocation | None]]:
        """All keys, the oldest first, each with its revocation."""
        ordered = sorted(self._keys.values(), key=lambda key: (key.created_at, key.key_id))
        return [(key, self._revoked.get(key.key_id)) for key in ordered]

    def get(self, key_id: str) -> tuple[StoredKey, Revocation | None] | None:
        key = self._keys.get(key_id)
        return None if key is None else (key, self._revoked.get(key_id))

    def check(self, text: str, *, now: datetime) -> StoredKey:
        """The key with this text. Raises `UnauthenticatedError`. An unknown id takes the time of a
        wrong secret, and only holders of the secret learn why their key is refused.
        """
        match = _KEY.fullmatch(text)
        if match is None:
            raise UnauthenticatedError(_INVALID)
        key_id = match[1]
        key = self._keys.get(key_id, _NOBODYS)
        if not key.has_secret(_hashed(text), now) or key is _NOBODYS:
            raise UnauthenticatedError(_INVALID)
        if key_id in self._revoked:
            raise UnauthenticatedError(f"the API key {key_id} was revoked")
        if key.expires_at is not None and key.expires_at <= now:
            raise UnauthenticatedError(f"the API key {key_id} has expired")
        return key


def _new_text(key_id: str) -> str:
    return f"{KEY_MARK}{key_id}_{secrets.token_urlsafe(32)}"


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


_NOBODYS: Final = StoredKey(
    key_id="",
    tenant="",
    name="",
    scopes=(),
    created_at=datetime.fromisoformat("1970-01-01T00:00:00Z"),
    sha256=hashlib.sha256(secrets.token_bytes(32)).hexdigest(),
)
"""Is compared with the secrets of unknown ids."""
