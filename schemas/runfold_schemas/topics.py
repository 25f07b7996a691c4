"""Names of topics, and the limits of topics for records.

Kafka allows `[A-Za-z0-9._-]` and 249 bytes in the name of a topic, and treats `.` and `_` as equal
when it looks for collisions. So ids are escaped: `[A-Za-z0-9-]` stays, and any other byte becomes
`_xx`. `.` only joins the parts of a name.
"""

import hashlib
import re
from typing import Final, NamedTuple

from runfold_schemas.data import SESSION_ID_BYTES_MAX
from runfold_schemas.errors import InvalidIdError

ID_BYTES_MAX: Final = 100
"""The maximal length of an id, in UTF-8 bytes."""

TOPIC_BYTES_MAX: Final = 249
"""Kafka's limit for the name of a topic."""

RECORD_BYTES_MAX: Final = 8 * 1024 * 1024
"""`max.message.bytes` of a run's topic: the largest record batch, in bytes."""

OFFSET_MAX: Final = 2**63 - 2
"""The largest offset that a caller may name: the offset after it fits into 64 bits as well."""

DEAD_LETTER_BYTES_MAX: Final = 2 * RECORD_BYTES_MAX
"""`max.message.bytes` of the dead letters: a dead letter holds a whole record and the reason."""

DEAD_LETTER_MS: Final = 30 * 24 * 3600 * 1000
"""`retention.ms` of the dead letters. The logs keep the records themselves."""

DEAD_LETTER_SEGMENT_MS: Final = 24 * 3600 * 1000
"""`segment.ms` of the dead letters. Kafka deletes whole segments, so a letter stays a day longer at
most.
"""

PARTITIONS_DEFAULT: Final = 12
"""The number of partitions with which the catalog and the topics that runs share are created,
unless another is configured. All of them have the same number, which never changes: a key in
another partition than its own counts for nothing.
"""

PARTITIONS_MAX: Final = 1_000
"""The largest number of partitions of one topic that can be configured."""

PARK_SECONDS_MIN: Final = 10.0
"""The shortest time for which a projector tails a run after its last record or bell. Publishers
rely on it: after half of this time without a publish they ring before the next (`runfold.client`).
"""

_ESCAPED = re.compile(rb"[^A-Za-z0-9-]")
_ESCAPE_SIGN = re.compile(r"_([0-9a-f]{2})")
_BASE = re.compile(r"[1-9][0-9]{0,18}")
_HASHED: Final = "__"
"""The beginning of a hash in the place of a run. `escape` gives no such text."""

_HASH_DIGITS: Final = 32

_RUN: Final = ".run."

_SEGMENT_DOTS: Final = 4
"""The dots in the name of a segment's topic: no part of a name has any."""

_HASHED_NAME = re.compile(rf"\.{_HASHED}[0-9a-f]{{{_HASH_DIGITS}}}\.[^.]+\.{_BASE.pattern}\Z")
_PREFIX = re.compile(r"[A-Za-z0-9-]{1,32}")


def is_of_run(topic: str) -> bool:
    """Whether a topic has the form of a run's. Such topics are read committed, and all others are
    not: there, one open transaction would hold back everybody's records.
    """
    return _RUN in topic


def base_of(topic: str) -> int:
    """The offset of the run at which the topic of a segment begins. 0 for any other topic."""
    if topic.count(".") < _SEGMENT_DOTS:
        return 0
    base = topic.rpartition(".")[2]
    return int(base) if _BASE.fullmatch(base) else 0


class Partition(NamedTuple):
    """A partition of a topic. It compares equal to the drivers' own tuples of the same values."""

    topic: str
    partition: int


class RunTopic(NamedTuple):
    """One life of one run. Its log is a chain of segments; `Topics.run` names the topic of one."""

    run_id: str
    log_id: str


class SegmentTopic(NamedTuple):
    """The topic of one segment of a log. The run's offset of a record is `base` plus Kafka's."""

    run: RunTopic
    base: int


