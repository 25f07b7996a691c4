"""The classes that users call, and which of their methods are no verbs."""

import inspect
from typing import Any, Final

from runfold import Memories, Run, Runfold, Sessions
from runfold.permissions.memories import PermittedMemories
from runfold.permissions.sessions import PermittedSessions
from runfold.remote.memories import HttpMemories
from runfold.remote.sessions import HttpSessions

FACES: Final = (Runfold, Run, Sessions, Memories)

INTERNAL: Final[dict[type, set[str]]] = {
    Runfold: {"of"},  # for services, which have settings already
    Sessions: {"run_id", "open_record"},  # for the HTTP API, which names the run
    Memories: {"change_all"},  # for the generation of memories
    HttpSessions: {"close"},  # a connection of its own
    HttpMemories: {"close"},
    PermittedSessions: {"open_record"},
    PermittedMemories: set(),
}
"""Public methods that are no verbs."""


def public_methods(kind: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
