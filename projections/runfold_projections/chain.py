"""The hash chain of a log: a few digests that stand for all of its records and their order.

A record's digest is the SHA-256 of its bytes as a page has them: offset, time, key, headers and
value. The chain's state is the link before, followed by the digests of the records since. After 16
records, the SHA-256 of the state is the next link. So a proof about one record has digests of the
records behind it, and not their contents. Outcomes play no part, because the chain is of the log:
duplicates, rejected and undecodable records are in it.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

_DIGEST_BYTES: Final = 32

_FULL: Final = 17 * _DIGEST_BYTES
"""The size of a state that becomes a link. A hash of each single record's link would take as long
as the digest of the record.
"""

START: Final = bytes(_DIGEST_BYTES)
"""The chain of a log without records."""


def extend(state: bytes, records: Iterable[bytes]) -> bytes:
    """The chain after these further records of the log."""
    return extend_by_digests(state, [sha256(record_bytes).digest() for record_bytes in records])


def extend_by_digests(state: bytes, digests: Iterable[bytes]) -> bytes:
    """The chain after further records with these digests."""
    state = b"".join([state, *digests])
    link, begin = state[:_DIGEST_BYTES], _DIGEST_BYTES
    while len(state) - begin >= _FULL - _DIGEST_BYTES:
        end = begin + _FULL - _DIGEST_BYTES
        link, begin = sha256(link + state[begin:end]).digest(), end
    return link + state[begin:]


def digest_of(record_bytes: bytes) -> bytes:
    """The digest of a record."""
    return sha256(record_bytes).digest()


def head_of(state: bytes) -> bytes:
    """The one digest that stands for the whole chain."""
    return sha256(state).digest()
