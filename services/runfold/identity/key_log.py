"""The log of API keys: the compacted topic `{prefix}.api-keys`.

`key:{id}` has a key with the hash of its secret, and `revoked:{id}` its revocation. A new secret is
another record of the key.
"""

from typing import Final

from pydantic import BaseModel

from runfold.identity.keys import ApiKeyRing, Revocation, StoredKey
from runfold.log.compacted import CompactedTopic, append
from runfold.log.publisher import Publisher
from runfold_schemas.codec import Record
from runfold_schemas.topics import Topics

_KEY: Final = b"key:"
_REVOKED: Final = b"revoked:"


def key_topic(prefix: str) -> CompactedTopic[ApiKeyRing]:
    """Only services and operators use it, so no client that connects to the log creates it."""
    return CompactedTopic(Topics(prefix).api_keys, "API keys", ApiKeyRing, _take)


async def append_key(publisher: Publisher, topic: CompactedTopic[ApiKeyRing], key: StoredKey) -> int:
    """Returns the offset when the key is durable."""
    return await append(publisher, topic, _KEY + key.key_id.encode(), _encoded(key))


async def append_revocation(
    publisher: Publisher, topic: CompactedTopic[ApiKeyRing], key_id: str, end: Revocation
) -> int:
    """Returns the offset when the revocation is durable."""
    return await append(publisher, topic, _REVOKED + key_id.encode(), _encoded(end))


def _encoded(value: BaseModel) -> bytes:
    return value.model_dump_json().encode()


def _take(ring: ApiKeyRing, record: Record) -> None:
    name, value = record.key or b"", record.value
    if value is None:
        return
    if name.startswith(_REVOKED):
        ring.revoke(name.removeprefix(_REVOKED).decode(), Revocation.model_validate_json(value))
    elif name.startswith(_KEY):
        key = StoredKey.model_validate_json(value)
        if name == _KEY + key.key_id.encode():
            ring.put(key)