class Topics:
    """The names of all topics under one prefix, and the number of partitions of the catalog and of
    each shared topic, as far as that is known.

    Raises `InvalidIdError` for a prefix or an id that cannot be part of a name.
    """

    def __init__(self, prefix: str = "runfold", partitions: int | None = None) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise InvalidIdError(
                f"the topic prefix {prefix!r} is not 1 to 32 of A-Z, a-z, 0-9 and -",
                name="prefix",
                value=prefix,
            )
        self.prefix = prefix
        self._partitions = partitions
        self.catalog = f"{prefix}.runs"
        self.sessions = f"{prefix}.sessions"
        self.memories = f"{prefix}.memories"
        self.banks = f"{prefix}.banks"
        self.dead_letters = f"{prefix}.dead-letters"
        self.api_keys = f"{prefix}.api-keys"
        self.keys = f"{prefix}.keys"
        self.evidence = f"{prefix}.evidence"
        self.verdicts = f"{prefix}.verdicts"
        self.erasures = f"{prefix}.erasures"
        self.tenants = f"{prefix}.tenants"
        self.run_prefix = f"{prefix}.run."

    @property
    def partitions(self) -> int:
        """The number of partitions. Raises `RuntimeError` if it is unknown, because a key that is
        hashed by a wrong number gets lost.
        """
        if self._partitions is None:
            raise RuntimeError(f"the number of partitions of {self.catalog} was not read from Kafka yet")
        return self._partitions

    @property
    def shared(self) -> tuple[str, ...]:
        """The topics that runs share: sessions with shared state, memories, and banks."""
        return self.sessions, self.memories, self.banks

    def deciding(self, key: str) -> str:
        """The topic whose order decides the changes under this key."""
        kinds = {"memory": self.memories, "bank": self.banks}
        return kinds.get(key.partition(":")[0], self.sessions)

    def run(self, run_id: str, log_id: str) -> str:
        """The topic of one life of a run: that of its first segment, and the name of the whole log,
        which skips, dead letters and signatures use whatever segment a record is in.
        """
        name = f"{self.run_prefix}{escape(check_id(run_id, name='run_id'))}.{log_id}"
        if len(name) > TOPIC_BYTES_MAX:
            raise InvalidIdError(
                f"run_id {run_id!r} is too long: its topic's name would have {len(name)} bytes, Kafka"
                f" allows {TOPIC_BYTES_MAX}"
                " (each byte outside A-Z, a-z, 0-9 and - counts three times)",
                name="run_id",
                value=run_id,
            )
        return name

    def segment(self, run_id: str, log_id: str, base: int) -> str:
        """The topic of the segment of a log that begins at `base`. Where Kafka does not allow so
        long a name, a hash stands for the run: the catalog names the run.
        """
        name = self.run(run_id, log_id)
        if base == 0:
            return name
        if len(f"{name}.{base}") > TOPIC_BYTES_MAX:
            hashed = hashlib.sha256(run_id.encode()).hexdigest()[:_HASH_DIGITS]
            name = f"{self.run_prefix}{_HASHED}{hashed}.{log_id}"
        return f"{name}.{base}"

    def has(self, topic: str) -> bool:
        """Whether this is one of Runfold's topics under this prefix."""
        fixed = {value for value in vars(self).values() if isinstance(value, str)} - {self.prefix}
        return topic in fixed or self.parse_run(topic) is not None or self._is_later_segment(topic)

    def parse_segment(self, topic: str) -> SegmentTopic | None:
        """The run, the life and the base that `topic` belongs to. None if it is not the topic of a
        segment, and if a hash stands for the run.
        """
        run = self.parse_run(topic)
        if run is not None:
            return SegmentTopic(run, 0)
        name, _, base = topic.rpartition(".")
        run = self.parse_run(name) if _BASE.fullmatch(base) else None
        return SegmentTopic(run, int(base)) if run is not None else None

    def _is_later_segment(self, topic: str) -> bool:
        return self.parse_segment(topic) is not None or (
            topic.startswith(self.run_prefix + _HASHED) and _HASHED_NAME.search(topic) is not None
        )

    def parse_run(self, topic: str) -> RunTopic | None:
        """The run and the life that `topic` belongs to. None if it is not the topic of the first
        segment of a run under this prefix.
        """
        if not topic.startswith(self.run_prefix):
            return None
        escaped, _, log_id = topic.removeprefix(self.run_prefix).rpartition(".")
        # Another program may have created a topic with this prefix. A name that `run` would not
        # give is no topic of a run.
        try:
            run = RunTopic(unescape(escaped), log_id)
            return run if log_id and self.run(*run) == topic else None
        except (UnicodeError, InvalidIdError):
            return None


def check_id(value: str, *, name: str, bytes_max: int = ID_BYTES_MAX) -> str:
    """`value` itself, if it has 1 to `bytes_max` bytes of UTF-8 and no NUL. Otherwise raises
    `InvalidIdError`. `name` is the kind of id.
    """
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidIdError(
            f"{name} is not valid Unicode: {error.reason}", name=name, value=repr(value)
        ) from error
    if not 0 < size <= bytes_max:
        raise InvalidIdError(f"{name} has {size} bytes; 1 to {bytes_max} are allowed", name=name, value=value)
    if "\0" in value:
        raise InvalidIdError(f"{name} contains a NUL character", name=name, value=value)
    return value


def check_session_id(value: str) -> str:
    """`value` itself, if it has 1 to 1,000 bytes. Otherwise raises `InvalidIdError`. The limit is
    high, because a session id may join several ids.
    """
    return check_id(value, name="session_id", bytes_max=SESSION_ID_BYTES_MAX)


def escape(text: str) -> str:
    """`text` with each byte outside `[A-Za-z0-9-]` as `_xx`."""
    return _ESCAPED.sub(lambda match: b"_%02x" % match[0][0], text.encode()).decode("ascii")


def unescape(text: str) -> str:
    """The text that `escape` was given."""
    return _ESCAPE_SIGN.sub(lambda match: chr(int(match[1], 16)), text).encode("latin-1").decode()
