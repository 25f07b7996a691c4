"""Names of topics, and the limits of topics for records.

Kafka allows `[A-Za-z0-9._-]` and 249 bytes in the name of a topic, and treats `.` and `_` as equal
when it looks for collisions. So ids are escaped: `[A-Za-z0-9-]` stays, and any other byte becomes
`_xx`. `.` only joins the parts of a name.
"""

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

CATALOG_PARTITIONS: Final = 12
"""The number of partitions of the catalog and of each topic that runs share. The projector that
owns a partition of the catalog also folds the partitions of the same number of the shared topics.
"""

PARK_SECONDS_MIN: Final = 10.0
"""The shortest time for which a projector tails a run after its last record or bell. Publishers
rely on it: after half of this time without a publish they ring before the next (`runfold.client`).
"""

_ESCAPED = re.compile(rb"[^A-Za-z0-9-]")
_ESCAPE_SIGN = re.compile(r"_([0-9a-f]{2})")
_PREFIX = re.compile(r"[A-Za-z0-9-]{1,32}")


class Partition(NamedTuple):
    """A partition of a topic. It compares equal to the drivers' own tuples of the same values."""

    topic: str
    partition: int


class RunTopic(NamedTuple):
    """One life of one run."""

    run_id: str
    log_id: str


class Topics:
    """The names of all topics under one prefix.

    Raises `InvalidIdError` for a prefix or an id that cannot be part of a name.
    """

    def __init__(self, prefix: str = "runfold") -> None:
        if not _PREFIX.fullmatch(prefix):
            raise InvalidIdError(
                f"the topic prefix {prefix!r} is not 1 to 32 of A-Z, a-z, 0-9 and -",
                name="prefix",
                value=prefix,
            )
        self.prefix = prefix
        self.catalog = f"{prefix}.runs"
        self.sessions = f"{prefix}.sessions"
        self.memories = f"{prefix}.memories"
        self.banks = f"{prefix}.banks"
        self.dead_letters = f"{prefix}.dead-letters"
        self.run_prefix = f"{prefix}.run."

    @property
    def shared(self) -> tuple[str, ...]:
        """The topics that runs share: sessions with shared state, memories, and banks."""
        return self.sessions, self.memories, self.banks

    def deciding(self, key: str) -> str:
        """The topic whose order decides the changes under this key."""
        kinds = {"memory": self.memories, "bank": self.banks}
        return kinds.get(key.partition(":")[0], self.sessions)

    def run(self, run_id: str, log_id: str) -> str:
        """The topic of one life of a run."""
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

    def parse_run(self, topic: str) -> RunTopic | None:
        """The run and the life that `topic` belongs to. None if it is not the topic of a run under
        this prefix.
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
