"""Ciphertexts. `sealed_text.py` has their form as text.

The cipher is AES-256-GCM with a random nonce of 12 bytes in front of the ciphertext. A text is
bound to its place by associated data: a ciphertext at another place does not open.
"""

import os
from base64 import urlsafe_b64encode
from binascii import b2a_base64
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from runfold.encryption.sealed_text import KEY_ID_LENGTH, MARK

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12


def new_key() -> bytes:
    return os.urandom(KEY_BYTES)


def new_key_id() -> str:
    return urlsafe_b64encode(os.urandom(16))[:KEY_ID_LENGTH].decode()


def place(*parts: str) -> bytes:
    """The associated data of a place. No part contains a NUL, except perhaps the last."""
    return "\0".join(parts).encode(errors="surrogatepass")


def encrypt(cipher: AESGCM, plain: bytes, at: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, plain, at)


def decrypt(cipher: AESGCM, ciphertext: bytes, at: bytes) -> bytes | None:
    """None if the ciphertext was changed, or belongs to another place or key."""
    try:
        return cipher.decrypt(ciphertext[:NONCE_BYTES], ciphertext[NONCE_BYTES:], at)
    except (InvalidTag, ValueError):
        return None


def seal_text(cipher: AESGCM, key_id: str, plain: bytes, at: bytes) -> str:
    return f"{MARK}{key_id}:{b2a_base64(encrypt(cipher, plain, at), newline=False).decode()}"
