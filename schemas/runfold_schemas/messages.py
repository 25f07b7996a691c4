"""What a ledger holds: messages of ordered parts, in the form that is nobody's and every
provider's.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Role = Literal["system", "user", "assistant"]

Provider = Literal["bedrock", "anthropic", "openai-chat", "openai-responses", "gemini"]
"""A model provider's request and response format, by the name that it has everywhere here."""

BASE64_PATTERN: Final = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

Base64 = Annotated[str, StringConstraints(pattern=BASE64_PATTERN)]


def _absent(value: Any) -> bool:
    return value is None


ProviderData = Annotated[dict[str, Any] | None, Field(exclude_if=_absent)]
"""What only one provider understands, as an object under that provider's name, handed back to it
alone: a signature, the exact text of the arguments, the id of a reasoning item. What stands under
other names is kept and given to nobody.
"""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class ThinkingPart(_Part):
    """A provider's reasoning: text with the provider's signature over it, or bytes that only the
    provider can read.
    """

    type: Literal["thinking"] = "thinking"
    text: str = ""
    signature: str = ""
    redacted: str | None = None
    """Base64; where it is there, text and signature are empty."""
    index: int = 0
    final: bool = False
    provider_data: ProviderData = None


class TextPart(_Part):
    type: Literal["text"] = "text"
    text: str
    provider_data: ProviderData = None


class ToolUsePart(_Part):
    """The assistant asks for a tool. `id` is unique within its message only: real conversations
    repeat ids.
    """

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: Any = None
    provider_data: ProviderData = None


class _Media(_Part):
    """Bytes, or a reference to them: exactly one of `data` and `url`."""

    media_type: str = ""
    """IANA's name, as image/png. A reference may do without."""
    data: Annotated[Base64 | None, Field(exclude_if=_absent)] = None
    url: Annotated[str | None, Field(exclude_if=_absent)] = None
    """https:, s3: or gs:; which of them a provider fetches is the provider's matter."""
    provider_data: ProviderData = None

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.data is None) == (self.url is None):
            raise ValueError("give either data or url")
        if self.data is not None and not self.media_type:
            raise ValueError("data needs a media_type")
        return self


class ImagePart(_Media):
    type: Literal["image"] = "image"


class DocumentPart(_Media):
    type: Literal["document"] = "document"
    name: str = ""


class ToolResultPart(_Part):
    """What a tool answered, in the user message right after the message that asked."""

    type: Literal["tool_result"] = "tool_result"
    tool_use_id: str
    content: Any = None
    is_error: bool = False
    attachments: Annotated[
        tuple[ImagePart | DocumentPart, ...], Field(exclude_if=lambda value: not value)
    ] = ()
    """Behind the content, in this order."""


class OpaquePart(_Part):
    """A block of a provider's response that has no word here. It goes back to that provider as it
    came, and to no other.
    """

    type: Literal["opaque"] = "opaque"
    provider: Provider
    content: Any


Part = Annotated[
    ThinkingPart | TextPart | ToolUsePart | ToolResultPart | ImagePart | DocumentPart | OpaquePart,
    Field(discriminator="type"),
]

UserPart = Annotated[TextPart | ImagePart | DocumentPart, Field(discriminator="type")]
"""What a user may say in one message."""

PROVIDERS: Final[tuple[Provider, ...]] = ("bedrock", "anthropic", "openai-chat", "openai-responses", "gemini")


class Message(_Part):
    role: Role
    parts: tuple[Part, ...]
