"""Extracts facts from a conversation with the model, and checks them."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from runfold.generation.consolidation import FACT_LENGTH_MAX
from runfold.generation.model import Found, MemoryModel
from runfold.generation.options import NewFact
from runfold.generation.prompts import brief
from runfold_schemas.memories import BankConfig, MemoryTopic

FACTS_MAX: Final = 50
"""The limit for one conversation. More facts are a mistake of the model, or an attack."""

_log = logging.getLogger(__name__)


async def extract(
    model: MemoryModel,
    conversation: str,
    *,
    config: BankConfig,
    scope: Mapping[str, str],
    allowed: Sequence[MemoryTopic] = (),
) -> list[NewFact]:
    """The facts of the conversation that belong to the bank's topics. If the conversation is empty,
    the model is not asked. Raises the model's errors.
    """
    instructions, topics = brief(config, scope, allowed)
    if not conversation or not topics:
        return []
    answers = await model.extract(conversation, instructions=instructions)
    facts = [fact for answer in answers if (fact := _checked(answer, topics)) is not None]
    if len(facts) < len(answers) or len(facts) > FACTS_MAX:
        _log.warning("%s of %s facts of the model are kept", min(len(facts), FACTS_MAX), len(answers))
    return facts[:FACTS_MAX]


def _checked(answer: Found, topics: Mapping[str, MemoryTopic]) -> NewFact | None:
    """The fact; None if its text is empty or too long, or if it has none of the topics."""
    text = " ".join(answer.fact.split())
    own_topics = tuple(topics[label] for label in dict.fromkeys(answer.topics) if label in topics)
    if not text or len(text) > FACT_LENGTH_MAX or not own_topics:
        return None
    return NewFact(text=text, topics=own_topics)
