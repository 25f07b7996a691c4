"""The keys of subjects as this process has them: made, found, destroyed.

    operator's key (file, Vault, KMS) -- wraps --> tenant's key -- wraps --> key of a subject

The topic of keys is followed, so a destroyed key is dropped at once. The unwrapped keys of the
tenant are kept for `encryption_cache_seconds` while the operator's key cannot be reached.
"""

import asyncio
import hashlib
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Self

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import BaseModel

from runfold.encryption.cipher import decrypt, encrypt, new_key, new_key_id
from runfold.encryption.key_ring import (
    COMPACTION_SECONDS,
    SEGMENT_RECORD,
    DestroyedKey,
    KeyRing,
    StoredSubjectKey,
    TenantKey,
    keys_topic,
    mark_record,
    subject_place,
    subject_record,
    take_record,
    tenant_record,
)
from runfold.encryption.tenant_keys import SERVER, TenantKeys, UnwrappedKey
from runfold.encryption.wrapping import Wrapping
from runfold.log.compacted import Followed, append
from runfold.log.leaders import Leaders
from runfold.log.publisher import Publisher
from runfold.log.reader import end_offset, read
from runfold.log.settings import LogSettings
from runfold_schemas.errors import RunfoldError, UnavailableError
from runfold_schemas.topics import Topics

CACHED_SECONDS: Final = 60.0
"""The longest time for which a process without Kafka uses a key that others may have destroyed."""

_CIPHERS_MAX: Final = 10_000
_GONE_MAX: Final = 100_000
_RETRY_SECONDS: Final = 5.0
_READY_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.02

_log = logging.getLogger(__name__)


class UnknownKeyError(Exception):
    """The topic of keys, as far as it was read, has no key of this id."""

    def __init__(self, key_id: str) -> None:
        super().__init__(key_id)
        self.key_id = key_id


class SubjectKey(NamedTuple):
    """The key that seals for a subject."""

    key_id: str
    cipher: AESGCM


