"""Turns decisions into events that change memories, with times to live, metadata and revisions."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from runfold.client.memory_terms import revision_fields, with_expiry
from runfold.generation.consolidation import Decision
from runfold.generation.facts import topics_of
from runfold.generation.options import GenerationOptions
from runfold.ids import uuid7
from runfold_projections.memory import BankRecord, MemoryRecord
from runfold_schemas.codec import first_fault, new_data
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.memories import (
    ExtractedMemory,
    Memory,
    MemoryCreated,
    MemoryDeleted,
    MemoryUpdated,
)

Change = MemoryCreated | MemoryUpdated | MemoryDeleted


def change_of(
    decision: Decision,
    *,
    bank: BankRecord,
    scope: Mapping[str, str],
    options: GenerationOptions,
    now: datetime,
) -> Change:
    """The event of the decision. It counts only if the memory has not changed meanwhile. Raises
    `InvalidEventError`.
    """
    extracted = [ExtractedMemory(fact=source.text) for source in decision.sources]
    fields: dict[str, Any] = {
        "bank_id": bank.bank_id,
        **revision_fields(options.revision(extracted, now), bank, now),
    }
    before = decision.before
    if before is None:
        memory = _created_memory(decision, bank, scope, options, now)
        return new_data(MemoryCreated, memory_id=str(uuid7()), memory=memory, **fields)
    fields |= {"memory_id": before.memory_id, "based_on": before.revision_id}
    if decision.kind == "delete":
        return new_data(MemoryDeleted, **fields)
    return new_data(MemoryUpdated, memory=_updated_memory(decision, before, bank, options, now), **fields)


def updated_metadata(before: Mapping[str, Any], options: GenerationOptions) -> dict[str, Any]:
    """The metadata of an updated memory, which had the metadata `before`."""
    if options.metadata is None:
        return dict(before)
    return {**(before if options.metadata_merge == "MERGE" else {}), **options.metadata}


def _created_memory(
    decision: Decision, bank: BankRecord, scope: Mapping[str, str], options: GenerationOptions, now: datetime
) -> Memory:
    memory = _checked_memory(
        fact=decision.text,
        scope=dict(scope),
        topics=topics_of(decision.sources),
        metadata=options.metadata or {},
    )
    config = bank.config
    return with_expiry(memory, config.generate_created_ttl_seconds or config.memory_ttl_seconds, now)


def _updated_memory(
    decision: Decision, before: MemoryRecord, bank: BankRecord, options: GenerationOptions, now: datetime
) -> Memory:
    """The memory with another text. Its expiry changes only if the bank has a time to live for
    updated memories.
    """
    config, memory_before = bank.config, before.memory
    ttl = config.generate_updated_ttl_seconds or config.memory_ttl_seconds
    memory = _checked_memory(
        **{
            **dict(memory_before),
            "fact": decision.text,
            "topics": topics_of(decision.sources, before=memory_before.topics),
            "metadata": updated_metadata(memory_before.metadata, options),
            "expires_at": memory_before.expires_at if ttl is None else None,
        }
    )
    return with_expiry(memory, ttl, now)


def _checked_memory(**fields: Any) -> Memory:
    try:
        return Memory(**fields)
    except ValidationError as error:
        field, message = first_fault(error)
        raise InvalidEventError(message, field=field) from error
