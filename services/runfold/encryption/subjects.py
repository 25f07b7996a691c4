"""The subject whose key seals an event: the user, or else the smallest unit that can be erased."""

import json
from collections.abc import Mapping

from runfold_projections.run import RunRecord
from runfold_schemas.catalog import Life
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import (
    USER_KEYS,
    GenerationRequested,
    MemoriesGenerated,
    MemoryCreated,
    MemoryRolledBack,
    MemoryUpdated,
)


def user_subject(user: str) -> str:
    return f"user:{user}"


def session_subject(session_id: str) -> str:
    """The subject of a session without a user, and of runs that name a session."""
    return f"session:{session_id}"


def run_subject(run_id: str) -> str:
    """The subject of a run without user and session."""
    return f"run:{run_id}"


def subject_of_life(life: Life | RunRecord) -> str:
    if life.user_id:
        return user_subject(life.user_id)
    return session_subject(life.session_id) if life.session_id else run_subject(life.run_id)


def user_of_subject(subject: str) -> str:
    """The subject of a user; that of the empty user id for runs and sessions without a user."""
    return subject if subject.startswith(user_subject("")) else user_subject("")


def subject_of_session(session_id: str, user: str) -> str:
    return user_subject(user) if user else session_subject(session_id)


def subject_of_scope(bank_id: str, scope: Mapping[str, str]) -> str:
    """The user of a memory; the bank, if its scope names no user. A scope that names two users is a
    subject of its own, whose key the erasure of either destroys.
    """
    users = sorted({user for key in USER_KEYS if (user := scope.get(key))})
    if len(users) > 1:
        return f"users:{json.dumps(users)}"
    return user_subject(users[0]) if users else f"bank:{bank_id}"


def subject_of_event(event: AnyEvent) -> str | None:
    """The subject that the event itself names, because it is about memories of one scope."""
    match event.data:
        case MemoryCreated() | MemoryUpdated() | MemoryRolledBack() as change:
            return subject_of_scope(change.bank_id, change.memory.scope)
        case GenerationRequested() as requested:
            return subject_of_scope(requested.bank_id, requested.scope)
        case MemoriesGenerated() as generated:
            memories = [change.memory for change in generated.created]
            memories += [change.memory for change in generated.updated]
            scope = memories[0].scope if memories else None
            return None if scope is None else subject_of_scope(generated.bank_id, scope)
        case _:
            return None
