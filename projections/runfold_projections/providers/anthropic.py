"""Anthropic's Messages API: encodes a ledger as a request. `anthropic_recording` records the
responses.

The rules come from the documentation and the error messages of the Messages API.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

from runfold_projections.providers.anthropic_cache import MARKS_MAX, newest_marks
from runfold_projections.providers.anthropic_recording import AnthropicRecorder, is_claude, recognizes
from runfold_projections.providers.blobs import file_of
from runfold_projections.providers.encoding import Encoded, EncodeOptions, Encoding, Limits, input_of, text_of
from runfold_projections.providers.media_types import is_text
from runfold_projections.providers.server_tools import caller_of
from runfold_projections.providers.values import is_blank, is_blank_part
from runfold_schemas.messages import (
    AudioPart,
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
    VideoPart,
)

__all__ = ["AnthropicRecorder", "encode", "recognizes"]

_Block = dict[str, Any]

_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")

# The API's rules: "tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'" and "`tool_use` ids
# must be unique", in the whole conversation. Names have up to 128 of these characters. The API does
# not document the length of ids; 64 is the limit of the strictest provider.
_LIMITS: Final = Limits(id_illegal=_ILLEGAL, id_max=64, name_illegal=_ILLEGAL, name_max=128, ids_unique=True)

_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


_HOLDS: Final[Mapping[Role, frozenset[str]]] = {
    "system": frozenset({"text"}),
    "assistant": frozenset({"text", "thinking", "tool_use", "opaque"}),
    "user": frozenset({"text", "tool_result", "image", "document", "opaque"}),
}


def encode(messages: Sequence[Message], options: EncodeOptions) -> Encoded:
    """The request's `messages`, and `system` if the ledger has system messages. Adjacent messages
    of the same role stay separate, because the API merges them.
    """
    encoding = Encoding("anthropic", _LIMITS, options)
    system: list[_Block] = []
    conversation: list[_Block] = []
    # Whether the user's messages since the last assistant message hold more than results.
    has_begun = has_more = False
    for index, each in enumerate(encoding.messages(messages)):
        message = each
        if message.role == "system" and not has_begun:
            system += _blocks(encoding, message, has_more=False)[0]
            continue
        has_begun = True
        if message.role == "system" and not _takes_instructions(conversation, messages, index):
            message = encoding.restate(message)
        blocks, has_more = _blocks(encoding, message, has_more=has_more)
        has_more = has_more and message.role == "user"
        if message.role == "system" and conversation[-1]["role"] == "system":
            conversation[-1]["content"] += blocks
        elif blocks and not encoding.leaves_thinking_alone(message):
            conversation.append({"role": message.role, "content": blocks})
    if encoding.marks > MARKS_MAX:
        newest_marks(system, conversation, kept=MARKS_MAX - encoding.foreign_marks)
    return encoding.finish({**({"system": system} if system else {}), "messages": conversation})


def _takes_instructions(conversation: Sequence[_Block], messages: Sequence[Message], index: int) -> bool:
    """Whether the system message at `index` may follow this conversation, for models that take one
    there. It is behind a message of the user or a call of the provider's tool, and before the
    assistant or at the end.
    """
    following = (messages[at] for at in range(index + 1, len(messages)))
    after = next((message.role for message in following if _is_visible(message)), "assistant")
    if after != "assistant" or not conversation:
        return False
    before = conversation[-1]
    return bool(before["role"] != "assistant" or before["content"][-1]["type"] == "server_tool_use")


def _is_visible(message: Message) -> bool:
    return message.role != "system" and not all(is_blank_part(part) for part in message.parts)


def _blocks(encoding: Encoding, message: Message, *, has_more: bool) -> tuple[list[_Block], bool]:
    """A message's blocks, and whether the user's messages now hold more than results.

    "tool_result blocks must come first in the content array; any text must come after all tool
    results."
    """
    blocks: list[_Block] = []
    for part in encoding.parts(message):
        if part.type not in _HOLDS[message.role]:
            encoding.refuse(f"a message of the {message.role} cannot hold {part.type} parts")
        elif (block := _block(encoding, part, has_more=has_more)) is not None:
            blocks.append(block)
            has_more = has_more or part.type != "tool_result"
    return blocks, has_more


def _block(encoding: Encoding, part: Part, *, has_more: bool) -> _Block | None:
    match part:
        case TextPart():
            return _text(encoding, part)
        case ToolUsePart():
            return _call(encoding, part)
        case ToolResultPart():
            return _result(encoding, part, has_more=has_more)
        case ThinkingPart():
            return _thinking(encoding, part)
        case ImagePart():
            return _image(encoding, part)
        case DocumentPart():
            return _document(encoding, part)
        case AudioPart() | VideoPart():
            encoding.refuse(f"Anthropic takes no {part.type}")
            return None
        case OpaquePart():
            return _opaque(encoding, part)
        case _:
            assert_never(part)


def _text(encoding: Encoding, part: TextPart) -> _Block | None:
    if is_blank(part.text):
        encoding.leave_out("text content blocks must contain non-whitespace text", rule="text-not-blank")
        return None
    return _with_provider_data(encoding, part, {"type": "text", "text": part.text})


def _call(encoding: Encoding, part: ToolUsePart) -> _Block | None:
    arguments = input_of(part)
    if not isinstance(arguments, dict):
        encoding.refuse(
            f"the input of tool_use {part.id!r} is not an object", rule="input-is-object", tool_use_id=part.id
        )
        return None
    call = encoding.call(part)
    block: _Block = {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}
    if encoding.is_refused(caller_of(encoding.provider_data(part))):
        # The code that made the call is left out.
        block["caller"] = {"type": "direct"}
    return _with_provider_data(encoding, part, block)


def _thinking(encoding: Encoding, part: ThinkingPart) -> _Block | None:
    if part.provider_data and "anthropic" not in part.provider_data:
        encoding.refuse(f"thinking of {', '.join(part.provider_data)} is not signed by Anthropic")
        return None
    if part.redacted:
        return _with_provider_data(encoding, part, {"type": "redacted_thinking", "data": part.redacted})
    is_foreign = "signature" in encoding.provider_data(part)
    if is_foreign and is_claude(encoding.model):
        encoding.refuse("thinking that no model of Anthropic signed")
        return None
    if part.signature or is_foreign:
        return _with_provider_data(
            encoding, part, {"type": "thinking", "thinking": part.text, "signature": part.signature}
        )
    encoding.refuse("thinking without a signature")
    return None


def _opaque(encoding: Encoding, part: OpaquePart) -> _Block | None:
    if part.provider != "anthropic" or not isinstance(part.content, dict):
        encoding.refuse(f"only {part.provider} understands the block")
        return None
    encoding.marks += "cache_control" in part.content
    return part.content


def _result(encoding: Encoding, part: ToolResultPart, *, has_more: bool) -> _Block | None:
    call = encoding.match_call(part)
    if call is None:
        return None
    if has_more:
        why = "tool results must be before all else in the user's message"
        encoding.refuse(why, tool_use_id=part.tool_use_id)
        return None
    block: _Block = {"type": "tool_result", "tool_use_id": call.id}
    if toolset := encoding.provider_data(call.part).get("toolset_name"):
        block["toolset_name"] = toolset
    text = text_of(part.content)
    if text.isspace():
        # The API refuses blank text. As JSON the text has quotes.
        text = json.dumps(text)
    attached = [_block(encoding, attachment, has_more=has_more) for attachment in part.attachments]
    encoding.keep_part()
    media = [medium for medium in attached if medium]
    if part.attachments:
        block["content"] = ([{"type": "text", "text": text}] if text else []) + media
    elif text:
        block["content"] = text
    if part.is_error and not media:
        # "All content must be type `text` if `is_error` is true." The text says that it failed.
        block["is_error"] = True
    return _with_provider_data(encoding, part, block)


def _image(encoding: Encoding, part: ImagePart) -> _Block | None:
    source = _file(part) or _picture(encoding, part)
    return source and _with_provider_data(encoding, part, {"type": "image", "source": source})


def _document(encoding: Encoding, part: DocumentPart) -> _Block | None:
    source = _file(part) or _text_or_pdf(encoding, part)
    block = source and _with_provider_data(encoding, part, {"type": "document", "source": source})
    return {**block, "title": part.name} if block and part.name else block


def _file(part: ImagePart | DocumentPart) -> _Block | None:
    """The provider's own copy of the bytes, if there is one."""
    file_id = file_of(part, "anthropic")
    return {"type": "file", "file_id": file_id} if file_id else None


