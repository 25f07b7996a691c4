"""What a bank's configuration says of a change where its writer says nothing."""

from datetime import datetime, timedelta
from typing import Any

from runfold.memory import RevisionOptions
from runfold_projections.memory import BankRecord, Head
from runfold_schemas.memories import REVISION_TTL, Memory


def left(revision: RevisionOptions | None, bank: BankRecord, now: datetime) -> dict[str, Any]:
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


def restored(memory: Memory, head: Head, bank: BankRecord, now: datetime) -> Memory:
    """What an earlier revision held, with the expiry that the memory has now, or would get if it were made now."""
    if head.stands(now):
        return memory.model_copy(update={"expires_at": head.expires_at})
    return with_expiry(memory.model_copy(update={"expires_at": None}), ttl_of_created(bank), now)
