"""The keys of a tenant as a process has them: unwrapped by the operator's key, for a time.

Anybody who may seal can write a key of the tenant that the operator's key does not unwrap. So such
a key is passed over, as long as there is another one.
"""

import logging
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from runfold.encryption.key_ring import KeyRing, TenantKey, tenant_secrets
from runfold.encryption.wrapping import Wrapping
from runfold_schemas.errors import RunfoldError, UnavailableError

SERVER: Final = "The encryption key"

_PASSED_OVER_SECONDS: Final = 60.0
"""How long a key that could not be unwrapped is not tried again, if there is another one."""

_log = logging.getLogger(__name__)


class UnwrappedKey(NamedTuple):
    """An unwrapped key of the tenant. `names` is the secret of the subjects' names, which all keys
    of a tenant share.
    """

    key_id: str
    cipher: AESGCM
    names: bytes
    unwrapped_at: float


class TenantKeys:
    """The unwrapped keys, each for `cache_seconds` after it was last unwrapped."""

    def __init__(self, wrapping: Wrapping, *, cache_seconds: float) -> None:
        self._wrapping = wrapping
        self._cache_seconds = cache_seconds
        self._keys: dict[str, UnwrappedKey] = {}
        self._were_unwrapped: set[str] = set()
        self._failed_at: dict[str, float] = {}
        self._failures: dict[str, str] = {}
        self.failure: RunfoldError = UnavailableError(SERVER, reason="it is not unwrapped yet")

    async def current(self, ring: KeyRing) -> UnwrappedKey | None:
        """The key that wraps new keys; None if the tenant has none. Raises `UnavailableError`, and
        `ConfigurationError` if a key is refused and there is no other one.
        """
        error: RunfoldError | None = None
        is_usable = self._is_any_usable()
        for key in list(ring.tenant_keys.values()):
            if key.key_id in self._were_unwrapped or (is_usable and key.key_id in self._failed_at):
                continue
            error = await self._try(key) or error
        if not ring.tenant_keys:
            return None
        key_id = ring.wrapping_key({key_id: key.names for key_id, key in self._keys.items()})
        if key_id is None:
            raise error or self.failure
        return self.usable([key_id])

    def usable(self, key_ids: Iterable[str]) -> UnwrappedKey:
        """One of these keys. Raises `UnavailableError` if none was unwrapped in time."""
        for key_id in key_ids:
            key = self._keys.get(key_id)
            if key is not None and self._is_usable(key):
                return key
        raise self.failure

    @property
    def has_any(self) -> bool:
        return bool(self._keys)

    def is_passed_over(self, key_id: str) -> bool:
        """Whether this key could not be unwrapped, although another one could."""
        return key_id not in self._keys and key_id in self._failed_at and self._is_any_usable()

    def is_ready(self, ring: KeyRing) -> bool:
        """Whether all keys can be used, or are passed over."""
        unusable = [key_id for key_id in ring.tenant_keys if not self._can_use(key_id)]
        return all(map(self.is_passed_over, unusable))

    async def refresh(self, ring: KeyRing) -> bool:
        """Unwraps keys before they are too old. Returns whether all of that succeeded."""
        succeeded = True
        for key in list(ring.tenant_keys.values()):
            if self._is_fresh(key.key_id) or self._is_too_soon(key.key_id):
                continue
            if error := await self._try(key):
                succeeded, self.failure = False, _unavailable(error)
        return succeeded

    def keep(self, ring: KeyRing) -> bool:
        """Drops the keys that are no longer in the ring, or are too old. Returns whether the ring
        has keys that were not tried yet.
        """
        self._keys = {
            key_id: key
            for key_id, key in self._keys.items()
            if key_id in ring.tenant_keys and self._is_usable(key)
        }
        self._were_unwrapped.intersection_update(ring.tenant_keys)
        for key_id in self._failed_at.keys() - ring.tenant_keys.keys():
            del self._failed_at[key_id], self._failures[key_id]
        return any(key_id not in self._keys and key_id not in self._failed_at for key_id in ring.tenant_keys)

    async def _try(self, key: TenantKey) -> RunfoldError | None:
        try:
            cipher, names = tenant_secrets(await self._wrapping.unwrap(key.wrapped))
        except RunfoldError as error:
            if self._failures.get(key.key_id) != str(error):
                _log.warning("the key %s of the tenant is not unwrapped: %s", key.key_id, error)
            self._failed_at[key.key_id], self._failures[key.key_id] = time.monotonic(), str(error)
            return error
        self._keys[key.key_id] = UnwrappedKey(key.key_id, cipher, names, time.monotonic())
        self._were_unwrapped.add(key.key_id)
        self._failed_at.pop(key.key_id, None)
        self._failures.pop(key.key_id, None)
        return None

    def _is_too_soon(self, key_id: str) -> bool:
        # Each attempt costs a request to the server with the operator's key.
        since = time.monotonic() - self._failed_at.get(key_id, -_PASSED_OVER_SECONDS)
        return since < _PASSED_OVER_SECONDS and self.is_passed_over(key_id)

    def _is_any_usable(self) -> bool:
        return any(map(self._is_usable, self._keys.values()))

    def _can_use(self, key_id: str) -> bool:
        key = self._keys.get(key_id)
        return key is not None and self._is_usable(key)

    def _is_usable(self, key: UnwrappedKey) -> bool:
        return time.monotonic() - key.unwrapped_at <= self._cache_seconds

    def _is_fresh(self, key_id: str) -> bool:
        key = self._keys.get(key_id)
        return key is not None and time.monotonic() - key.unwrapped_at < self._cache_seconds / 2


def _unavailable(error: RunfoldError) -> RunfoldError:
    if isinstance(error, UnavailableError):
        return error
    return UnavailableError(SERVER, reason=str(error))
