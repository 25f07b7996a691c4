"""Names of topics, and the limits that a topic puts on a record.

A topic's name may hold `[A-Za-z0-9._-]` and 249 bytes, and Kafka treats `.` and `_` as equal when
it looks for collisions. So ids are escaped to `[A-Za-z0-9-]` with `_xx` for any other byte, and `.`
only joins the parts.
"""

import re
from typing import Final, NamedTuple

from runfold_schemas.data import SESSION_ID_BYTES_MAX
from runfold_schemas.errors import InvalidIdError

ID_BYTES_MAX: Final = 100
"""The longest id, in UTF-8 bytes."""

TOPIC_BYTES_MAX: Final = 249
"""Kafka's limit on the name of a topic."""

RECORD_BYTES_MAX: Final = 8 * 1024 * 1024
"""`max.message.bytes` of a run's topic: the largest record batch, in bytes."""

DEAD_LETTER_BYTES_MAX: Final = 2 * RECORD_BYTES_MAX
"""A dead letter carries the whole record and says why."""

CATALOG_PARTITIONS: Final = 12
"""Of the topics that runs share as well: who owns a partition of the catalog folds the same one of
theirs.
"""

PARK_SECONDS_MIN: Final = 10.0
"""The shortest time that a run stays tailed after its last record or bell. Publishers rely on it:
one that has been silent for half of it rings again before it publishes (see `runfold.client`)."""

_ESCAPED = re.compile(rb"[^A-Za-z0-9-]")
_ESCAPE_SIGN = re.compile(r"_([0-9a-f]{2})")
_PREFIX = re.compile(r"[A-Za-z0-9-]{1,32}")


class Partition(NamedTuple):
    """A partition of a topic. It equals the drivers' own pairs of the same two values."""

    topic: str
    partition: int


class RunTopic(NamedTuple):
    """One life of one run."""

    run_id: str
    log_id: str


class Topics:
    """The names of all topics under one prefix.

    Raises `InvalidIdError` for a prefix or an id that cannot be in a name.
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
        """The topics that order what runs share."""
        return self.sessions, self.memories, self.banks

    def deciding(self, key: str) -> str:
        """The topic that orders what is changed under this key."""
        kinds = {"memory": self.memories, "bank": self.banks}
        return kinds.get(key.partition(":")[0], self.sessions)

    def run(self, run_id: str, log_id: str) -> str:
        name = f"{self.run_prefix}{escape(check_id(run_id, name='run_id'))}.{log_id}"
        if len(name) > TOPIC_BYTES_MAX:
            raise InvalidIdError(
                f"run_id {run_id!r} is too long: its topic's name would have {len(name)} bytes, Kafka allows {TOPIC_BYTES_MAX}"
                " (each byte outside A-Z, a-z, 0-9 and - counts three times)",
                name="run_id",
                value=run_id,
            )
        return name

    def parse_run(self, topic: str) -> RunTopic | None:
        """The run and life that `topic` belongs to; None if it is no run's topic of this prefix."""
        if not topic.startswith(self.run_prefix):
            return None
        escaped, _, log_id = topic.removeprefix(self.run_prefix).rpartition(".")
        # Others may have made a topic below our prefix: one that we would not have named so is not
        # ours.
        try:
            found = RunTopic(unescape(escaped), log_id)
            return found if log_id and self.run(*found) == topic else None
        except (UnicodeError, InvalidIdError):
            return None


def check_id(value: str, *, name: str, bytes_max: int = ID_BYTES_MAX) -> str:
    """`value` itself, or `InvalidIdError`: an id is 1 to 100 bytes of UTF-8 without a NUL, unless
    more are allowed.
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
        raise InvalidIdError(f"{name} holds a NUL", name=name, value=value)
    return value


def check_session_id(value: str) -> str:
    """`value` itself, or `InvalidIdError`: a session's id has up to 1,000 bytes, since it may be
    made of several.
    """
    return check_id(value, name="session_id", bytes_max=SESSION_ID_BYTES_MAX)


def escape(text: str) -> str:
    return _ESCAPED.sub(lambda match: b"_%02x" % match[0][0], text.encode()).decode("ascii")


def unescape(text: str) -> str:
    return _ESCAPE_SIGN.sub(lambda match: chr(int(match[1], 16)), text).encode("latin-1").decode()
