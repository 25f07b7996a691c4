"""Gemini: encodes a ledger as a request of generateContent. `gemini_recording` records the
responses, whole or streamed.

Requests have the REST form with bytes as base64, which google-genai's client accepts. Data for
Gemini only (`provider_data["gemini"]`):

- `thoughtSignature` of a text, a thought or a call. An opaque block has it in its content.
- `members` of a part, for example `videoMetadata`, and `call` of its call: the members that have no
  place in an event.
- `id` of a call, null if Gemini gave no id. Then the request contains no id for the call and its
  result.
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, assert_never

from runfold_projections.providers.blobs import file_of
from runfold_projections.providers.encoding import (
    Encoded,
    EncodeOptions,
    Encoding,
    Limits,
    input_of,
    merge_adjacent,
)
from runfold_projections.providers.gemini_recording import GeminiRecorder
from runfold_projections.providers.media_types import is_text
from runfold_schemas.messages import (
    MediaPart,
    Medium,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
)

__all__ = ["GeminiRecorder", "encode", "recognizes"]

_LIMITS: Final = Limits(
    # Gemini documents no limits of ids. It matches ids within the turn of a call and the next turn.
    id_illegal=None,
    id_max=512,
    # FunctionDeclaration.name: a letter or an underscore, then also digits, dots, colons and
    # dashes, up to 64 characters in the Gemini API and 128 in Vertex AI. The first alternative puts
    # an underscore in front of any other beginning.
    name_illegal=re.compile(r"^(?![a-zA-Z_])|[^a-zA-Z0-9_.:-]"),
    name_max=64,
    ids_unique=False,
)

_UNSIGNED: Final = base64.b64encode(b"skip_thought_signature_validator").decode()
"""The signature of a call that Gemini did not make. Gemini 3 refuses a turn whose first call has no
signature.

