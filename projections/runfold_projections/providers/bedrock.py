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

from runfold_projections.providers.bedrock_cache import cache_points, settle_points
from runfold_projections.providers.bedrock_recording import BedrockRecorder, recognizes
from runfold_projections.providers.encoding import (
    Encoded,
    EncodeOptions,
    Encoding,
    Limits,
    input_of,
    merge_adjacent,
    text_of,
)
from runfold_projections.providers.legal_names import UniqueNames
from runfold_projections.providers.media_types import base_type, is_text
from runfold_projections.providers.values import is_base64, is_blank
from runfold_schemas.messages import (
    AudioPart,
    DocumentPart,
    ImagePart,
    Medium,
    Message,
    OpaquePart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
    VideoPart,
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
_SOUNDS: Final[Mapping[str, str]] = {
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
    "audio/wav": "wav",
    "audio/aac": "aac",
    "audio/flac": "flac",
    "audio/ogg": "ogg",
    "audio/opus": "opus",
    "audio/mp4": "m4a",
    "audio/webm": "webm",
}
_VIDEOS: Final[Mapping[str, str]] = {
    "video/mp4": "mp4",
    "video/quicktime": "mov",
    "video/x-matroska": "mkv",
    "video/webm": "webm",
    "video/x-flv": "flv",
    "video/mpeg": "mpeg",
    "video/x-ms-wmv": "wmv",
    "video/3gpp": "three_gp",
}
_ENDINGS: Final[Mapping[str, str]] = {"jpg": "jpeg", "htm": "html"}

_S3: Final = re.compile(r"s3://[a-z0-9][.\-a-z0-9]{1,61}[a-z0-9](/.*)?")
_S3_MAX: Final = 1024

_NAME_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9\s\-()\[\]]")
_NAME_MAX: Final = 200

_HOLDS: Final[Mapping[Role, frozenset[str]]] = {
    "system": frozenset({"text"}),
    "assistant": frozenset({"text", "thinking", "tool_use", "opaque"}),
    "user": frozenset({"text", "tool_result", "image", "document", "audio", "video", "opaque"}),
}


def encode(messages: Sequence[Message], options: EncodeOptions) -> Encoded:
    """The request's `messages`, and `system` if the ledger has system messages. Roles alternate,
    because Converse refuses two messages of the same role in a row.
    """
    return _Converse(options).encode(messages)


