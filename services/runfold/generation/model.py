"""The language model of generations: its questions and its answers.

The names, docstrings and descriptions of the four answer classes are sent to the model as a schema.

Answers are not trusted. The model sees memories under small numbers, never their ids. `extraction`
and `consolidation` drop answers that are too long or too many, and those that name something that
the model was not shown.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from pydantic import BaseModel, Field


class Found(BaseModel):
    """One fact that the model found in a conversation."""

    fact: str = Field(description="one self-contained sentence")
    topics: list[str] = Field(description="labels of the topics that it belongs to, as they were given")


class Findings(BaseModel):
    facts: list[Found] = Field(description="nothing, where nothing is worth remembering")


class Action(BaseModel):
    """What the model wants to become of a memory."""

    kind: Literal["create", "update", "delete"]
    facts: list[int] = Field(description="the numbers of the new facts that this follows from")
    memory: int | None = Field(
        description="the number of the memory to update or to delete; null to create one"
    )
    text: str | None = Field(description="what the memory says from now on; null to delete it")


class Actions(BaseModel):
    actions: list[Action]


class MemoryModel(Protocol):
    """Asks the language model. Both verbs raise `UnavailableError` if asking again may help,
    `ConfigurationError` if the model cannot be asked at all, and `GenerationFailedError` if it has
    no answer to this question.
    """

    async def extract(self, conversation: str, *, instructions: str) -> Sequence[Found]:
        """The facts in the conversation that are worth remembering. The conversation has a line of
        JSON for each message part.
        """

    async def consolidate(self, facts: Sequence[str], memories: Sequence[str]) -> Sequence[Action]:
        """The changes to the memories that follow from new facts. Facts and memories are named
        by their indexes.
        """