See ai.google.dev/gemini-api/docs/thought-signatures, on transferring a trace from a different
model.
"""

_SIGNS_CALLS: Final = re.compile(r"gemini-(?!1|2)\d")
"""The models that also refuse calls of Gemini without a signature. Earlier models made such."""

_TAKES_NO_MEDIA: Final = re.compile(r"gemini-[12]\b")
"""The models that refuse media in the response of a function (`function_response.parts is not
supported for this model`), and media beside the responses of several functions: google-gemini/
gemini-cli issue 19436 and pull request 16137. The media follow in a content of their own.
"""

_READABLE: Final = re.compile(
    r"image/(png|jpeg|webp|heic|heif)|(audio|video|text)/.+|application/(pdf|json|rtf)|"
)
"""The media types that Gemini reads. A reference may have no type; then Gemini finds it out."""


def encode(messages: Sequence[Message], options: EncodeOptions) -> Encoded:
    """The ledger as `contents`, and its leading system messages as `systemInstruction`.

    Adjacent messages of the same role become one content, because a turn of calls must follow a
    turn of the user. Media that follow the responses of functions stay apart.
    """
    writer = _Writer(Encoding("gemini", _LIMITS, options))
    return writer.encode(messages)


class _Writer:
    """Encodes the parts of one ledger."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self._has_called = False
        self._signs_calls = _SIGNS_CALLS.search(encoding.model or "") is not None
        self._takes_media = _TAKES_NO_MEDIA.search(encoding.model or "") is None
        self._following: list[dict[str, Any]] = []
        """The media of the results of this message that follow it."""
        # The calls of this message that Gemini made without an id. They and their results are sent
        # without an id.
        self._without_id: set[str] = set()

    def encode(self, messages: Sequence[Message]) -> Encoded:
        system: list[dict[str, Any]] = []
        contents = merge_adjacent(self._contents(messages, system))
        body: dict[str, Any] = {"systemInstruction": {"parts": system}} if system else {}
        body["contents"] = [
            {"role": "model" if role == "assistant" else "user", "parts": parts} for role, parts in contents
        ]
        return self._encoding.finish(body)

    def _contents(
        self, messages: Sequence[Message], system: list[dict[str, Any]]
    ) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
        for message in self._encoding.messages(messages):
            if message.role == "system":
                system += self._system(message)
                continue
            if message.role == "assistant":
                self._has_called = False
                self._without_id.clear()
            every = (self._part(part) for part in self._encoding.parts(message))
            parts = [part for part in every if part is not None]
            if parts and not self._encoding.leaves_thinking_alone(message):
                yield message.role, parts
            if self._following:
                following, self._following = self._following, []
                yield "media", following

    def _system(self, message: Message) -> Iterator[dict[str, Any]]:
        for part in self._encoding.parts(message):
            if not isinstance(part, TextPart):
                self._encoding.refuse(f"a system message cannot hold {part.type} parts")
            elif (text := self._text(part)) is not None:
                yield text

    def _part(self, part: Part) -> dict[str, Any] | None:
        match part:
            case TextPart():
                return self._text(part)
            case ToolUsePart():
                return self._call(part)
            case ToolResultPart():
                return self._result(part)
            case ThinkingPart():
                return self._thinking(part)
            case MediaPart():
                medium = self._media(part)
                return medium and {**_members(_provider_data(part)), **medium}
            case OpaquePart():
                return self._opaque(part)
            case _:
                assert_never(part)

    def _text(self, part: TextPart) -> dict[str, Any] | None:
        data = _provider_data(part)
        members = _members(data)
        if "thoughtSignature" in data:
            return {**members, "text": part.text, "thoughtSignature": data["thoughtSignature"]}
        if part.text:
            return {**members, "text": part.text}
        self._encoding.leave_out("an empty text", rule="text-not-blank")
        return None

    def _thinking(self, part: ThinkingPart) -> dict[str, Any] | None:
        data = _provider_data(part)
        if "thoughtSignature" in data:
            signature = data["thoughtSignature"]
            return {**_members(data), "text": part.text, "thought": True, "thoughtSignature": signature}
        self._encoding.refuse("thinking that Gemini has not signed")
        return None

    def _call(self, part: ToolUsePart) -> dict[str, Any] | None:
        args = input_of(part)
        if not isinstance(args, dict):
            self._encoding.refuse(
                f"the input of {part.name!r} is not an object", rule="input-is-object", tool_use_id=part.id
            )
            return None
        data, call = _provider_data(part), self._encoding.call(part)
        function = {**_members(data, "call"), "id": call.id, "name": call.name, "args": args}
        encoded: dict[str, Any] = {**_members(data), "functionCall": function}
        if data and data.get("id") is None:
            del encoded["functionCall"]["id"]
            self._without_id.add(call.id)
        if "thoughtSignature" in data:
            encoded["thoughtSignature"] = data["thoughtSignature"]
        elif not self._has_called and (not data or self._signs_calls):
            encoded["thoughtSignature"] = _UNSIGNED
        self._has_called = True
        return encoded

    def _result(self, part: ToolResultPart) -> dict[str, Any] | None:
        call = self._encoding.match_call(part)
        if call is None:
            return None
        response: dict[str, Any] = {"id": call.id, "name": call.name, "response": _response(part)}
        if call.id in self._without_id:
            del response["id"]
        media = [self._media(attachment) for attachment in part.attachments]
        self._encoding.keep_part()
        parts = [medium for medium in media if medium is not None]
        if parts and self._takes_media:
            response["parts"] = parts
        elif parts:
            self._following += [{"text": f"The result of {call.name} contains:"}, *parts]
        return {"functionResponse": response}

    def _media(self, part: Medium) -> dict[str, Any] | None:
        """The name of a document is omitted, because only Vertex AI has a field for it."""
        if part.data is not None and is_text(part.media_type) and not _READABLE.fullmatch(part.media_type):
            return {"inlineData": {"mimeType": "text/plain", "data": part.data}}
        if not _READABLE.fullmatch(part.media_type):
            self._encoding.refuse(f"Gemini does not read {part.media_type}")
            return None
        media_type = {"mimeType": part.media_type} if part.media_type else {}
        if uri := file_of(part, "gemini"):
            return {"fileData": {"fileUri": uri, **media_type}}
        if part.data is not None:
            return {"inlineData": {"mimeType": part.media_type, "data": part.data}}
        if part.url is None or not part.url.startswith(("https://", "gs://")):
            self._encoding.refuse(f"Gemini does not fetch {part.url}")
            return None
        return {"fileData": {"fileUri": part.url, **media_type}}

    def _opaque(self, part: OpaquePart) -> dict[str, Any] | None:
        if part.provider == "gemini" and isinstance(part.content, dict):
            return part.content
        self._encoding.refuse(f"only {part.provider} understands the block")
        return None


def _provider_data(part: TextPart | ThinkingPart | ToolUsePart | MediaPart) -> dict[str, Any]:
    return part.provider_data.get("gemini", {}) if part.provider_data else {}


def _members(data: dict[str, Any], of: str = "members") -> dict[str, Any]:
    """The members that have no place in an event, of the part or of its call."""
    members = data.get(of)
    return members if isinstance(members, dict) else {}


def _response(part: ToolResultPart) -> dict[str, Any]:
    """FunctionResponse.response: an object with "error" or "output". An object without both is the
    output itself.
    """
    content = part.content
    if part.is_error:
        return content if isinstance(content, dict) and "error" in content else {"error": content}
    if isinstance(content, dict) and "error" not in content and "output" not in content:
        return content
    return {"output": content}


def recognizes(response: Any) -> bool:
    """Whether this is a GenerateContentResponse or its JSON, also as a chunk of a stream."""
    if isinstance(response, Mapping):
        return any(name in response for name in ("candidates", "promptFeedback", "usageMetadata"))
    return type(response).__name__ == "GenerateContentResponse"
