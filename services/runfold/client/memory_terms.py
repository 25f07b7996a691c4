"""The fields of a change that its bank's configuration decides unless the caller does."""

from datetime import datetime, timedelta
from typing import Any

from runfold.client.memory import RevisionOptions
from runfold_projections.memory import BankRecord, Head, Revision
from runfold_schemas.memories import REVISION_TTL, Memory


def revision_fields(revision: RevisionOptions | None, bank: BankRecord, now: datetime) -> dict[str, Any]:
    """The fields of a change that describe its revision: as the caller says, or else the bank."""
    options = revision or RevisionOptions()
    ttl_seconds = bank.config.revision_ttl_seconds
    ttl = timedelta(seconds=ttl_seconds) if ttl_seconds is not None else REVISION_TTL
    return {
        "leaves_revision": not (options.disabled or bank.config.disable_revisions),
        "revision_labels": dict(options.labels),
        "revision_expires_at": options.expires_at or now + ttl,
        "extracted": tuple(options.extracted),
    }


def with_expiry(memory: Memory, ttl_seconds: float | None, now: datetime) -> Memory:
    """The memory with an expiry `ttl_seconds` from now, unless it has an expiry already."""
    if memory.expires_at is not None or ttl_seconds is None:
        return memory
    return memory.model_copy(update={"expires_at": now + timedelta(seconds=ttl_seconds)})


def ttl_of_created(bank: BankRecord) -> float | None:
    """The time to live of a new memory, in seconds, if the bank configures one."""
    return bank.config.create_ttl_seconds or bank.config.memory_ttl_seconds


def restored(revision: Revision, head: Head, bank: BankRecord, now: datetime) -> Memory:
    """The content of an earlier revision, with an expiry.

    A memory that exists keeps its expiry. A memory that is gone gets the expiry of the revision. If
    that is over, it gets as much time as the revision had when it was made. If the revision had no
    expiry, it gets the time to live of a new memory.
    """
    assert revision.memory is not None
    expires_at = revision.memory.expires_at
    if head.exists_at(now):
        expires_at = head.expires_at
    elif expires_at is not None and expires_at <= now:
        expires_at = now + (expires_at - revision.created_at)
    restored = revision.memory.model_copy(update={"expires_at": expires_at})
    return restored if head.exists_at(now) else with_expiry(restored, ttl_of_created(bank), now)
