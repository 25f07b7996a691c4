"""The file of signing keys: PEM blocks of Ed25519 keys.

The first private key signs. All keys of the file are trusted, so that trees from before a rotation
still count. A file with public keys alone is enough to verify.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from runfold.private_files import write_private
from runfold_schemas.errors import ConfigurationError

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", re.DOTALL)


class SigningKeys(NamedTuple):
    signing: Ed25519PrivateKey | None
    """The key that signs. None if the file has public keys alone."""
    trusted: tuple[str, ...]
    """The public keys in hexadecimal digits, the signing one first."""


def read_keys(path: Path) -> SigningKeys:
    """The keys of a file. Raises `ConfigurationError`."""
    try:
        blocks = [match[0] for match in _BLOCK.finditer(path.read_text())]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the signing keys cannot be read from {path}: {error}") from error
    if not blocks:
        raise ConfigurationError(f"{path} has no PEM block: `runfold evidence generate {path}` makes a key")
    keys = [_key_of(block, path) for block in blocks]
    private = [key for key in keys if isinstance(key, Ed25519PrivateKey)]
    public = [_public_of(key) for key in (*private[:1], *keys)]
    return SigningKeys(private[0] if private else None, tuple(dict.fromkeys(map(_hex_of, public))))


def add_key(path: Path) -> str:
    """Puts a new signing key before the keys of the file, which may not exist yet. Of a signing key
    before, the file keeps the public half. Returns the new public key in hexadecimal digits. Raises
    `ConfigurationError`.
    """
    before = read_keys(path).trusted if path.exists() else ()
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = [Ed25519PublicKey.from_public_bytes(bytes.fromhex(trusted)) for trusted in before]
    write_private(path, private + b"".join(map(_pem_of, public)), what="the signing keys")
    return _hex_of(key.public_key())


def public_pem(trusted: str) -> str:
    """A public key as a PEM block."""
    return _pem_of(Ed25519PublicKey.from_public_bytes(bytes.fromhex(trusted))).decode()


def _key_of(block: str, path: Path) -> Ed25519PrivateKey | Ed25519PublicKey:
    try:
        key = (
            load_pem_private_key(block.encode(), password=None)
            if "PRIVATE" in block.partition("\n")[0]
            else load_pem_public_key(block.encode())
        )
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(f"{path} has a block that is no key: {error}") from error
    if not isinstance(key, Ed25519PrivateKey | Ed25519PublicKey):
        raise ConfigurationError(f"{path} has a key that is not of Ed25519")
    return key


def _public_of(key: Ed25519PrivateKey | Ed25519PublicKey) -> Ed25519PublicKey:
    return key.public_key() if isinstance(key, Ed25519PrivateKey) else key


def _hex_of(key: Ed25519PublicKey) -> str:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def _pem_of(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
