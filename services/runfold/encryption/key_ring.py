"""The log of keys: the compacted topic `{prefix}.keys`, with one partition.

`tenant:{id}` has a key of the tenant, wrapped by the key that the operator configured.
`subject:{id}:{tenant id}` has a key of a subject, wrapped by that key of the tenant. During a
rotation a key has two such records. `destroyed:{id}` marks a key that was destroyed, and
tombstones remove its records. So a rotation that wraps a key just then does not bring it back.

Several processes may make a key for one subject at the same time. Of these keys all stay readable,
and the first in the topic seals.
"""

from collections.abc import Mapping
from itertools import count
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import BaseModel, ConfigDict

from runfold.encryption.cipher import KEY_BYTES, place
from runfold.log.compacted import CompactedTopic
from runfold_schemas.codec import Record
from runfold_schemas.errors import ConfigurationError
from runfold_schemas.topics import Topics

_TENANT: Final = b"tenant:"
_SUBJECT: Final = b"subject:"
_MARK: Final = b"destroyed:"

_numbers = count(1)

SEGMENT_RECORD: Final = b"segment"
"""The key of records that only close a segment."""

COMPACTION_SECONDS: Final = 60
"""The longest time before compaction may take a destroyed key."""

_CONFIG: Final = {
    "max.compaction.lag.ms": str(COMPACTION_SECONDS * 1000),
    "min.compaction.lag.ms": "0",
    # Only closed segments are compacted.
    "segment.ms": str(COMPACTION_SECONDS * 1000),
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(24 * 3600 * 1000),
}


class _StoredKey(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    key_id: str
    wrapped: bytes


class TenantKey(_StoredKey):
    """A key of the tenant. Of several, that of the highest `generation` wraps new keys, and of
    equals the first. A key that cannot be unwrapped does not count.
    """

    generation: int = 0
    wrapped_by: str = ""
    """The name of the operator's key, for people."""


class StoredSubjectKey(_StoredKey):
    """A key of a subject. `subject` is a keyed hash of the subject's name."""

    subject: str
    tenant_key: str
    """The id of the key that wraps this one."""


class DestroyedKey(BaseModel):
    """The mark of a destroyed key. It has no fields."""


class KeyRing:
    """The keys as the topic has them."""

    def __init__(self) -> None:
        self.tenant_keys: dict[str, TenantKey] = {}
        self.number = next(_numbers)
        """No other ring of this process has it."""
        self.destroyed = 0
        """The number of keys that were destroyed while the topic was followed."""
        # By the id of a key, and by the names of its records.
        self._keys: dict[str, dict[bytes, StoredSubjectKey]] = {}
        self._of_subjects: dict[str, list[str]] = {}
        self._marked: set[str] = set()

    def wrapping_key(self, names: Mapping[str, bytes]) -> str | None:
        """The id of the key that wraps new keys. `names` has the secrets of the keys that were
        unwrapped: see `tenant_secrets`. All keys of a tenant have the first one's.
        """
        known = [key for key in self.tenant_keys.values() if key.key_id in names]
        same = [key for key in known if names[key.key_id] == names[known[0].key_id]]
        return max(same, key=lambda key: key.generation).key_id if same else None

    @property
    def key_ids(self) -> list[str]:
        """The ids of all keys of subjects, in the order of the topic."""
        return [key_id for key_id in self._keys if key_id not in self._marked]

    def of_subject(self, subject: str) -> list[str]:
        """The ids of the keys of a subject, in the order of the topic."""
        return [key_id for key_id in self._of_subjects.get(subject, ()) if key_id not in self._marked]

    def wraps(self, key_id: str) -> list[StoredSubjectKey]:
        """The key as the keys of the tenant wrap it, one usually. None if it was destroyed."""
        keys = self._keys.get(key_id)
        return [] if keys is None or key_id in self._marked else list(keys.values())

    def names(self, key_id: str) -> list[bytes]:
        """The names of a key's records, also those of a destroyed key."""
        return list(self._keys.get(key_id, ()))

    def leftovers(self) -> list[bytes]:
        """The names of records that came after their key was destroyed: a rotation was at work."""
        return [name for key_id in self._marked for name in self.names(key_id)]

    def superseded(self, tenant_key: str) -> list[bytes]:
        """The names of records that no reader needs beside those that this key wraps."""
        return self.leftovers() + [
            name
            for key_id in self.key_ids
            if any(key.tenant_key == tenant_key for key in self.wraps(key_id))
            for name, key in self._keys[key_id].items()
            if key.tenant_key != tenant_key
        ]

    def put(self, name: bytes, key: StoredSubjectKey) -> None:
        if key.key_id not in self._keys:
            self._of_subjects.setdefault(key.subject, []).append(key.key_id)
        self._keys.setdefault(key.key_id, {})[name] = key

    def mark(self, key_id: str) -> None:
        """Notes for ever that a key is destroyed."""
        self.destroyed += key_id in self._keys and key_id not in self._marked
        self._marked.add(key_id)

    def remove(self, key_id: str, name: bytes) -> None:
        keys = self._keys.get(key_id, {})
        key = keys.pop(name, None)
        if key is None or keys:
            return
        del self._keys[key_id]
        self.destroyed += key_id not in self._marked
        ids = self._of_subjects[key.subject]
        ids.remove(key_id)
        if not ids:
            del self._of_subjects[key.subject]

    def remove_tenant_key(self, key_id: str) -> None:
        self.destroyed += self.tenant_keys.pop(key_id, None) is not None


def keys_topic(topics: Topics) -> CompactedTopic[KeyRing]:
    return CompactedTopic(topics.keys, "keys of subjects", KeyRing, take_record, _CONFIG)


def subject_record(key_id: str, tenant_key: str) -> bytes:
    """The name of the record with a subject's key as a key of the tenant wraps it."""
    return _SUBJECT + f"{key_id}:{tenant_key}".encode()


def subject_place(prefix: str, key_id: str, subject: str) -> bytes:
    """The associated data of a subject's wrapped key."""
    return place(prefix, "key", key_id, subject)


def tenant_secrets(unwrapped: bytes) -> tuple[AESGCM, bytes]:
    """What a key of the tenant consists of: the cipher, and the secret of the subjects' names.
    Raises `ConfigurationError`.
    """
    if len(unwrapped) != 2 * KEY_BYTES:
        raise ConfigurationError("the encryption key unwraps a key of the tenant to something else")
    return AESGCM(unwrapped[:KEY_BYTES]), unwrapped[KEY_BYTES:]


def mark_record(key_id: str) -> bytes:
    """The name of the record that marks a destroyed key."""
    return _MARK + key_id.encode()


def tenant_record(key_id: str) -> bytes:
    """The name of the record with a tenant's key."""
    return _TENANT + key_id.encode()


def take_record(ring: KeyRing, record: Record) -> None:
    """Folds a record into the ring. Raises `ValueError` for one that cannot be decoded."""
    name, value = record.key or b"", record.value
    kind, _, rest = name.partition(b":")
    key_id = rest.partition(b":")[0].decode()
    if kind == b"subject":
        if value is None:
            ring.remove(key_id, name)
        elif (key := StoredSubjectKey.model_validate_json(value)).key_id == key_id:
            ring.put(name, key)
    elif kind == b"tenant":
        if value is None:
            ring.remove_tenant_key(key_id)
        elif (tenant_key := TenantKey.model_validate_json(value)).key_id == key_id:
            ring.tenant_keys[key_id] = tenant_key
    elif kind == b"destroyed" and value is not None:
        ring.mark(key_id)