class SubjectKeys:
    """Use it as an async context manager. It connects in the background. Until then, and while
    the operator's key cannot be reached, its verbs raise `UnavailableError`.
    """

    def __init__(
        self,
        settings: LogSettings,
        wrapping: Wrapping,
        publisher: Publisher | None = None,
        *,
        leaders: Leaders | None = None,
    ) -> None:
        """Without a publisher, no key can be made or destroyed. With `leaders`, it uses their
        client for Kafka.
        """
        self._settings = settings
        self._wrapping = wrapping
        self._leaders = leaders
        self._publisher = publisher
        self._topic = keys_topic(Topics(settings.prefix))
        self._followed = Followed(settings, self._topic, creates=publisher is not None, leaders=leaders)
        self._tenants = TenantKeys(wrapping, cache_seconds=settings.encryption_cache_seconds)
        self._ciphers: OrderedDict[str, AESGCM] = OrderedDict()
        self._sealing: OrderedDict[str, SubjectKey] = OrderedDict()
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._has_read_all = False
        self._making = asyncio.Lock()
        self._wake = asyncio.Event()
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._followed)
        self._tasks = [asyncio.create_task(work()) for work in (self._keep_unwrapped, self._watch)]
        if self._publisher is not None:
            self._tasks.append(asyncio.create_task(self._close_segments()))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    @property
    def prefix(self) -> str:
        return self._settings.prefix

    @property
    def epoch(self) -> tuple[int, int]:
        """A value that never comes again after a destruction: what was made of clear text before is
        to be dropped.
        """
        if not self._is_read():
            return 0, 0
        ring = self._followed.state
        return ring.number, ring.destroyed

    async def ready(self) -> None:
        """Waits some seconds for the first read of the topic, and for keys of the tenant that are
        new or could not be unwrapped for too long.
        """
        until = time.monotonic() + _READY_SECONDS
        while time.monotonic() < until and not self._is_ready():  # noqa: ASYNC110  # two conditions
            await asyncio.sleep(_LOOK_SECONDS)

    def cipher(self, key_id: str) -> AESGCM | None:
        """The key of this id, None if it was destroyed or lost. Raises `UnknownKeyError` if that
        has to be found out: see `all_read`.
        """
        wraps = self._followed.state.wraps(key_id)
        if self._followed.silent_seconds > CACHED_SECONDS:
            self._ciphers.clear()
            raise UnavailableError("Kafka", reason="keys may have been destroyed since it answered")
        if not wraps:
            self._ciphers.pop(key_id, None)
            if key_id in self._gone:
                return None
            if not self._has_read_all:
                raise UnknownKeyError(key_id)
            self._gone[key_id] = None
            while len(self._gone) > _GONE_MAX:
                self._gone.popitem(last=False)
            return None
        held = [key.tenant_key for key in wraps if key.tenant_key in self._followed.state.tenant_keys]
        if not held:
            # The topic has a key of the tenant before all that it wraps, so the key is lost.
            self._ciphers.pop(key_id, None)
            return None
        tenant = self._usable(held)
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            unwrapped = self._unwrapped(tenant, wraps)
            if unwrapped is None:
                return None
            cipher = self._ciphers[key_id] = AESGCM(unwrapped)
            while len(self._ciphers) > _CIPHERS_MAX:
                self._ciphers.popitem(last=False)
        return cipher

    def _unwrapped(self, tenant: UnwrappedKey, wraps: Iterable[StoredSubjectKey]) -> bytes | None:
        key = next(key for key in wraps if key.tenant_key == tenant.key_id)
        return decrypt(tenant.cipher, key.wrapped, subject_place(self.prefix, key.key_id, key.subject))

    async def all_read(self) -> AbstractContextManager[None]:
        """Reads the topic to its end. In the context, keys that are not there count as destroyed:
        one look for all of them. The context must not wait for anything.
        """
        await self._catch_up()
        return self._reading_all()

    @contextmanager
    def _reading_all(self) -> Iterator[None]:
        self._has_read_all = True
        try:
            yield
        finally:
            self._has_read_all = False

    async def of(self, subject: str) -> SubjectKey:
        """The key that seals for a subject, made at its first use. Raises `UnavailableError`."""
        known = self._sealing.get(subject)
        # A key that was destroyed elsewhere, or is away, takes the longer way.
        with suppress(UnknownKeyError, UnavailableError):
            if known is not None and known.key_id in self._ciphers and self.cipher(known.key_id):
                return known
        await self.ready()
        async with self._making:
            tenant = await self._current_tenant()
            name = _name(tenant, subject)
            if (key := self._first_usable(name)) is None:
                await self._make(name)
                key = self._first_usable(name)
            if key is None:
                raise UnavailableError(SERVER, reason="the key of a subject is gone again")
            self._sealing[subject] = key
            while len(self._sealing) > _CIPHERS_MAX:
                self._sealing.popitem(last=False)
            return key

    def _first_usable(self, name: str) -> SubjectKey | None:
        """The first key of a subject that can be unwrapped."""
        ring = self._followed.state
        for key_id in ring.of_subject(name):
            if all(self._tenants.is_passed_over(key.tenant_key) for key in ring.wraps(key_id)):
                continue
            if (cipher := self.cipher(key_id)) is not None:
                return SubjectKey(key_id, cipher)
        return None

    async def secret(self, subject: str) -> bytes:
        """The secret for ids that are made of the subject's content. It is gone with the key. Every
        process has the same. Raises `UnavailableError`.
        """
        wraps = self._followed.state.wraps((await self.of(subject)).key_id)
        tenant = self._usable(key.tenant_key for key in wraps)
        if (unwrapped := self._unwrapped(tenant, wraps)) is None:
            raise UnavailableError(SERVER, reason="the key of a subject is gone again")
        return hmac.digest(unwrapped, b"ids of content", "sha256")

    async def destroy(self, *subjects: str) -> int:
        """Destroys the keys of subjects. Returns their number when that is durable, and when this
        process has dropped them.
        """
        await self.ready()
        await self._catch_up()
        async with self._making:
            if (tenant := await self._known_tenant()) is None:
                return 0
            ring = self._followed.state
            keys = [key for subject in subjects for key in ring.of_subject(_name(tenant, subject))]
            # The marks come first: they count also if a rotation wraps a key at the same time.
            offsets = [await self._append(mark_record(key_id), DestroyedKey()) for key_id in keys]
            names = [name for key_id in keys for name in ring.names(key_id)]
            offsets += [await self._append(name, None) for name in names]
            for offset in offsets[-1:]:
                await self._wait_for(offset)
            return len(keys)

    async def remains(self, *subjects: str) -> bool:
        """Whether a key of these subjects is still in the topic: in use, or destroyed and not yet
        compacted. Reads the whole topic.
        """
        await self._catch_up()
        if (tenant := await self._known_tenant()) is None:
            return False
        names = [_name(tenant, subject) for subject in subjects]
        async for records in read(self._settings, self._topic.name, leaders=self._leaders):
            for record in records:
                ring = KeyRing()
                take_record(ring, record)
                if any(map(ring.of_subject, names)):
                    return True
        return False

    def final_by(self, now: datetime) -> datetime:
        """When compaction has taken the keys that are destroyed at `now`, if a process that seals
        is up: the segment closes, and the cleaner of the broker comes by.
        """
        return now + timedelta(seconds=5 * COMPACTION_SECONDS)

    async def _make(self, name: str) -> None:
        """Makes a key. A rotation that has begun before the key's record does not look for it, so
        the key is wrapped again by the tenant's new key.
        """
        key_id, key = new_key_id(), new_key()
        wrapped_by = ""
        while (tenant := await self._current_tenant()).key_id != wrapped_by:
            wrapped = encrypt(tenant.cipher, key, subject_place(self.prefix, key_id, name))
            stored = StoredSubjectKey(key_id=key_id, wrapped=wrapped, subject=name, tenant_key=tenant.key_id)
            record = subject_record(key_id, tenant.key_id)
            await self._wait_for(await self._append(record, stored))
            wrapped_by = tenant.key_id

    async def _current_tenant(self) -> UnwrappedKey:
        """The tenant's key that wraps new keys, made at its first use."""
        if not self._followed.state.tenant_keys:
            await self._catch_up()
        if not self._followed.state.tenant_keys:
            wrapped = await self._wrapping.wrap(new_key() + new_key())
            key = TenantKey(key_id=new_key_id(), wrapped=wrapped, wrapped_by=self._wrapping.name)
            await self._wait_for(await self._append(tenant_record(key.key_id), key))
        tenant = await self._known_tenant()
        assert tenant is not None
        return tenant

    async def _known_tenant(self) -> UnwrappedKey | None:
        return await self._tenants.current(self._followed.state)

    def _usable(self, key_ids: Iterable[str]) -> UnwrappedKey:
        """One of these keys. Raises `UnavailableError` if none was unwrapped in time."""
        try:
            return self._tenants.usable(key_ids)
        except UnavailableError:
            self._wake.set()
            raise

    async def _keep_unwrapped(self) -> None:
        """Unwraps the keys of the tenant before they are too old, and again after a failure. Drops
        keys that may be used no more.
        """
        while True:
            succeeded = not self._is_read() or await self._tenants.refresh(self._followed.state)
            self._drop_unusable()
            pause = min(_RETRY_SECONDS, self._settings.encryption_cache_seconds / 4)
            self._wake.clear()
            try:
                async with asyncio.timeout(pause):
                    await (self._wake.wait() if succeeded else asyncio.sleep(pause))
            except TimeoutError:
                pass

    async def _watch(self) -> None:
        """Unwraps the tenant's keys at once when the topic is read, and when it has new ones. Drops
        the keys that were destroyed.
        """
        epoch = self.epoch
        async for ring in self._followed.changes():
            if self.epoch != epoch:
                epoch = self.epoch
                self._drop_destroyed(ring)
            if self._tenants.keep(ring):
                self._wake.set()

    def _drop_destroyed(self, ring: KeyRing) -> None:
        for key_id in [key_id for key_id in self._ciphers if not ring.wraps(key_id)]:
            del self._ciphers[key_id]
        for subject in [subject for subject, key in self._sealing.items() if not ring.wraps(key.key_id)]:
            del self._sealing[subject]

    def _drop_unusable(self) -> None:
        """Drops the keys of the tenant that are too old, and without them the keys of subjects: all
        of these, if destroyed keys cannot be told from others any more.
        """
        if not self._is_read():
            return
        self._tenants.keep(self._followed.state)
        if self._followed.silent_seconds > CACHED_SECONDS or not self._tenants.has_any:
            self._ciphers.clear()
            self._sealing.clear()

    async def _close_segments(self) -> None:
        """Appends a record some time after a destruction. Kafka compacts closed segments only, and
        closes a segment when a record comes after its time.
        """
        closed = 0
        while True:
            await asyncio.sleep(COMPACTION_SECONDS)
            await self._remove_leftovers()
            destroyed = self._followed.state.destroyed if self._is_read() else closed
            if destroyed != closed:
                # The segment must be old enough when the record comes.
                await asyncio.sleep(COMPACTION_SECONDS)
                try:
                    await self._append(SEGMENT_RECORD, None)
                    closed = destroyed
                except RunfoldError as error:
                    _log.warning("the segment of destroyed keys is not closed yet: %s", error)

    async def _remove_leftovers(self) -> None:
        """Removes keys that a rotation wrapped while they were destroyed."""
        try:
            for name in self._followed.state.leftovers():
                await self._append(name, None)
        except RunfoldError as error:
            _log.warning("records of destroyed keys are not removed yet: %s", error)

    def _is_read(self) -> bool:
        try:
            return self._followed.state is not None
        except RunfoldError:
            return False

    def _is_ready(self) -> bool:
        return self._is_read() and self._tenants.is_ready(self._followed.state)

    async def _catch_up(self) -> None:
        end = await end_offset(self._settings, self._topic.name, self._leaders)
        if end:
            await self._wait_for(end - 1)

    async def _wait_for(self, offset: int) -> None:
        timeout_seconds = self._settings.publish_timeout_seconds
        await self._followed.wait_for(offset, timeout_seconds=timeout_seconds)
        if self._followed.next_offset <= offset:
            raise UnavailableError("Kafka", reason=f"{self._topic.name} was not read to offset {offset}")

    async def _append(self, name: bytes, value: BaseModel | None) -> int:
        if self._publisher is None:
            raise RuntimeError("these keys are for reading")
        encoded = None if value is None else value.model_dump_json().encode()
        return await append(self._publisher, self._topic, name, encoded)


def _name(tenant: UnwrappedKey, subject: str) -> str:
    """The name of a subject in the topic, which does not show the user's id."""
    return hmac.new(tenant.names, subject.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()[:32]
