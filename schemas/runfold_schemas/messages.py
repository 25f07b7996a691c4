"""The messages of a ledger, each with its ordered parts, in a form that is independent of model
providers.
"""

from binascii import a2b_base64
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from runfold_schemas.data import BlobDigests, Count, Items, Maker

Role = Literal["system", "user", "assistant"]

Provider = Literal["bedrock", "anthropic", "openai-chat", "openai-responses", "gemini"]
"""The name of a model provider's request and response format."""

BASE64_PATTERN: Final = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def _without_pattern(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Accepts what decodes, and leaves all else to the pattern, which is 20 times slower."""
    try:
        decoded = a2b_base64(value if isinstance(value, str) else "=", strict_mode=True)
    except ValueError:
        return validate(value)
    # The decoder accepts too much padding.
    return value if len(value) == (len(decoded) + 2) // 3 * 4 else validate(value)


Base64 = Annotated[str, StringConstraints(pattern=BASE64_PATTERN), WrapValidator(_without_pattern)]


def is_none(value: Any) -> bool:
    return value is None


def is_empty(value: Any) -> bool:
    return not value


ProviderData = Annotated[dict[str, Any] | None, Field(exclude_if=is_none)]
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


class Citation(_Frozen):
    """A source of a text. All fields are absent that the provider does not give."""

    url: Annotated[str | None, Field(exclude_if=is_none)] = None
    title: Annotated[str | None, Field(exclude_if=is_none)] = None
    """The title of the source, or the name of its file."""
    cited_text: Annotated[str | None, Field(exclude_if=is_none)] = None
    """The words of the source."""
    start: Annotated[Count | None, Field(exclude_if=is_none)] = None
    """The first character of the text that the source supports. If it is absent, the source
    supports the whole text.
    """
    end: Annotated[Count | None, Field(exclude_if=is_none)] = None
    """The character after the last one that the source supports."""


class TextPart(_EventPart):
    """Text of a message."""

    type: Literal["text"] = "text"
    text: str
    refusal: Annotated[bool, Field(exclude_if=is_empty)] = False
    """Whether the model refuses in this text to do what the user asked."""
    citations: Annotated[Items[Citation], Field(exclude_if=is_empty)] = ()
    provider_data: ProviderData = None
    blobs: BlobDigests = ()


class ToolUsePart(_Frozen):
    """The assistant calls a tool. `id` is unique within its message only, because real
    conversations repeat ids.
    """

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: Any = None
    provider_data: ProviderData = None
    blobs: BlobDigests = ()


class MediaPart(_EventPart):
    """Bytes, or a reference to bytes: either `data` or `url`, never both."""

    media_type: str = ""
    """The IANA media type, for example image/png. Only `data` needs it."""
    data: Annotated[Base64 | None, Field(exclude_if=is_none)] = None
    url: Annotated[str | None, Field(exclude_if=is_none)] = None
    """An https:, s3: or gs: URL. Each provider decides which of them it fetches. A `blob:` URL
    refers to bytes that are stored beside the run's log (`runfold_schemas.blobs`).
    """
    provider_data: ProviderData = None

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.data is None) == (self.url is None):
            raise ValueError("give either data or url")
        if self.data is not None and not self.media_type:
            raise ValueError("data needs a media_type")
        return self


class ImagePart(MediaPart):
    """An image."""

    type: Literal["image"] = "image"


class DocumentPart(MediaPart):
    """A document, for example a PDF file."""

    type: Literal["document"] = "document"
    name: str = ""


class AudioPart(MediaPart):
    """Recorded sound, for example a question that the user speaks."""

    type: Literal["audio"] = "audio"


class VideoPart(MediaPart):
    """A video."""

    type: Literal["video"] = "video"


Medium = ImagePart | DocumentPart | AudioPart | VideoPart
"""A part with bytes or with a reference to bytes. Producers may leave out the type of an image."""


class ToolResultPart(_Frozen):
    """The answer of a tool, in the user message right after the message with the call."""

    type: Literal["tool_result"] = "tool_result"
    tool_use_id: str
    content: Any = None
    is_error: bool = False
    attachments: Annotated[Items[Medium], Field(exclude_if=is_empty)] = ()
    """Images, documents, audio and videos that follow the content, in this order."""
    provider_data: ProviderData = None
    blobs: BlobDigests = ()


class OpaquePart(_Frozen):
    """A block of a provider's response for which Runfold has no part. Only that provider gets it
    back, unchanged.
    """

    type: Literal["opaque"] = "opaque"
    provider: Provider
    content: Any
    blobs: BlobDigests = ()


Part = Annotated[
    ThinkingPart
    | TextPart
    | ToolUsePart
    | ToolResultPart
    | ImagePart
    | DocumentPart
    | AudioPart
    | VideoPart
    | OpaquePart,
    Field(discriminator="type"),
]

UserPart = Annotated[TextPart | ImagePart | DocumentPart | AudioPart | VideoPart, Field(discriminator="type")]
"""The parts that a message of the user may contain."""

PROVIDERS: Final[tuple[Provider, ...]] = ("bedrock", "anthropic", "openai-chat", "openai-responses", "gemini")


class Message(_Frozen):
    """One message of a ledger."""

    role: Role
    parts: Items[Part]
    maker: Annotated[Maker | None, Field(exclude_if=is_none)] = None
    """The maker of the response that the message was recorded from, if it is known."""
    next_request: ProviderData = None
    """The members beside the messages that the next request to the provider needs, for example the
    id of a container.
    """
