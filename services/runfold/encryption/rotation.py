"""Gives a tenant a new key, and wraps the keys of all subjects by that.

    new key of the tenant --> all keys of subjects, wrapped anew --> pause --> old ones are removed

Until the last step, the old records open too, so services go on. Each attempt makes a key of its
own. So an attempt after a kill does everything again, and removes what the attempt before left.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from runfold.encryption.cipher import decrypt, encrypt, new_key, new_key_id
from runfold.encryption.key_ring import (
    KeyRing,
    StoredSubjectKey,
    TenantKey,
    keys_topic,
    subject_place,
    subject_record,
    tenant_record,
    tenant_secrets,
)
from runfold.encryption.wrapping import Wrapping
from runfold.log.compacted import append, read_all
from runfold.log.publisher import Publisher
from runfold.log.reader import LogGoneError
from runfold.log.settings import LogSettings
from runfold_schemas.errors import ConfigurationError
from runfold_schemas.topics import Topics

PAUSE_SECONDS: Final = 10.0
"""The time for all services to unwrap the new key of the tenant."""

_AT_ONCE: Final = 500

Report = Callable[[int, int], None]
"""Is called with the numbers of keys that are done, and of all."""


async def rotate(
    settings: LogSettings,
    wrapping: Wrapping,
    publisher: Publisher,
    *,
    report: Report,
    pause_seconds: float = PAUSE_SECONDS,
) -> int | None:
    """Returns the number of keys that were wrapped anew, None if the tenant has no key. Raises
    `ConfigurationError` if a key of the tenant cannot be unwrapped, or if another rotation began.
    """
    try:
        ring, _ = await read_all(settings, keys_topic(Topics(settings.prefix)))
    except LogGoneError:
        return None
    if not ring.tenant_keys:
        return None
    secrets = await _unwrapped(ring, wrapping)
    old = ring.wrapping_key({key_id: names for key_id, (_, names) in secrets.items()})
    assert old is not None
    secret, names = new_key(), secrets[old][1]
    new = TenantKey(
        key_id=new_key_id(),
        generation=1 + max(key.generation for key in ring.tenant_keys.values()),
        wrapped=await wrapping.wrap(secret + names),
        wrapped_by=wrapping.name,
    )
    ciphers = {key_id: cipher for key_id, (cipher, _) in secrets.items()}
    rotation = _Rotation(settings, publisher, wrapping, old=ciphers, new=new, cipher=AESGCM(secret))
    await rotation.begin()
    await rotation.wrap_all(report)
    await asyncio.sleep(pause_seconds)
    # Processes may have made keys before they saw the new key of the tenant.
    ring = await rotation.wrap_all(report)
    await rotation.remove_old(ring)
    # A process may have used the old key until the topic lacked it.
    ring = await rotation.wrap_all(report)
    await rotation.remove_old(ring)
    return len(ring.key_ids)


async def _unwrapped(ring: KeyRing, wrapping: Wrapping) -> dict[str, tuple[AESGCM, bytes]]:
    """The secrets of the tenant's keys. A key that cannot be unwrapped is passed over, if no key of
    a subject needs it. Otherwise raises `ConfigurationError`.
    """
    secrets: dict[str, tuple[AESGCM, bytes]] = {}
    refusal: ConfigurationError | None = None
    for key in ring.tenant_keys.values():
        try:
            secrets[key.key_id] = tenant_secrets(await wrapping.unwrap(key.wrapped))
        except ConfigurationError as error:
            refusal = error
    if refusal is not None:
        wraps = [{key.tenant_key for key in ring.wraps(key_id)} for key_id in ring.key_ids]
        lost = sum(1 for each in wraps if each & ring.tenant_keys.keys() and not each & secrets.keys())
        if lost or not secrets:
            raise ConfigurationError(f"{lost} keys of subjects would be lost: {refusal}") from refusal
    return secrets


class _Rotation:
    def __init__(
        self,
        settings: LogSettings,
        publisher: Publisher,
        wrapping: Wrapping,
        *,
        old: Mapping[str, AESGCM],
        new: TenantKey,
        cipher: AESGCM,
    ) -> None:
        self._settings = settings
        self._topic = keys_topic(Topics(settings.prefix))
        self._publisher = publisher
        self._wrapping = wrapping
        self._old = old
        self._new = new
        self._cipher = cipher
        self._unreadable: set[str] = set()

    async def begin(self) -> None:
        value = self._new.model_dump_json().encode()
        await append(self._publisher, self._topic, tenant_record(self._new.key_id), value)

    async def wrap_all(self, report: Report) -> KeyRing:
        """Wraps keys until the topic has each of them under the new key of the tenant."""
        while True:
            ring, _ = await read_all(self._settings, self._topic)
            if await self._is_overtaken(ring):
                raise ConfigurationError("another rotation has begun: this one ends, and nothing is lost")
            missing = [key_id for key_id in ring.key_ids if not self._has_new(ring, key_id)]
            total = len(ring.key_ids)
            report(total - len(missing), total)
            if not missing:
                return ring
            done = total - len(missing)
            for first in range(0, len(missing), _AT_ONCE):
                some = missing[first : first + _AT_ONCE]
                await asyncio.gather(*(self._wrap(ring.wraps(key_id)) for key_id in some))
                report(done + first + len(some), total)

    async def _is_overtaken(self, ring: KeyRing) -> bool:
        """Whether the new key is gone, or another rotation has made the one that wraps."""
        names: dict[str, bytes] = {}
        for key in ring.tenant_keys.values():
            if key.generation >= self._new.generation:
                with suppress(ConfigurationError):
                    _, names[key.key_id] = tenant_secrets(await self._wrapping.unwrap(key.wrapped))
        return ring.wrapping_key(names) != self._new.key_id

    async def remove_old(self, ring: KeyRing) -> None:
        names = ring.superseded(self._new.key_id)
        for first in range(0, len(names), _AT_ONCE):
            await asyncio.gather(*(self._remove(name) for name in names[first : first + _AT_ONCE]))
        for key_id in ring.tenant_keys:
            if key_id != self._new.key_id:
                await self._remove(tenant_record(key_id))

    def _has_new(self, ring: KeyRing, key_id: str) -> bool:
        wraps = ring.wraps(key_id)
        return key_id in self._unreadable or any(key.tenant_key == self._new.key_id for key in wraps)

    async def _wrap(self, wraps: Sequence[StoredSubjectKey]) -> None:
        key = wraps[0]
        at = subject_place(self._settings.prefix, key.key_id, key.subject)
        plain = next(filter(None, (self._open(each, at) for each in wraps)), None)
        if plain is None:
            self._unreadable.add(key.key_id)
            return
        wrapped = encrypt(self._cipher, plain, at)
        again = key.model_copy(update={"wrapped": wrapped, "tenant_key": self._new.key_id})
        name = subject_record(key.key_id, self._new.key_id)
        await append(self._publisher, self._topic, name, again.model_dump_json().encode())

    def _open(self, key: StoredSubjectKey, at: bytes) -> bytes | None:
        cipher = self._old.get(key.tenant_key)
        return None if cipher is None else decrypt(cipher, key.wrapped, at)

    async def _remove(self, name: bytes) -> None:
        await append(self._publisher, self._topic, name, None)
