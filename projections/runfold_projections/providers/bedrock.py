"""Bedrock's Converse and ConverseStream: a ledger as boto3's arguments. Their responses are
`bedrock_recording`'s.

The rules are those of the Converse API: its service model, what it documents, and what its errors
say. Where models differ the strictest rule holds, which is Claude's. In the ledger bytes are
base64, as they are on the wire.
"""

import json
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

from runfold_projections.providers.bedrock_recording import BedrockRecorder, recognizes
from runfold_projections.providers.encoding import Encoded, Encoding, Limits, Lossy, Used, joined, text_of
from runfold_projections.providers.recording import is_base64
from runfold_schemas.messages import (
    DocumentPart,
    ImagePart,
    Message,
    OpaquePart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
)

__all__ = ["BedrockRecorder", "encode", "recognizes"]

_Block = dict[str, Any]

_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")

# The service takes "." and ":" in ids too, Claude behind it does not; its "`tool_use` ids must be
# unique".
_LIMITS: Final = Limits(id_illegal=_ILLEGAL, id_max=64, name_illegal=_ILLEGAL, name_max=64, ids_unique=True)

_IMAGES: Final[Mapping[str, str]] = {
    "image/png": "png",
    "image/jpeg": "jpeg",
    "image/gif": "gif",
    "image/webp": "webp",
}
_DOCUMENTS: Final[Mapping[str, str]] = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "text/html": "html",
    "text/plain": "txt",
    "text/markdown": "md",
}
_ENDINGS: Final[Mapping[str, str]] = {"jpg": "jpeg", "htm": "html"}

_S3: Final = re.compile(r"s3://[a-z0-9][.\-a-z0-9]{1,61}[a-z0-9](/.*)?")
_S3_MAX: Final = 1024

_NAME_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9\s\-()\[\]]")
_NAME_MAX: Final = 200

_HOLDS: Final[Mapping[Role, frozenset[str]]] = {
    "system": frozenset({"text"}),
    "assistant": frozenset({"text", "thinking", "tool_use", "opaque"}),
    "user": frozenset({"text", "tool_result", "image", "document", "opaque"}),
}


def encode(messages: Sequence[Message], lossy: Lossy) -> Encoded:
    """`system`, if there is any, and `messages`, in which roles alternate: Converse refuses two of
    one role in a row.
    """
    return _Converse(lossy).encoded(messages)


