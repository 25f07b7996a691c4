"""The keys by which publishers show that an event may have effects beyond its run.

Kafka does not record who wrote a record, so a publisher with a key adds a header with a message
authentication code (MAC): HMAC-SHA256 over the topic, which names the run and its log, and over the
digest of the value, which has the id of the event. A copy in another run is worth nothing. The same
record twice in its own log is a duplicate, which has no effect.

A line of the file is the id of a key and the key in base64. The first key signs, all count.
"""

import base64
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

from runfold.private_files import write_private
from runfold_projections.state import changes_others
from runfold_schemas.codec import Record
from runfold_schemas.errors import ConfigurationError
from runfold_schemas.events import AnyEvent

HEADER: Final = "rf_mac"
"""The header of a record with a MAC: the id of the key, a colon, and the MAC in base64."""

_CONTEXT: Final = b"runfold effect 1"
"""A MAC of this key for another purpose begins with other bytes."""

_KEY_BYTES: Final = 32

_KEY_ID = re.compile(r"[A-Za-z0-9-]{1,32}")

_COMMENT: Final = "# Keys of effects. The first one signs, all count: see docs/access.md.\n"


@dataclass(frozen=True, slots=True)
class EffectKeys:
    """The keys of a file by their ids, the signing one first."""

    keys: Mapping[str, bytes] = field(repr=False)

    @property
    def signing(self) -> str:
        """The id of the key that signs."""
        return next(iter(self.keys))

    def header(self, topic: str, value: bytes) -> tuple[str, bytes]:
        """The header of a record with this value in the topic of a run."""
        mac = base64.b64encode(_mac(self.keys[self.signing], topic, value))
        return HEADER, b"%b:%b" % (self.signing.encode(), mac)

    def is_signed(self, topic: str, record: Record) -> bool:
        """Whether the record of a run's topic has a header by one of the keys."""
        header = dict(record.headers).get(HEADER) or b""
        key_id, _, mac = header.partition(b":")
        key = self.keys.get(key_id.decode(errors="replace"))
        if key is None or record.value is None:
            return False
        return hmac.compare_digest(base64.b64encode(_mac(key, topic, record.value)), mac)


EffectSigner = Callable[[AnyEvent, bytes], list[tuple[str, bytes]]]
"""Returns the further headers of an event with this value, in the topic of one run."""


def effect_signer_of(keys: EffectKeys | None, topic: str) -> EffectSigner | None:
    """The signer for the topic of a run. None without keys."""
    return None if keys is None else partial(_headers, keys, topic)


def may_change_others(keys: EffectKeys | None, topic: str, record: Record) -> bool:
    """Whether a record of a run's topic may change what runs share. Without keys, each one may."""
    return keys is None or keys.is_signed(topic, record)


def read_effect_keys(path: Path) -> EffectKeys:
    """The keys of a file. Raises `ConfigurationError`."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the keys of effects cannot be read from {path}: {error}") from error
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        key_id, _, text = line.strip().partition(" ")
        key = _key_of(text)
        if not _KEY_ID.fullmatch(key_id) or key is None or key_id in keys:
            # The line may have a key, so the message does not quote the line.
            raise ConfigurationError(
                f"{path} has no key in line {number}: a line is an id of A-Z, a-z, 0-9 and -, which no other"
                f" line has, and {_KEY_BYTES} bytes in base64"
            )
        keys[key_id] = key
    if not keys:
        raise ConfigurationError(f"{path} has no key: `runfold effects generate {path}` makes one")
    return EffectKeys(keys)


def add_effect_key(path: Path) -> str:
    """Puts a new key before the keys of the file, which may not exist yet. Returns the new key's
    id. Raises `ConfigurationError`.
    """
    before = read_effect_keys(path).keys if path.exists() else {}
    key_id = secrets.token_hex(4)
    lines = [_COMMENT]
    for each, key in {key_id: secrets.token_bytes(_KEY_BYTES), **before}.items():
        lines.append(f"{each} {base64.b64encode(key).decode()}\n")
    write_private(path, "".join(lines).encode(), what="the keys of effects")
    return key_id


def _headers(keys: EffectKeys, topic: str, event: AnyEvent, value: bytes) -> list[tuple[str, bytes]]:
    return [keys.header(topic, value)] if changes_others(event) else []


def _key_of(text: str) -> bytes | None:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except ValueError:
        return None
    return key if len(key) == _KEY_BYTES else None


def _mac(key: bytes, topic: str, value: bytes) -> bytes:
    message = b"\0".join((_CONTEXT, topic.encode(), sha256(value).digest()))
    return hmac.digest(key, message, "sha256")
