"""Names of resources: `projects/{p}/locations/{l}/reasoningEngines/{e}/sessions/{s}`, or without
project and location.

Runfold ignores project and location: only the ids from the engine on distinguish resources. A name
keeps them nevertheless, so that a client gets answers with the names that it sent.
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
    """The name of a resource, or of a location if `path` is empty. `str` returns the full name."""

    path: tuple[tuple[str, str], ...] = ()
    """Collections, each with an id: `(("reasoningEngines", "1"), ("sessions", "2"))`."""
    project: str = PROJECT
    location: str = LOCATION

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses the name of a resource. Raises `InvalidEventError`."""
        steps = text.strip("/").split("/")
        if len(steps) % 2 or not all(steps):
            raise InvalidEventError(f"{text!r} is not the name of a resource", field="name")
        pairs = tuple(zip(steps[::2], map(unquote, steps[1::2]), strict=True))
        match pairs:
            case (("projects", project), ("locations", location), *path):
                name = cls(tuple(path), project, location)
            case _:
                name = cls(pairs)
        if name.path and name.path[0][0] != ENGINES:
            raise InvalidEventError(
                f"{text!r} is not the name of an engine, or of a resource in an engine", field="name"
            )
        return name

    def __str__(self) -> str:
        pairs = (("projects", self.project), ("locations", self.location), *self.path)
        # An id may be created through Runfold's own API, with any characters. Clients do not escape
        # names in paths, so they are escaped here.
        return "/".join(f"{collection}/{quote(id_, safe=':')}" for collection, id_ in pairs)

    def child(self, collection: str, id_: str) -> "Name":
        return Name((*self.path, (collection, id_)), self.project, self.location)

    @property
    def parent(self) -> "Name":
        return Name(self.path[:-1], self.project, self.location)

    @property
    def id(self) -> str:
        """The last id in the name."""
        return self.path[-1][1]

    @property
    def engine(self) -> "Name":
        """The name of the resource's engine."""
        return Name(self.path[:1], self.project, self.location)

    @property
    def engine_id(self) -> str:
        return self.path[0][1]

    def id_in(self, collection: str) -> str | None:
        """The id in this collection; None if the name does not contain the collection."""
        return dict(self.path).get(collection)


def new_id() -> str:
    """The id of a new resource: a number of 19 digits, because ADK accepts only numbers as ids of
    engines. Ids are sorted by the microsecond of their creation.
    """
    return f"{time.time_ns() // 1000}{secrets.randbelow(1000):03}"


def checked_id(text: str, *, field: str) -> str:
    """An id that the client chose for a new resource. Raises `InvalidEventError` if a URL could not
    contain it unescaped, because clients do not escape names in paths.
    """
    if not _ID.fullmatch(text):
        raise InvalidEventError(
            f"{field}: {text!r} is not an id: use up to 128 letters, digits, `-`, `_`, `.` and `~`,"
            " and begin with a letter, a digit or `_`",
            field=field,
        )
    return text
