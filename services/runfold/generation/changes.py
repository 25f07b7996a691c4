"""Decisions as changes of memories: with the times to live of the bank, metadata, and what the
revision says.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from runfold.client.memory_terms import left, with_expiry
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
    """The change, which counts only if the memory is as it was seen. Raises `InvalidEventError`."""
    extracted = [ExtractedMemory(fact=source.text) for source in decision.sources]
    said: dict[str, Any] = {
        "bank_id": bank.bank_id,
        **left(options.revision(extracted, now), bank, now),
    }
    before = decision.before
    if before is None:
        memory = _created(decision, bank, scope, options, now)
        return new_data(MemoryCreated, memory_id=str(uuid7()), memory=memory, **said)
    said |= {"memory_id": before.memory_id, "based_on": before.revision_id}
    if decision.kind == "delete":
        return new_data(MemoryDeleted, **said)
    return new_data(MemoryUpdated, memory=_updated(decision, before, bank, options, now), **said)


def merged(known: Mapping[str, Any], options: GenerationOptions) -> dict[str, Any]:
    """The metadata of an updated memory."""
    if options.metadata is None:
        return dict(known)
    return {**(known if options.metadata_merge == "MERGE" else {}), **options.metadata}


def _created(
    decision: Decision, bank: BankRecord, scope: Mapping[str, str], options: GenerationOptions, now: datetime
) -> Memory:
    memory = _memory(
        fact=decision.text,
        scope=dict(scope),
        topics=topics_of(decision.sources),
        metadata=options.metadata or {},
    )
    config = bank.config
    return with_expiry(memory, config.generate_created_ttl_seconds or config.memory_ttl_seconds, now)


def _updated(
    decision: Decision, before: MemoryRecord, bank: BankRecord, options: GenerationOptions, now: datetime
) -> Memory:
    """What was there with another text, and a new time to live where the bank gives one to updated
    memories.
    """
    config, known = bank.config, before.memory
    ttl = config.generate_updated_ttl_seconds or config.memory_ttl_seconds
    memory = _memory(
        **{
            **dict(known),
            "fact": decision.text,
            "topics": topics_of(decision.sources, known=known.topics),
            "metadata": merged(known.metadata, options),
            "expires_at": known.expires_at if ttl is None else None,
        }
    )
    return with_expiry(memory, ttl, now)


def _memory(**fields: Any) -> Memory:
    try:
        return Memory(**fields)
    except ValidationError as error:
        field, message = first_fault(error)
        raise InvalidEventError(message, field=field) from error
