"""The language model behind generation: what it is asked, and what it may answer.

Its answers are not trusted. It sees memories under small numbers and never their ids, and who asks
it checks everything that it says: `extraction` and `consolidation` drop what is too long, too much,
or names what was not shown.
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
    """Both verbs raise `UnavailableError` where asking again may help, `ConfigurationError` where
    the model cannot be asked at all, and `GenerationFailedError` where it has no answer to this
    question.
    """

    async def extract(self, conversation: str, *, instructions: str) -> Sequence[Found]:
        """The facts that are worth remembering of the conversation, which is a line of JSON for
        each thing said.
        """

    async def consolidate(self, facts: Sequence[str], known: Sequence[str]) -> Sequence[Action]:
        """What becomes of the known memories, and which new ones there are, now that these facts
        were learned. Both are named by their places.
        """
