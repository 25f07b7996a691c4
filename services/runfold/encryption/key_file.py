"""A key in a file: lines of base64, each a key of 32 bytes. The first line wraps new keys, and all
lines unwrap. The file is read at each use, so a new first line needs no restart.
"""

from base64 import b64decode
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from runfold.encryption.cipher import KEY_BYTES, decrypt, encrypt
from runfold_schemas.errors import ConfigurationError

_AT: Final = b"runfold tenant key"


class KeyFile:
    """A `Wrapping` by the keys in a file. Raises `ConfigurationError` if there are none."""

    def __init__(self, path: str) -> None:
        self.name = path
        self._path = Path(path)
        self._keys()  # so that a wrong path shows at once

    async def wrap(self, key: bytes) -> bytes:
        return encrypt(AESGCM(self._keys()[0]), key, _AT)

    async def unwrap(self, wrapped: bytes) -> bytes:
        for key in self._keys():
            if (unwrapped := decrypt(AESGCM(key), wrapped, _AT)) is not None:
                return unwrapped
        raise ConfigurationError(f"no key in {self._path} unwraps a key of the tenant: put the key back")

    def _keys(self) -> list[bytes]:
        try:
            keys = [b64decode(line, validate=True) for line in self._path.read_text().split()]
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"the encryption key cannot be read: {error}") from error
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise ConfigurationError(f"each line of {self._path} must be base64 of {KEY_BYTES} bytes")
        return keys
