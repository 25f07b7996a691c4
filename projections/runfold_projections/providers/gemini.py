"""Gemini: a ledger as the request of generateContent, and its responses, whole or streamed, as
events.

The REST form, with bytes as base64; google-genai's client takes it as it is. What is for Gemini
alone (`provider_data["gemini"]`):

- `thoughtSignature` of a text, of a thought, of a call; a block without a word here has it in its
  content;
- a call's `id`, which is null where Gemini gave none: then neither the call nor its result is sent
  with the one it got.
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, assert_never

from runfold_projections.providers.encoding import Encoded, Encoding, Limits, Lossy, joined
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
    # Gemini says nothing of what an id may be; it matches them within a call's turn and the turn
    # right after it.
    id_illegal=None,
    id_max=512,
    # FunctionDeclaration.name: a letter or an underscore, then also digits, dots, colons and
    # dashes. Up to 64 of them in the Gemini API, 128 in Vertex AI. The first alternative puts an
    # underscore before any other beginning.
    name_illegal=re.compile(r"^(?![a-zA-Z_])|[^a-zA-Z0-9_.:-]"),
    name_max=64,
    ids_unique=False,
)

_UNSIGNED: Final = base64.b64encode(b"skip_thought_signature_validator").decode()
"""Gemini 3 refuses a turn whose first call has no signature. For a call that it did not make it has
this word.

See ai.google.dev/gemini-api/docs/thought-signatures, on transferring a trace from a different
model.
"""

_READABLE: Final = re.compile(
    r"image/(png|jpeg|webp|heic|heif)|(audio|video|text)/.+|application/(pdf|json|rtf)|"
)
"""The media that Gemini reads; a reference may leave it to Gemini to find out."""


def encode(messages: Sequence[Message], lossy: Lossy) -> Encoded:
    """The ledger as `contents`, and the system messages that it begins with as `systemInstruction`.

    Adjacent messages of one role are one content, because a turn of calls must follow a turn of the
    user.
    """
    writer = _Writer(Encoding("gemini", _LIMITS, lossy))
    return writer.encoded(messages)


class _Writer:
    """Writes the parts of one ledger."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self._called = False
        # Calls of this message that Gemini made without an id: they and their results go without
        # one.
        self._without_id: set[str] = set()

    def encoded(self, messages: Sequence[Message]) -> Encoded:
        system: list[dict[str, Any]] = []
        contents = joined(self._contents(messages, system))
        body: dict[str, Any] = {"systemInstruction": {"parts": system}} if system else {}
        body["contents"] = [
            {"role": "model" if role == "assistant" else "user", "parts": parts} for role, parts in contents
        ]
        return self._encoding.encoded(body)

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
                self._called = False
                self._without_id.clear()
            written = (self._part(part) for part in self._encoding.parts(message))
            yield message.role, [part for part in written if part is not None]

    def _system(self, message: Message, *, leading: bool) -> Iterator[dict[str, Any]]:
        for part in self._encoding.parts(message):
            if not leading:
                self._encoding.refuse("a system message stands before the conversation, not in it")
            elif not isinstance(part, TextPart):
                self._encoding.refuse(f"a system message has no {part.type}")
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
        own = _own(part)
        if "thoughtSignature" in own:
            return {"text": part.text, "thoughtSignature": own["thoughtSignature"]}
        if part.text:
            return {"text": part.text}
        self._encoding.leave_out("an empty text says nothing", rule="text-not-blank")
        return None

    def _thinking(self, part: ThinkingPart) -> dict[str, Any] | None:
        own = _own(part)
        if "thoughtSignature" in own:
            return {"text": part.text, "thought": True, "thoughtSignature": own["thoughtSignature"]}
        self._encoding.refuse("thinking that Gemini has not signed")
        return None

    def _call(self, part: ToolUsePart) -> dict[str, Any] | None:
        args = {} if part.input is None else part.input
        if not isinstance(args, dict):
            self._encoding.refuse(
                f"the input of {part.name!r} is no object", rule="input-is-object", tool_use_id=part.id
            )
            return None
        own, call = _own(part), self._encoding.call(part)
        written: dict[str, Any] = {"functionCall": {"id": call.id, "name": call.name, "args": args}}
        if own and own.get("id") is None:
            del written["functionCall"]["id"]
            self._without_id.add(call.id)
        if "thoughtSignature" in own:
            written["thoughtSignature"] = own["thoughtSignature"]
        elif not own and not self._called:
            written["thoughtSignature"] = _UNSIGNED
        self._called = True
        return written

    def _result(self, part: ToolResultPart) -> dict[str, Any] | None:
        call = self._encoding.answered(part)
        if call is None:
            return None
        response: dict[str, Any] = {"id": call.id, "name": call.name, "response": _response(part)}
        if call.id in self._without_id:
            del response["id"]
        media = [media for one in part.attachments if (media := self._media(one)) is not None]
        if media:
            response["parts"] = media
        return {"functionResponse": response}

    def _media(self, part: ImagePart | DocumentPart) -> dict[str, Any] | None:
        """Without a document's name, for which only Vertex AI has a place."""
        if not _READABLE.fullmatch(part.media_type):
            self._encoding.refuse(f"it does not read {part.media_type}")
            return None
        if part.data is not None:
            return {"inlineData": {"mimeType": part.media_type, "data": part.data}}
        if part.url is None or not part.url.startswith(("https://", "gs://")):
            self._encoding.refuse(f"it does not fetch {part.url}")
            return None
        known = {"mimeType": part.media_type} if part.media_type else {}
        return {"fileData": {"fileUri": part.url, **known}}

    def _opaque(self, part: OpaquePart) -> dict[str, Any] | None:
        if part.provider == "gemini" and isinstance(part.content, dict):
            return part.content
        self._encoding.refuse(f"a block that only {part.provider} understands")
        return None


def _own(part: TextPart | ThinkingPart | ToolUsePart) -> dict[str, Any]:
    return part.provider_data.get("gemini", {}) if part.provider_data else {}


def _response(part: ToolResultPart) -> dict[str, Any]:
    """FunctionResponse.response: an object with "error" or "output"; one that has neither is the
    output itself.
    """
    content = part.content
    if part.is_error:
        return content if isinstance(content, dict) and "error" in content else {"error": content}
    if isinstance(content, dict) and "error" not in content and "output" not in content:
        return content
    return {"output": content}


def recognizes(response: Any) -> bool:
    """A GenerateContentResponse, which is also the chunk of a stream, or its JSON."""
    if isinstance(response, Mapping):
        return any(name in response for name in ("candidates", "promptFeedback", "usageMetadata"))
    return type(response).__name__ == "GenerateContentResponse"
