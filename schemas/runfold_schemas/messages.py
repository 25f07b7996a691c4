"""The messages of a ledger, each with its ordered parts, in a form that is independent of model
providers.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Role = Literal["system", "user", "assistant"]

Provider = Literal["bedrock", "anthropic", "openai-chat", "openai-responses", "gemini"]
"""The name of a model provider's request and response format."""

BASE64_PATTERN: Final = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

Base64 = Annotated[str, StringConstraints(pattern=BASE64_PATTERN)]


def _is_none(value: Any) -> bool:
    return value is None


ProviderData = Annotated[dict[str, Any] | None, Field(exclude_if=_is_none)]
"""Data that only one provider understands, as an object under that provider's name: a signature,
the exact text of arguments, the id of a reasoning item. Only that provider gets the object back.
Objects under other names are kept and sent to no provider.
"""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class _EventPart(_Frozen):
    """A part that events contain as well."""

    def model_post_init(self, _context: Any, /) -> None:
        # Events are encoded without the fields that nobody set, and no reader could tell a part
        # without its type from another one.
        self.__pydantic_fields_set__.add("type")


class ThinkingPart(_Frozen):
    """Reasoning of a model: text that the provider has signed, or bytes that only the provider can
    read.
    """

    type: Literal["thinking"] = "thinking"
    text: str = ""
    signature: str = ""
    redacted: str | None = None
    """Base64. If it is present, `text` and `signature` are empty."""
    index: int = 0
    final: bool = False
    provider_data: ProviderData = None


class TextPart(_EventPart):
    """Text of a message."""

    type: Literal["text"] = "text"
    text: str
    provider_data: ProviderData = None


class ToolUsePart(_Frozen):
    """The assistant calls a tool. `id` is unique within its message only, because real
    conversations repeat ids.
    """

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: Any = None
    provider_data: ProviderData = None


class _Media(_EventPart):
    """Bytes, or a reference to bytes: either `data` or `url`, never both."""

    media_type: str = ""
    """The IANA media type, for example image/png. Only `data` needs it."""
    data: Annotated[Base64 | None, Field(exclude_if=_is_none)] = None
    url: Annotated[str | None, Field(exclude_if=_is_none)] = None
    """An https:, s3: or gs: URL. Each provider decides which of them it fetches."""
    provider_data: ProviderData = None

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.data is None) == (self.url is None):
            raise ValueError("give either data or url")
        if self.data is not None and not self.media_type:
            raise ValueError("data needs a media_type")
        return self


class ImagePart(_Media):
    """An image."""

    type: Literal["image"] = "image"


class DocumentPart(_Media):
    """A document, for example a PDF file."""

    type: Literal["document"] = "document"
    name: str = ""


class ToolResultPart(_Frozen):
    """The answer of a tool, in the user message right after the message with the call."""

    type: Literal["tool_result"] = "tool_result"
    tool_use_id: str
    content: Any = None
    is_error: bool = False
    attachments: Annotated[
        tuple[ImagePart | DocumentPart, ...], Field(exclude_if=lambda value: not value)
    ] = ()
    """Images and documents that follow the content, in this order."""


class OpaquePart(_Frozen):
    """A block of a provider's response for which Runfold has no part. Only that provider gets it
    back, unchanged.
    """

    type: Literal["opaque"] = "opaque"
    provider: Provider
    content: Any


Part = Annotated[
    ThinkingPart | TextPart | ToolUsePart | ToolResultPart | ImagePart | DocumentPart | OpaquePart,
    Field(discriminator="type"),
]

UserPart = Annotated[TextPart | ImagePart | DocumentPart, Field(discriminator="type")]
"""The parts that a message of the user may contain."""

PROVIDERS: Final[tuple[Provider, ...]] = ("bedrock", "anthropic", "openai-chat", "openai-responses", "gemini")


class Message(_Frozen):
    """One message of a ledger."""

    role: Role
    parts: tuple[Part, ...]
