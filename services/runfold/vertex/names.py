"""Names of resources: `projects/{p}/locations/{l}/reasoningEngines/{e}/sessions/{s}`, or from
`reasoningEngines` on.

Which project and location somebody says is of no account here: what tells resources apart are the
ids from the engine on. They are kept all the same, so that a client finds in every answer the names
that it asked with.
"""

import re
import secrets
import time
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import quote, unquote

from runfold_schemas.errors import InvalidEventError

PROJECT: Final = "runfold"
LOCATION: Final = "local"

ENGINES: Final = "reasoningEngines"

_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._~-]{0,127}")


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a resource, or of a location where `path` is empty. `str` gives it in full."""

    path: tuple[tuple[str, str], ...] = ()
    """Collections, each with the id in it: `(("reasoningEngines", "1"), ("sessions", "2"))`."""
    project: str = PROJECT
    location: str = LOCATION

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `InvalidEventError`."""
        steps = text.strip("/").split("/")
        if len(steps) % 2 or not all(steps):
            raise InvalidEventError(f"{text!r} is not the name of a resource", field="name")
        pairs = tuple(zip(steps[::2], map(unquote, steps[1::2]), strict=True))
        match pairs:
            case (("projects", project), ("locations", location), *path):
                found = cls(tuple(path), project, location)
            case _:
                found = cls(pairs)
        if found.path and found.path[0][0] != ENGINES:
            raise InvalidEventError(f"{text!r} does not name anything in an engine", field="name")
        return found

    def __str__(self) -> str:
        pairs = (("projects", self.project), ("locations", self.location), *self.path)
        # An id that our own verbs chose may have any sign in it, and clients put names into their
        # paths as they are.
        return "/".join(f"{collection}/{quote(id_, safe=':')}" for collection, id_ in pairs)

    def child(self, collection: str, id_: str) -> "Name":
        return Name((*self.path, (collection, id_)), self.project, self.location)

    @property
    def parent(self) -> "Name":
        return Name(self.path[:-1], self.project, self.location)

    @property
    def id(self) -> str:
        """The last one in it."""
        return self.path[-1][1]

    @property
    def engine(self) -> "Name":
        """The engine that it belongs to."""
        return Name(self.path[:1], self.project, self.location)

    @property
    def engine_id(self) -> str:
        return self.path[0][1]

    def id_in(self, collection: str) -> str | None:
        """The id that it has in this collection, if it leads through it."""
        return dict(self.path).get(collection)


def new_id() -> str:
    """The id of a new resource, which is a number as the product's are: ADK takes nothing else for
    an engine's. Of 19 digits, and sorted by the microsecond of its making.
    """
    return f"{time.time_ns() // 1000}{secrets.randbelow(1000):03}"


def checked_id(text: str, *, field: str) -> str:
    """An id that somebody chose for a new resource. Raises `InvalidEventError` for one that a URL
    could not hold as it is: clients put names into their paths without escaping anything.
    """
    if not _ID.fullmatch(text):
        raise InvalidEventError(
            f"{field}: {text!r} is not an id: up to 128 letters, digits, `-`, `_`, `.` and `~`, the first of them a letter,"
            " a digit or `_`",
            field=field,
        )
    return text
