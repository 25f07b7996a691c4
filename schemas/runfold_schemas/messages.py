"""What a ledger holds: messages of ordered parts, in the form that is nobody's and every provider's."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["system", "user", "assistant"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class ThinkingPart(_Value):
    """A provider's reasoning: text with the provider's signature over it, or bytes that only the provider can read."""

    type: Literal["thinking"] = "thinking"
    text: str = ""
    signature: str = ""
    redacted: str | None = None
    """Base64; where it is there, text and signature are empty."""
    index: int = 0
    final: bool = False


class TextPart(_Value):
    type: Literal["text"] = "text"
    text: str


class ToolUsePart(_Value):
    """The assistant asks for a tool. `id` is unique within its message only: real conversations repeat ids."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: Any = None
    provider_data: dict[str, Any] | None = Field(default=None, exclude_if=lambda value: value is None)
    """As it is on the call's event."""


class ToolResultPart(_Value):
    """What a tool answered, in the user message right after the message that asked."""

    type: Literal["tool_result"] = "tool_result"
    tool_use_id: str
    content: Any = None
    is_error: bool = False


Part = Annotated[ThinkingPart | TextPart | ToolUsePart | ToolResultPart, Field(discriminator="type")]


class Message(_Value):
    role: Role
    parts: tuple[Part, ...]
