"""The form of ciphertexts as text: `sealed:v1:KEYID:BASE64`. The module needs no package of its
own, because clients without a key hide such texts.
"""

from binascii import Error as Base64Error
from binascii import a2b_base64
from typing import Final, NamedTuple

KEY_ID_LENGTH: Final = 22
MARK: Final = "sealed:v1:"
_MARK_BYTES: Final = MARK.encode()
_KEY_ID_END: Final = len(MARK) + KEY_ID_LENGTH


class SealedText(NamedTuple):
    """A ciphertext, and the id of its key."""

    key_id: str
    ciphertext: bytes


def parse_text(text: bytes) -> SealedText | None:
    """None if this is no ciphertext."""
    if not text.startswith(_MARK_BYTES) or text[_KEY_ID_END : _KEY_ID_END + 1] != b":":
        return None
    try:
        key_id = text[len(_MARK_BYTES) : _KEY_ID_END].decode("ascii")
        return SealedText(key_id, a2b_base64(text[_KEY_ID_END + 1 :]))
    except (Base64Error, UnicodeDecodeError):
        return None
