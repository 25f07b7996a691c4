"""Gemini: encodes a ledger as a request of generateContent. `gemini_recording` records the
responses, whole or streamed.

Requests have the REST form with bytes as base64, which google-genai's client accepts. Data for
Gemini only (`provider_data["gemini"]`):

- `thoughtSignature` of a text, a thought or a call. An opaque block has it in its content.
- `id` of a call, null if Gemini gave no id. Then the request contains no id for the call and its
  result.
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, assert_never

from runfold_projections.providers.encoding import Encoded, Encoding, Limits, Lossy, merge_adjacent
from runfold_projections.providers.gemini_recording import GeminiRecorder
from runfold_schemas.messages import (
    DocumentPart,
    ImagePart,
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

_READABLE: Final = re.compile(
    r"image/(png|jpeg|webp|heic|heif)|(audio|video|text)/.+|application/(pdf|json|rtf)|"
)
"""The media types that Gemini reads. A reference may have no type; then Gemini finds it out."""


def encode(messages: Sequence[Message], lossy: Lossy) -> Encoded:
    """The ledger as `contents`, and its leading system messages as `systemInstruction`.

    Adjacent messages of the same role become one content, because a turn of calls must follow a
    turn of the user.
    """
    writer = _Writer(Encoding("gemini", _LIMITS, lossy))
    return writer.encode(messages)


class _Writer:
    """Encodes the parts of one ledger."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self._has_called = False
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
        leading = True
        for message in self._encoding.messages(messages):
            if message.role == "system":
                system += self._system(message, leading=leading)
                continue
            leading = False
            if message.role == "assistant":
                self._has_called = False
                self._without_id.clear()
            parts = (self._part(part) for part in self._encoding.parts(message))
            yield message.role, [part for part in parts if part is not None]

    def _system(self, message: Message, *, leading: bool) -> Iterator[dict[str, Any]]:
        for part in self._encoding.parts(message):
            if not leading:
                self._encoding.refuse("a system message must be before the conversation, not within it")
            elif not isinstance(part, TextPart):
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
            case ImagePart() | DocumentPart():
                return self._media(part)
            case OpaquePart():
                return self._opaque(part)
            case _:
                assert_never(part)

    def _text(self, part: TextPart) -> dict[str, Any] | None:
        data = _provider_data(part)
        if "thoughtSignature" in data:
            return {"text": part.text, "thoughtSignature": data["thoughtSignature"]}
        if part.text:
            return {"text": part.text}
        self._encoding.leave_out("an empty text", rule="text-not-blank")
        return None

    def _thinking(self, part: ThinkingPart) -> dict[str, Any] | None:
        data = _provider_data(part)
        if "thoughtSignature" in data:
            return {"text": part.text, "thought": True, "thoughtSignature": data["thoughtSignature"]}
        self._encoding.refuse("thinking that Gemini has not signed")
        return None

    def _call(self, part: ToolUsePart) -> dict[str, Any] | None:
        args = {} if part.input is None else part.input
        if not isinstance(args, dict):
            self._encoding.refuse(
                f"the input of {part.name!r} is not an object", rule="input-is-object", tool_use_id=part.id
            )
            return None
        data, call = _provider_data(part), self._encoding.call(part)
        encoded: dict[str, Any] = {"functionCall": {"id": call.id, "name": call.name, "args": args}}
        if data and data.get("id") is None:
            del encoded["functionCall"]["id"]
            self._without_id.add(call.id)
        if "thoughtSignature" in data:
            encoded["thoughtSignature"] = data["thoughtSignature"]
        elif not data and not self._has_called:
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
        if parts := [medium for medium in media if medium is not None]:
            response["parts"] = parts
        return {"functionResponse": response}

    def _media(self, part: ImagePart | DocumentPart) -> dict[str, Any] | None:
        """An image or a document. The name of a document is omitted, because only Vertex AI has a
        field for it.
        """
        if not _READABLE.fullmatch(part.media_type):
            self._encoding.refuse(f"Gemini does not read {part.media_type}")
            return None
        if part.data is not None:
            return {"inlineData": {"mimeType": part.media_type, "data": part.data}}
        if part.url is None or not part.url.startswith(("https://", "gs://")):
            self._encoding.refuse(f"Gemini does not fetch {part.url}")
            return None
        media_type = {"mimeType": part.media_type} if part.media_type else {}
        return {"fileData": {"fileUri": part.url, **media_type}}

    def _opaque(self, part: OpaquePart) -> dict[str, Any] | None:
        if part.provider == "gemini" and isinstance(part.content, dict):
            return part.content
        self._encoding.refuse(f"only {part.provider} understands the block")
        return None


def _provider_data(part: TextPart | ThinkingPart | ToolUsePart) -> dict[str, Any]:
    return part.provider_data.get("gemini", {}) if part.provider_data else {}


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