def _picture(encoding: Encoding, part: ImagePart) -> _Block | None:
    if part.media_type and part.media_type not in _IMAGES:
        encoding.refuse(f"an image of type {part.media_type}: Anthropic accepts jpeg, png, gif and webp")
        return None
    return _source(encoding, part)


def _text_or_pdf(encoding: Encoding, part: DocumentPart) -> _Block | None:
    if part.data is not None and is_text(part.media_type):
        return _plain_text(encoding, part)
    if part.media_type not in ("application/pdf", ""):
        encoding.refuse(f"a document of type {part.media_type}: Anthropic accepts PDF, and text as data")
        return None
    return _source(encoding, part)


def _source(encoding: Encoding, part: ImagePart | DocumentPart) -> _Block | None:
    if part.data:
        return {"type": "base64", "media_type": part.media_type, "data": part.data}
    if part.url and part.url.startswith("https://"):
        return {"type": "url", "url": part.url}
    encoding.refuse(
        f"{part.type} at {part.url!r}: Anthropic fetches https only" if part.url else f"an empty {part.type}"
    )
    return None


def _plain_text(encoding: Encoding, part: DocumentPart) -> _Block | None:
    """The source of a text document. The API only knows plain text, so any text type becomes it."""
    text = encoding.decoded(part)
    if text is None:
        return None
    if is_blank(text):
        encoding.refuse(f"a document of {part.media_type} without text")
        return None
    return {"type": "text", "media_type": "text/plain", "data": text}


def _with_provider_data(encoding: Encoding, part: Part, block: _Block) -> _Block:
    """The block with the part's data for Anthropic only: citations, cache_control and others."""
    data = encoding.provider_data(part)
    if not data:
        return block
    encoding.marks += "cache_control" in data
    return {**{name: value for name, value in data.items() if name != "file_id"}, **block}