class _Converse:
    """One encoding."""

    def __init__(self, lossy: Lossy) -> None:
        self._encoding = Encoding("bedrock", _LIMITS, lossy)
        # "Messages can't contain duplicate document names."
        self._names = Used(_NAME_MAX)
        # Whether the user has said more than results since the assistant spoke, and whether that
        # has text in it.
        self._asked = self._texted = False

    def encoded(self, messages: Sequence[Message]) -> Encoded:
        system: list[_Block] = []
        spoken: list[tuple[Role, list[_Block]]] = []
        for message in self._encoding.messages(messages):
            if message.role == "system":
                system += self._instructions(message, begun=bool(spoken))
                continue
            if message.role == "assistant":
                self._asked = self._texted = False
            spoken.append((message.role, self._blocks(message)))
        body: dict[str, Any] = {"system": system} if system else {}
        body["messages"] = [{"role": role, "content": blocks} for role, blocks in joined(spoken)]
        return self._encoding.encoded(body)

    def _instructions(self, message: Message, *, begun: bool) -> list[_Block]:
        if not begun:
            return self._blocks(message)
        for _ in self._encoding.parts(message):
            self._encoding.refuse("a system message stands before the conversation, never within it")
        return []

    def _blocks(self, message: Message) -> list[_Block]:
        blocks: list[_Block] = []
        for part in self._encoding.parts(message):
            if part.type not in _HOLDS[message.role]:
                self._encoding.refuse(f"a message of the {message.role} holds no {part.type}")
            elif part.type == "document" and not self._has_text(message):
                self._encoding.refuse("a document needs a text in its message")
            elif (block := self._block(part)) is not None:
                blocks.append(block)
                if message.role == "user":
                    self._asked = self._asked or part.type != "tool_result"
                    self._texted = self._texted or part.type == "text"
        return blocks

    def _has_text(self, message: Message) -> bool:
        """Whether the user says something beside a document; what follows in another message is not
        known yet.
        """
        return self._texted or any(
            isinstance(part, TextPart) and not _blank(part.text) for part in message.parts
        )

    def _block(self, part: Part) -> _Block | None:
        match part:
            case TextPart():
                return self._text(part)
            case ToolUsePart():
                return self._call(part)
            case ToolResultPart():
                return self._result(part)
            case ThinkingPart():
                return self._thinking(part)
            case ImagePart():
                return self._image(part)
            case DocumentPart():
                return self._document(part)
            case OpaquePart():
                return self._opaque(part)
            case _:
                assert_never(part)

    def _text(self, part: TextPart) -> _Block | None:
        if _blank(part.text):
            self._encoding.leave_out(
                "text content blocks must contain non-whitespace text", rule="text-not-blank"
            )
            return None
        if citations := _own(part).get("citations"):
            return {"citationsContent": {"content": [{"text": part.text}], "citations": citations}}
        return {"text": part.text}

    def _call(self, part: ToolUsePart) -> _Block | None:
        if not isinstance(part.input, dict):
            why = f"the input of tool_use {part.id!r} is no object"
            self._encoding.refuse(why, rule="input-is-object", tool_use_id=part.id)
            return None
        call = self._encoding.call(part)
        return {"toolUse": {**_own(part), "toolUseId": call.id, "name": call.name, "input": part.input}}

    def _thinking(self, part: ThinkingPart) -> _Block | None:
        if part.provider_data and "bedrock" not in part.provider_data:
            self._encoding.refuse(f"thinking of {', '.join(part.provider_data)} is not signed for it")
            return None
        if part.redacted:
            return {"reasoningContent": {"redactedContent": b64decode(part.redacted)}}
        if part.signature:
            return {"reasoningContent": {"reasoningText": {"text": part.text, "signature": part.signature}}}
        self._encoding.refuse("thinking without a signature")
        return None

    def _opaque(self, part: OpaquePart) -> _Block | None:
        if part.provider != "bedrock" or not isinstance(part.content, dict):
            self._encoding.refuse(f"a block that only {part.provider} understands")
            return None
        block: _Block = _with_bytes(part.content)
        return block

    def _result(self, part: ToolResultPart) -> _Block | None:
        call = self._encoding.answered(part)
        if call is None:
            return None
        if self._asked:
            # Claude's rule: results come first in what the user says.
            why = "the results of tools come before all else that the user says"
            self._encoding.refuse(why, tool_use_id=part.tool_use_id)
            return None
        attached = [self._block(attachment) for attachment in part.attachments]
        content = [block for block in attached if block]
        if part.content != "" or not content:
            content.insert(0, _result_content(part.content))
        result: _Block = {"toolUseId": call.id, "content": content}
        # Not every model takes a status; only an error needs one.
        return {"toolResult": {**result, "status": "error"} if part.is_error else result}

    def _image(self, part: ImagePart) -> _Block | None:
        picture = _format(part, _IMAGES)
        if picture is None:
            self._encoding.refuse(
                f"an image of {part.media_type or part.url}: it takes png, jpeg, gif and webp"
            )
            return None
        source = self._source(part)
        return {"image": {**_own(part), "format": picture, "source": source}} if source else None

    def _document(self, part: DocumentPart) -> _Block | None:
        kind = _format(part, _DOCUMENTS)
        if kind is None:
            self._encoding.refuse(
                f"a document of {part.media_type or part.url}: it takes {', '.join(_DOCUMENTS.values())}"
            )
            return None
        source = self._source(part)
        if source is None:
            return None
        return {"document": {**_own(part), "format": kind, "name": self._name(part.name), "source": source}}

    def _name(self, name: str) -> str:
        """ "Alphanumeric characters, whitespace characters (no more than one in a row), hyphens,
        parentheses, square brackets".
        """
        legal = " ".join(_NAME_ILLEGAL.sub("-", name).split())[:_NAME_MAX].strip()
        return self._names.unused(legal or "document")

    def _source(self, part: ImagePart | DocumentPart) -> _Block | None:
        if part.data:
            return {"bytes": b64decode(part.data)}
        if part.url and len(part.url) <= _S3_MAX and _S3.fullmatch(part.url):
            return {"s3Location": {"uri": part.url}}
        why = f"{part.type} at {part.url!r}: it reads S3 only" if part.url else f"an empty {part.type}"
        self._encoding.refuse(why)
        return None


def _blank(text: str) -> bool:
    return not text or text.isspace()


def _own(part: TextPart | ToolUsePart | ImagePart | DocumentPart) -> Mapping[str, Any]:
    """What only Bedrock understands of a part: a text's citations, a document's context."""
    return (part.provider_data and part.provider_data.get("bedrock")) or {}


def _result_content(content: Any) -> _Block:
    """An object as JSON, all else as text: "Provide a json object for the field" is the answer to
    any other JSON.
    """
    if isinstance(content, dict):
        return {"json": content}
    text = text_of(content)
    # Refused as every blank text is; as JSON it has its quotes.
    return {"text": json.dumps(text) if _blank(text) else text}


def _format(part: ImagePart | DocumentPart, formats: Mapping[str, str]) -> str | None:
    """Bedrock's word for the media type; of a reference that does without, its name's ending says
    it.
    """
    if part.media_type:
        return formats.get(part.media_type)
    ending = (part.url or "").rpartition(".")[2].lower()
    ending = _ENDINGS.get(ending, ending)
    return ending if ending in formats.values() else None


def _with_bytes(value: Any) -> Any:
    """A kept block with its bytes as bytes again. A call's input and a result's JSON are the
    tool's, and stay.
    """
    if isinstance(value, list):
        return [_with_bytes(member) for member in value]
    if not isinstance(value, dict):
        return value
    return {
        name: b64decode(member)
        if name in ("bytes", "redactedContent") and is_base64(member)
        else member
        if name in ("input", "json")
        else _with_bytes(member)
        for name, member in value.items()
    }
