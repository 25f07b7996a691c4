"""What a bank's configuration says of a change where its writer says nothing."""

from datetime import datetime, timedelta
from typing import Any

from runfold.client.memory import RevisionOptions
from runfold_projections.memory import BankRecord, Head, Revision
from runfold_schemas.memories import REVISION_TTL, Memory


def revision_fields(revision: RevisionOptions | None, bank: BankRecord, now: datetime) -> dict[str, Any]:
    """What a change says of its revision, by the request and else by the bank."""
    given = revision or RevisionOptions()
    ttl = bank.config.revision_ttl_seconds
    kept = timedelta(seconds=ttl) if ttl is not None else REVISION_TTL
    return {
        "leaves_revision": not (given.disabled or bank.config.disable_revisions),
        "revision_labels": dict(given.labels),
        "revision_expires_at": given.expires_at or now + kept,
        "extracted": tuple(given.extracted),
    }


def with_expiry(memory: Memory, ttl_seconds: float | None, now: datetime) -> Memory:
    """The memory with the time to live that its bank gives it, unless it has one."""
    if memory.expires_at is not None or ttl_seconds is None:
        return memory
    return memory.model_copy(update={"expires_at": now + timedelta(seconds=ttl_seconds)})


def ttl_of_created(bank: BankRecord) -> float | None:
    """For how many seconds a memory lives that somebody creates."""
    return bank.config.create_ttl_seconds or bank.config.memory_ttl_seconds


def restored(revision: Revision, head: Head, bank: BankRecord, now: datetime) -> Memory:
    """What an earlier revision held. A memory that is there keeps its expiry. One that is gone gets
    that of the revision, or, where that is over, as much time as it had then, or what a new one
    gets.
    """
    assert revision.memory is not None
    expires_at = revision.memory.expires_at
    if head.exists_at(now):
        expires_at = head.expires_at
    elif expires_at is not None and expires_at <= now:
        expires_at = now + (expires_at - revision.created_at)
    restored = revision.memory.model_copy(update={"expires_at": expires_at})
    return restored if head.exists_at(now) else with_expiry(restored, ttl_of_created(bank), now)
