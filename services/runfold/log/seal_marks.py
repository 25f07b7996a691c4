"""The records that an archiver appends to a topic that it seals. Readers pass over them.

A sealed topic has `max.message.bytes=78`, which no event has room in. A probe shows that the topic
is sealed: the broker refuses it. The mark has room, and is the last record of a sealed topic. So a
reader that comes to the mark looks up where the log goes on, and any other reader looks up nothing.
"""

from typing import Final

from runfold.log.moving import Outgoing
from runfold_schemas.codec import Record

SEALED_BYTES: Final = 78
"""`max.message.bytes` of a sealed topic: the size of the marker of a transaction, which has to end
if it is open while the topic is sealed.
"""

_KEY: Final = b"sealed"
"""The key of both, which have no value."""

SEAL_PROBE: Final = Outgoing(_KEY, None, (("probe", bytes(64)),))
"""A record that a sealed topic refuses."""

SEAL_MARK: Final = Outgoing(_KEY, None)
"""A record that a sealed topic takes: 74 bytes as a batch."""


def is_seal(record: Record) -> bool:
    """Whether a record is a probe or a mark."""
    return record.value is None and record.key == _KEY
