"""Facts out of a conversation: what the model found, as far as it may say it."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from runfold.generation.consolidation import FACT_LENGTH_MAX
from runfold.generation.model import Found, MemoryModel
from runfold.generation.options import NewFact
from runfold.generation.prompts import brief
from runfold_schemas.memories import BankConfig, MemoryTopic

FACTS_MAX: Final = 50
"""Of one conversation. What a model says beyond that is a mistake of its, or somebody's trick."""

_log = logging.getLogger(__name__)


async def extract(
    model: MemoryModel,
    conversation: str,
    *,
    config: BankConfig,
    scope: Mapping[str, str],
    allowed: Sequence[MemoryTopic] = (),
) -> list[NewFact]:
    """The facts of the conversation that belong to the bank's topics. Nothing is asked about an
    empty one. Raises what the model does.
    """
    told = brief(config, scope, allowed)
    if not conversation or not told.topics:
        return []
    found = await model.extract(conversation, instructions=told.instructions)
    facts = [fact for one in found if (fact := _checked(one, told.topics)) is not None]
    if len(facts) < len(found) or len(facts) > FACTS_MAX:
        _log.warning("%s of %s facts of the model are kept", min(len(facts), FACTS_MAX), len(found))
    return facts[:FACTS_MAX]


def _checked(found: Found, topics: Mapping[str, MemoryTopic]) -> NewFact | None:
    """The fact if it has a text of a sensible length, and a topic that it may have."""
    text = " ".join(found.fact.split())
    named = tuple(topics[label] for label in dict.fromkeys(found.topics) if label in topics)
    return NewFact(text=text, topics=named) if text and len(text) <= FACT_LENGTH_MAX and named else None
