"""Reveals the records of logs. Written for speed, because each event of a ledger passes here."""

import re
from binascii import a2b_base64
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic_core import to_json

from runfold.encryption.cipher import NONCE_BYTES
from runfold.encryption.fields import ERASED, PLACEHOLDER
from runfold.encryption.sealed_text import MARK, parse_text
from runfold_schemas.codec import Record, Row

MEMBER: Final = b',"sealed":"'
END: Final = b'"}'
HEAD_END: Final = b',"data":'
"""The end of an event's head, which is clear, and is a part of the place of its ciphertext."""

ERASED_VALUE: Final = to_json(ERASED)
_SEALED: Final = MEMBER + MARK.encode()
_PLACEHOLDER: Final = to_json(PLACEHOLDER)
_CIPHERTEXT: Final = re.compile(rb'"sealed:v1:[^"]*"')


class _Key(NamedTuple):
    """The key of some records, and the bytes before its ciphertexts."""

    mark: bytes
    cipher: AESGCM


def reveal_records(
    rows: Iterable[Row], *, event_place: bytes, cipher_of: Callable[[str], AESGCM | None]
) -> list[Record]:
    """The records with the events as they were before they were sealed. `cipher_of` returns the key
    of an id, None if the key is gone, and its errors pass through.
    """
    records: list[Record] = []
    add, find, make = records.append, bytes.find, tuple.__new__
    decrypt: Callable[[bytes, bytes, bytes], bytes] | None = None
    mark, mark_length = b"", 0
    for row in rows:
        offset, log_time, key, headers, value = row
        if value is None:
            add(make(Record, row))
            continue
        if decrypt is not None:
            # Most records have the key of the record before.
            head_end = find(value, HEAD_END)
            begin = find(value, mark, head_end)
            if begin > 0:
                head = value[:head_end]
                try:
                    text = a2b_base64(value[begin + mark_length : -2])
                    plain = decrypt(text[:NONCE_BYTES], text[NONCE_BYTES:], event_place + head)
                except (InvalidTag, ValueError):
                    pass
                else:
                    add(make(Record, (offset, log_time, key, headers, head + plain)))
                    continue
        revealed, used = _reveal(value, event_place, cipher_of)
        add(make(Record, (offset, log_time, key, headers, revealed)))
        if used is not None:
            mark, mark_length, decrypt = used.mark, len(used.mark), used.cipher.decrypt
    return records


def key_of(value: bytes) -> str | None:
    """The id of the key that a sealed event needs. None if the value is no sealed event."""
    begin = _ciphertext_at(value)
    sealed = parse_text(value[begin:-2]) if begin else None
    return None if sealed is None else sealed.key_id


def _ciphertext_at(value: bytes) -> int:
    """Where the ciphertext of an event begins; 0 if there is none."""
    # A ciphertext has no quotes.
    begin = value.rfind(b'"', 0, -2) + 1
    return begin if value.endswith(END) and value.startswith(_SEALED, begin - len(MEMBER)) else 0


def _reveal(
    value: bytes, event_place: bytes, cipher_of: Callable[[str], AESGCM | None]
) -> tuple[bytes, _Key | None]:
    """An event as it was before it was sealed, and its key if that has opened it."""
    begin, head_end = _ciphertext_at(value), value.find(HEAD_END)
    sealed = parse_text(value[begin:-2]) if begin and head_end >= 0 else None
    if sealed is None:
        return value, None
    before, head = value[: begin - len(MEMBER)], value[:head_end]
    cipher = cipher_of(sealed.key_id)
    if cipher is None:
        return _erased(before + b"}"), None
    nonce, ciphertext = sealed.ciphertext[:NONCE_BYTES], sealed.ciphertext[NONCE_BYTES:]
    try:
        plain = cipher.decrypt(nonce, ciphertext, event_place + head)
    except (InvalidTag, ValueError):
        return value, None
    return head + plain, _Key(_SEALED + sealed.key_id.encode() + b":", cipher)


def _erased(value: bytes) -> bytes:
    """The skeleton of an event whose key is gone."""
    return _CIPHERTEXT.sub(ERASED_VALUE, value.replace(_PLACEHOLDER, ERASED_VALUE))
