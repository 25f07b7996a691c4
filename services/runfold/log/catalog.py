"""The catalog: the topic that lists all runs and announces new events.

Each run has two keys, both in the partition of its `run_id`. `life:{run}` holds the state of the
run's life. The client writes it when it opens the run; afterwards only the owning projector does.
`bell:{run}` has no value, and any program may write it: it is a tombstone, so compaction removes
bells and never a life.

`log:{run}` says where the run's log lies since its first topic was sealed. The archiver alone
writes it, in the partition of the run. It only moves forward, and nothing that restates a life
touches it.

`archive:` says that runs of this partition may be in the archive alone. An archiver writes it
before it removes the first of them.

`skip:{topic}:{partition}:{offset}` is an operator's decision that records count for nothing. The
record lies in the partition of its run. For a shared topic it lies in the partition with the same
number. So every reader of a partition's lives also reads the skips that concern them.

Two clients may open one run at the same time. Then the first life in the partition counts. The
owner writes it again after the second, so that compaction keeps the right one.
"""

import contextlib
import re
from collections.abc import Callable
from functools import lru_cache

from aiokafka.partitioner import murmur2
from pydantic import ValidationError

from runfold.log.publisher import Outgoing
from runfold.log.segments import follows
from runfold_schemas.catalog import Bell, Life, Segments, Skip
from runfold_schemas.codec import Record
from runfold_schemas.topics import Partition, Topics

_LIFE = b"life:"
_BELL = b"bell:"
SEGMENT_KEYS = b"log:"
"""How the keys of the entries begin that say where logs lie."""
ARCHIVE_KEY = b"archive:"
"""The key of the record that says that the partition lacks archived runs."""
SKIP_KEYS = b"skip:"
"""How the key of every skip begins."""

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")


def partition_of(topics: Topics, key: str) -> int:
    """The partition of a run in the catalog, by its bare `run_id`, or of a key in another shared
    topic, by Kafka's default partitioner.
    """
    return _hash_of(key) % topics.partitions


# Kafka's hash in Python costs 5 us, as much as decoding an event, and keys repeat.
@lru_cache(maxsize=20_000)
def _hash_of(key: str) -> int:
    return int(murmur2(key.encode()) & 0x7FFFFFFF)


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows the name. A log id that another program wrote may be any text."""
    return _TOPIC_NAME.fullmatch(name) is not None


def life_key(run_id: str) -> bytes:
    """The key of a run's life. With the beginning of a run's id, the beginning of the key."""
    return _LIFE + run_id.encode()


def life_record(life: Life) -> Outgoing:
    """The catalog's record of a life."""
    return Outgoing(key=life_key(life.run_id), value=life.model_dump_json().encode())


def segments_key(run_id: str) -> bytes:
    """The key of the entry that says where a run's log lies."""
    return SEGMENT_KEYS + run_id.encode()


def segments_record(segments: Segments) -> Outgoing:
    """The catalog's record of where a run's log lies."""
    return Outgoing(key=segments_key(segments.run_id), value=segments.model_dump_json().encode())


def archive_record() -> Outgoing:
    """The record that says that its partition lacks archived runs."""
    return Outgoing(key=ARCHIVE_KEY, value=b"{}")


def bell_record(run_id: str) -> Outgoing:
    """The catalog's record of a bell."""
    return Outgoing(key=_BELL + run_id.encode(), value=None)


def skip_record(skip: Skip) -> Outgoing:
    """The catalog's record of a skip."""
    key = f"{skip.topic}:{skip.partition}:{skip.offset}".encode()
    return Outgoing(key=SKIP_KEYS + key, value=skip.model_dump_json().encode())


def skip_partition(topics: Topics, skip: Skip) -> int:
    """The partition of the catalog that holds the skip."""
    run = topics.parse_run(skip.topic)
    return skip.partition if run is None else partition_of(topics, run.run_id)


def entry_of(key: bytes | None, value: bytes | None) -> Life | Segments | Bell | Skip | None:
    """The life, segments, bell or skip in a record of the catalog. None for any other record."""
    if key is None:
        return None
    with contextlib.suppress(ValidationError, UnicodeDecodeError):
        if key.startswith(_BELL):
            return Bell(run_id=key.removeprefix(_BELL).decode())
        if key.startswith(_LIFE) and value is not None:
            return Life.model_validate_json(value)
        if key.startswith(SEGMENT_KEYS) and value is not None:
            return Segments.model_validate_json(value)
        if key.startswith(SKIP_KEYS) and value is not None:
            return Skip.model_validate_json(value)
    return None


def is_in_place(topics: Topics, entry: Life | Segments | Bell | Skip | None, at: Partition) -> bool:
    """Whether an entry counts in this partition of the catalog. A skip in another partition than
    its own is followed by nobody, because not every reader of its topic would read it.
    """
    return not isinstance(entry, Skip) or skip_partition(topics, entry) == at.partition


def is_life(record: Record) -> bool:
    """Whether the record is a life by its key. Decodes nothing."""
    return record.key is not None and record.value is not None and record.key.startswith(_LIFE)


def folded_life(current: Life | None, key: bytes, value: bytes | None) -> Life | None:
    """A run's life after a further record under its key.

    The first life counts, and a deletion is final, also if a writer that does not know of it writes
    later.
    """
    if current is not None and current.deleted:
        return current
    life = entry_of(key, value)
    if not isinstance(life, Life) or life_key(life.run_id) != key:
        return current
    return life if current is None or current.log_id == life.log_id else current


def folded_segments(current: Segments | None, key: bytes, value: bytes | None) -> Segments | None:
    """Where a run's log lies after a further record under its key."""
    segments = entry_of(key, value)
    if not isinstance(segments, Segments) or segments_key(segments.run_id) != key:
        return current
    is_next = current is None or current.log_id != segments.log_id or follows(current, segments)
    return segments if is_next else current


def naming_session(session_id: str) -> Callable[[bytes], bool]:
    """Returns whether the value of a life may name this session. Decodes nothing."""
    text = session_id.encode(errors="surrogatepass")
    # A value with escapes may contain the same text in another form.
    return lambda value: text in value or b"\\" in value
