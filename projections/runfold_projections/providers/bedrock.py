"""Bedrock's Converse and ConverseStream: encodes a ledger as arguments of boto3.
`bedrock_recording` records the responses.

The rules come from the service model, the documentation and the error messages of the Converse API.
If models differ, the strictest rule applies, which is Claude's. The ledger holds bytes as base64.
"""

import json
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

from runfold_projections.providers.bedrock_recording import BedrockRecorder, recognizes
from runfold_projections.providers.encoding import (
    Encoded,
    Encoding,
    Limits,
    Lossy,
    UniqueNames,
    merge_adjacent,
    text_of,
)
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

# The service accepts "." and ":" in ids too, but Claude does not. Claude's rule: "`tool_use` ids
# must be unique".
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
    """The request's `messages`, and `system` if the ledger has system messages. Roles alternate,
    because Converse refuses two messages of the same role in a row.
    """
    return _Converse(lossy).encode(messages)


class _Converse:
    """One encoding."""

    def __init__(self, lossy: Lossy) -> None:
        self._encoding = Encoding("bedrock", _LIMITS, lossy)
        # "Messages can't contain duplicate document names."
        self._names = UniqueNames(_NAME_MAX)
        # Whether the user's messages since the last assistant message hold more than results, and
        # whether they hold text.
        self._has_more = self._has_text = False

    def encode(self, messages: Sequence[Message]) -> Encoded:
        system: list[_Block] = []
        turns: list[tuple[Role, list[_Block]]] = []
        for message in self._encoding.messages(messages):
            if message.role == "system":
                system += self._instructions(message, has_begun=bool(turns))
                continue
            if message.role == "assistant":
                self._has_more = self._has_text = False
            turns.append((message.role, self._blocks(message)))
        body: dict[str, Any] = {"system": system} if system else {}
        body["messages"] = [{"role": role, "content": blocks} for role, blocks in merge_adjacent(turns)]
        return self._encoding.finish(body)

    def _instructions(self, message: Message, *, has_begun: bool) -> list[_Block]:
        if not has_begun:
            return self._blocks(message)
        for _ in self._encoding.parts(message):
            self._encoding.refuse("a system message must be before the conversation, not within it")
        return []

    def _blocks(self, message: Message) -> list[_Block]:
        blocks: list[_Block] = []
        for part in self._encoding.parts(message):
            if part.type not in _HOLDS[message.role]:
                self._encoding.refuse(f"a message of the {message.role} cannot hold {part.type} parts")
            elif part.type == "document" and not self._accompanies_document(message):
                self._encoding.refuse("a document needs a text in its message")
            elif (block := self._block(part)) is not None:
                blocks.append(block)
                if message.role == "user":
                    self._has_more = self._has_more or part.type != "tool_result"
                    self._has_text = self._has_text or part.type == "text"
        return blocks

    def _accompanies_document(self, message: Message) -> bool:
        """Whether a document in the message is accompanied by text. Later messages do not count,
        because they are not read yet.
        """
        return self._has_text or any(
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
        if citations := _provider_data(part).get("citations"):
            return {"citationsContent": {"content": [{"text": part.text}], "citations": citations}}
        return {"text": part.text}

    def _call(self, part: ToolUsePart) -> _Block | None:
        if not isinstance(part.input, dict):
            why = f"the input of tool_use {part.id!r} is not an object"
            self._encoding.refuse(why, rule="input-is-object", tool_use_id=part.id)
            return None
        call = self._encoding.call(part)
        return {
            "toolUse": {**_provider_data(part), "toolUseId": call.id, "name": call.name, "input": part.input}
        }

    def _thinking(self, part: ThinkingPart) -> _Block | None:
        if part.provider_data and "bedrock" not in part.provider_data:
            self._encoding.refuse(f"thinking of {', '.join(part.provider_data)} is not signed by Bedrock")
            return None
        if part.redacted:
            return {"reasoningContent": {"redactedContent": b64decode(part.redacted)}}
        if part.signature:
            return {"reasoningContent": {"reasoningText": {"text": part.text, "signature": part.signature}}}
        self._encoding.refuse("thinking without a signature")
        return None

    def _opaque(self, part: OpaquePart) -> _Block | None:
        if part.provider != "bedrock" or not isinstance(part.content, dict):
            self._encoding.refuse(f"only {part.provider} understands the block")
            return None
        block: _Block = _with_bytes(part.content)
        return block

    def _result(self, part: ToolResultPart) -> _Block | None:
        call = self._encoding.match_call(part)
        if call is None:
            return None
        if self._has_more:
            # Claude's rule: results are first in the user's message.
            why = "tool results must be before all else in the user's message"
            self._encoding.refuse(why, tool_use_id=part.tool_use_id)
            return None
        media = [self._block(attachment) for attachment in part.attachments]
        content = [block for block in media if block]
        if part.content != "" or not content:
            content.insert(0, _result_content(part.content))
        result: _Block = {"toolUseId": call.id, "content": content}
        # Not every model accepts a status, so only errors have one.
        return {"toolResult": {**result, "status": "error"} if part.is_error else result}

    def _image(self, part: ImagePart) -> _Block | None:
        picture = _format(part, _IMAGES)
        if picture is None:
            self._encoding.refuse(
                f"an image of type {part.media_type or part.url}: Bedrock accepts png, jpeg, gif and webp"
            )
            return None
        source = self._source(part)
        return {"image": {**_provider_data(part), "format": picture, "source": source}} if source else None

    def _document(self, part: DocumentPart) -> _Block | None:
        kind = _format(part, _DOCUMENTS)
        if kind is None:
            self._encoding.refuse(
                f"a document of type {part.media_type or part.url}: Bedrock accepts"
                f" {', '.join(_DOCUMENTS.values())}"
            )
            return None
        source = self._source(part)
        if source is None:
            return None
        name = self._name(part.name)
        return {"document": {**_provider_data(part), "format": kind, "name": name, "source": source}}

    def _name(self, name: str) -> str:
        """A legal and unique name. The API allows "alphanumeric characters, whitespace characters
        (no more than one in a row), hyphens, parentheses, square brackets".
        """
        legal = " ".join(_NAME_ILLEGAL.sub("-", name).split())[:_NAME_MAX].strip()
        return self._names.claim(legal or "document")

    def _source(self, part: ImagePart | DocumentPart) -> _Block | None:
        if part.data:
            return {"bytes": b64decode(part.data)}
        if part.url and len(part.url) <= _S3_MAX and _S3.fullmatch(part.url):
            return {"s3Location": {"uri": part.url}}
        why = f"{part.type} at {part.url!r}: Bedrock reads S3 only" if part.url else f"an empty {part.type}"
        self._encoding.refuse(why)
        return None


def _blank(text: str) -> bool:
    return not text or text.isspace()


def _provider_data(part: TextPart | ToolUsePart | ImagePart | DocumentPart) -> Mapping[str, Any]:
    """The part's data for Bedrock only: citations of a text, context of a document."""
    return (part.provider_data and part.provider_data.get("bedrock")) or {}


def _result_content(content: Any) -> _Block:
    """An object as JSON, any other content as text. For other JSON the API answers "Provide a json
    object for the field".
    """
    if isinstance(content, dict):
        return {"json": content}
    text = text_of(content)
    # The API refuses blank text. As JSON the text has quotes.
    return {"text": json.dumps(text) if _blank(text) else text}


def _format(part: ImagePart | DocumentPart, formats: Mapping[str, str]) -> str | None:
    """Bedrock's word for the media type. For a reference without a type, the ending of its URL
    decides.
    """
    if part.media_type:
        return formats.get(part.media_type)
    ending = (part.url or "").rpartition(".")[2].lower()
    ending = _ENDINGS.get(ending, ending)
    return ending if ending in formats.values() else None


def _with_bytes(value: Any) -> Any:
    """A kept block with base64 decoded to bytes again. The input of a call and the JSON of a result
    belong to the tool and stay unchanged.
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