class _Converse:
    """One encoding."""

    def __init__(self, options: EncodeOptions) -> None:
        self._encoding = Encoding("bedrock", _LIMITS, options)
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
                system += self._blocks(message)
                continue
            if message.role == "assistant":
                self._has_more = self._has_text = False
            blocks = self._blocks(message)
            if blocks and not self._encoding.leaves_thinking_alone(message):
                turns.append((message.role, blocks))
        body: dict[str, Any] = {"system": system} if system else {}
        body["messages"] = [{"role": role, "content": blocks} for role, blocks in merge_adjacent(turns)]
        if self._encoding.marks:
            settle_points(system, body["messages"], elsewhere=self._encoding.foreign_marks)
        return self._encoding.finish(body)

    def _blocks(self, message: Message) -> list[_Block]:
        blocks: list[_Block] = []
        for part in self._encoding.parts(message):
            if part.type not in _HOLDS[message.role]:
                self._encoding.refuse(f"a message of the {message.role} cannot hold {part.type} parts")
            elif part.type == "document" and not self._accompanies_document(message):
                self._encoding.refuse("a document needs a text in its message")
            elif (block := self._block(part)) is not None:
                blocks.append(block)
                if (data := self._encoding.provider_data(part)) and part.type != "thinking":
                    points = cache_points(data)
                    self._encoding.marks += len(points)
                    blocks += points
                if message.role == "user":
                    self._has_more = self._has_more or part.type != "tool_result"
                    self._has_text = self._has_text or part.type == "text"
        return blocks

    def _accompanies_document(self, message: Message) -> bool:
        """Whether a document in the message is accompanied by text. Later messages do not count,
        because they are not read yet.
        """
        return self._has_text or any(
            isinstance(part, TextPart) and not is_blank(part.text) for part in message.parts
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
            case AudioPart():
                return self._recording(part, _SOUNDS)
            case VideoPart():
                return self._recording(part, _VIDEOS)
            case OpaquePart():
                return self._opaque(part)
            case _:
                assert_never(part)

    def _text(self, part: TextPart) -> _Block | None:
        if is_blank(part.text):
            self._encoding.leave_out(
                "text content blocks must contain non-whitespace text", rule="text-not-blank"
            )
            return None
        own = _provider_data(part)
        if citations := own.get("citations"):
            texts = own.get("content", [])
            if "".join(each["text"] for each in texts) != part.text:
                texts = [{"text": part.text}]
            return {"citationsContent": {"content": texts, "citations": citations}}
        return {"text": part.text}

    def _call(self, part: ToolUsePart) -> _Block | None:
        arguments = input_of(part)
        if not isinstance(arguments, dict):
            why = f"the input of tool_use {part.id!r} is not an object"
            self._encoding.refuse(why, rule="input-is-object", tool_use_id=part.id)
            return None
        call = self._encoding.call(part)
        return {
            "toolUse": {**_provider_data(part), "toolUseId": call.id, "name": call.name, "input": arguments}
        }

    def _thinking(self, part: ThinkingPart) -> _Block | None:
        if part.provider_data and "bedrock" not in part.provider_data:
            self._encoding.refuse(f"thinking of {', '.join(part.provider_data)} is not signed by Bedrock")
            return None
        if part.redacted:
            return {"reasoningContent": {"redactedContent": b64decode(part.redacted)}}
        if part.signature:
            text = {**_provider_data(part), "text": part.text, "signature": part.signature}
            return {"reasoningContent": {"reasoningText": text}}
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
        media = [self._attachment(attachment) for attachment in part.attachments]
        self._encoding.keep_part()
        content = [block for block in media if block]
        if part.content != "" or not content:
            content.insert(0, _result_content(part.content))
        result: _Block = {**_provider_data(part), "toolUseId": call.id, "content": content}
        # Not every model accepts a status, so only errors have one. Claude's errors are text alone.
        has_failed = part.is_error and not any(media)
        return {"toolResult": {**result, "status": "error"} if has_failed else result}

    def _attachment(self, part: Medium) -> _Block | None:
        if isinstance(part, AudioPart):
            self._encoding.refuse("a result of a tool cannot hold audio")
            return None
        return self._block(part)

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

    def _recording(self, part: AudioPart | VideoPart, formats: Mapping[str, str]) -> _Block | None:
        kind = _format(part, formats)
        if kind is None:
            accepted = ", ".join(dict.fromkeys(formats.values()))
            why = f"{part.type} of type {part.media_type or part.url}: Bedrock accepts {accepted}"
            self._encoding.refuse(why)
            return None
        source = self._source(part)
        return {part.type: {"format": kind, "source": source}} if source else None

    def _name(self, name: str) -> str:
        """A legal and unique name. The API allows "alphanumeric characters, whitespace characters
        (no more than one in a row), hyphens, parentheses, square brackets".
        """
        legal = " ".join(_NAME_ILLEGAL.sub("-", name).split())[:_NAME_MAX].strip()
        return self._names.claim(legal or "document")

    def _source(self, part: Medium) -> _Block | None:
        if part.data:
            return {"bytes": b64decode(part.data)}
        if part.url and len(part.url) <= _S3_MAX and _S3.fullmatch(part.url):
            return {"s3Location": {"uri": part.url}}
        why = f"{part.type} at {part.url!r}: Bedrock reads S3 only" if part.url else f"an empty {part.type}"
        self._encoding.refuse(why)
        return None


def _provider_data(part: Part) -> Mapping[str, Any]:
    """The members for the part's block: citations of a text, context of a document."""
    by_provider = getattr(part, "provider_data", None)
    data: Mapping[str, Any] = (by_provider and by_provider.get("bedrock")) or {}
    if "cachePoint" in data:
        return {name: value for name, value in data.items() if name != "cachePoint"}
    return data


def _result_content(content: Any) -> _Block:
    """An object as JSON, any other content as text. For other JSON the API answers "Provide a json
    object for the field".
    """
    if isinstance(content, dict):
        return {"json": content}
    text = text_of(content)
    # The API refuses blank text. As JSON the text has quotes.
    return {"text": json.dumps(text) if is_blank(text) else text}


def _format(part: Medium, formats: Mapping[str, str]) -> str | None:
    """Bedrock's word for the media type. For a reference without a type, the ending of its URL
    decides.
    """
    if part.media_type:
        kind = formats.get(base_type(part.media_type))
        # Any other text is readable as plain text.
        return kind or ("txt" if formats is _DOCUMENTS and is_text(part.media_type) else None)
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
