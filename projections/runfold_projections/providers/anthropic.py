"""Anthropic's Messages API: encodes a ledger as a request, and records responses and streams as
events.

The rules come from the documentation and the error messages of the Messages API.
"""

import json
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

from runfold_projections.providers.encoding import Encoded, Encoding, Limits, Lossy, text_of
from runfold_projections.providers.recording import Blocks, get, is_base64, plain, whole
from runfold_schemas.data import Data
from runfold_schemas.events import (
    ProviderPart,
)
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


def encode(messages: Sequence[Message], lossy: Lossy) -> Encoded:
    """The request's `messages`, and `system` if the ledger has system messages. Adjacent messages
    of the same role stay separate, because the API merges them.
    """
    encoding = Encoding("anthropic", _LIMITS, lossy)
    system: list[_Block] = []
    conversation: list[_Block] = []
    # Whether the user's messages since the last assistant message hold more than results.
    has_begun = has_more = False
    for message in encoding.messages(messages):
        if message.role == "system":
            system += _instructions(encoding, message, has_begun=has_begun)
            continue
        has_begun = True
        blocks, has_more = _blocks(encoding, message, has_more=has_more)
        has_more = has_more and message.role == "user"
        if blocks:
            conversation.append({"role": message.role, "content": blocks})
    return encoding.finish({**({"system": system} if system else {}), "messages": conversation})


def _instructions(encoding: Encoding, message: Message, *, has_begun: bool) -> list[_Block]:
    if not has_begun:
        return _blocks(encoding, message, has_more=False)[0]
    for _ in encoding.parts(message):
        encoding.refuse("a system message must be before the conversation, not within it")
    return []


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
        case OpaquePart():
            return _opaque(encoding, part)
        case _:
            assert_never(part)


def _text(encoding: Encoding, part: TextPart) -> _Block | None:
    if not part.text or part.text.isspace():
        encoding.leave_out("text content blocks must contain non-whitespace text", rule="text-not-blank")
        return None
    return _with_provider_data(part, {"type": "text", "text": part.text})


def _call(encoding: Encoding, part: ToolUsePart) -> _Block | None:
    if not isinstance(part.input, dict):
        encoding.refuse(
            f"the input of tool_use {part.id!r} is not an object", rule="input-is-object", tool_use_id=part.id
        )
        return None
    call = encoding.call(part)
    return _with_provider_data(
        part, {"type": "tool_use", "id": call.id, "name": call.name, "input": part.input}
    )


def _thinking(encoding: Encoding, part: ThinkingPart) -> _Block | None:
    if part.provider_data and "anthropic" not in part.provider_data:
        encoding.refuse(f"thinking of {', '.join(part.provider_data)} is not signed by Anthropic")
        return None
    if part.redacted:
        return _with_provider_data(part, {"type": "redacted_thinking", "data": part.redacted})
    if part.signature:
        return _with_provider_data(
            part, {"type": "thinking", "thinking": part.text, "signature": part.signature}
        )
    encoding.refuse("thinking without a signature")
    return None


def _opaque(encoding: Encoding, part: OpaquePart) -> _Block | None:
    if part.provider != "anthropic" or not isinstance(part.content, dict):
        encoding.refuse(f"only {part.provider} understands the block")
        return None
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
    text = text_of(part.content)
    if text.isspace():
        # The API refuses blank text. As JSON the text has quotes.
        text = json.dumps(text)
    if part.attachments:
        media = [_block(encoding, attachment, has_more=has_more) for attachment in part.attachments]
        texts = [{"type": "text", "text": text}] if text else []
        block["content"] = texts + [medium for medium in media if medium]
    elif text:
        block["content"] = text
    if part.is_error:
        block["is_error"] = True
    return block


def _image(encoding: Encoding, part: ImagePart) -> _Block | None:
    source = None
    if part.media_type and part.media_type not in _IMAGES:
        encoding.refuse(f"an image of type {part.media_type}: Anthropic accepts jpeg, png, gif and webp")
    else:
        source = _source(encoding, part)
    return source and _with_provider_data(part, {"type": "image", "source": source})


def _document(encoding: Encoding, part: DocumentPart) -> _Block | None:
    source = None
    if part.data is not None and part.media_type.startswith("text/"):
        source = _plain_text(encoding, part.data, part.media_type)
    elif part.media_type not in ("application/pdf", ""):
        encoding.refuse(f"a document of type {part.media_type}: Anthropic accepts PDF, and text as data")
    else:
        source = _source(encoding, part)
    block = source and _with_provider_data(part, {"type": "document", "source": source})
    return {**block, "title": part.name} if block and part.name else block


def _source(encoding: Encoding, part: ImagePart | DocumentPart) -> _Block | None:
    if part.data:
        return {"type": "base64", "media_type": part.media_type, "data": part.data}
    if part.url and part.url.startswith("https://"):
        return {"type": "url", "url": part.url}
    encoding.refuse(
        f"{part.type} at {part.url!r}: Anthropic fetches https only" if part.url else f"an empty {part.type}"
    )
    return None


def _plain_text(encoding: Encoding, data: str, media_type: str) -> _Block | None:
    """The source of a text document. The API only knows plain text, so any text type becomes it."""
    try:
        text = b64decode(data).decode()
    except UnicodeDecodeError:
        encoding.refuse(f"a document of {media_type} that is not UTF-8")
        return None
    if not text or text.isspace():
        encoding.refuse(f"a document of {media_type} without text")
        return None
    return {"type": "text", "media_type": "text/plain", "data": text}


def _with_provider_data(part: Part, block: _Block) -> _Block:
    """The block with the part's data for Anthropic only: citations, cache_control and others."""
    by_provider = getattr(part, "provider_data", None)
    data = by_provider.get("anthropic") if by_provider else None
    return {**data, **block} if data else block


_BEGINNINGS: Final = frozenset({"message_start", "content_block_start", "content_block_delta"})

# Events of the SDK's stream helper that repeat events of the API.
_REPEATED: Final = frozenset(
    {"ping", "text", "thinking", "input_json", "signature", "citation", "compaction"}
)

_OPAQUE: Final = re.compile(
    r"redacted_thinking|server_tool_use|mcp_tool_use|container_upload|compaction|\w+_tool_result"
)
"""The known kinds of blocks for which Runfold has no kind. Other blocks are kept with a fault."""


def recognizes(response: Any) -> bool:
    """Whether this is a Message, or an event with which a stream can begin."""
    kind = get(response, "type")
    if kind == "message":
        return get(response, "role") == "assistant" and isinstance(get(response, "content"), list)
    return isinstance(kind, str) and kind in _BEGINNINGS


class AnthropicRecorder:
    """Makes events of one Message, or of its stream: the API's own events, or those of the SDK's
    stream helper.
    """

    def __init__(self, tool_names: Mapping[str, str]) -> None:
        self.blocks = Blocks("anthropic", tool_names=tool_names, arguments_are_text=False)
        # By index: the citations of a text, the opaque blocks with the pieces of their inputs, and
        # the calls that began with their whole input.
        self._citations: dict[int, list[Any]] = {}
        self._opaque_blocks: dict[int, tuple[_Block, list[str]]] = {}
        self._whole: set[int] = set()

    def response(self, response: Any) -> Sequence[Data]:
        self._head(response)
        self._tail(response)
        content = get(response, "content")
        if not isinstance(content, list):
            self.blocks.fault(f"a response without content: {get(response, 'error') or response!r:.200}")
            content = []
        for index, block in enumerate(content):
            self._begin(index, block)
        return self.blocks.end()

    def feed(self, chunk: Any) -> Sequence[Data]:
        kind = get(chunk, "type")
        index = get(chunk, "index")
        match kind:
            case "content_block_delta" if isinstance(index, int):
                return self._delta(index, get(chunk, "delta"))
            case "content_block_start" if isinstance(index, int):
                self._begin(index, get(chunk, "content_block"))
            case "content_block_stop" if isinstance(index, int):
                return self._stop(index)
            case "message_start":
                self.blocks.unfinished = True
                self._head(get(chunk, "message"))
            case "message_delta":
                self._tail(chunk)
            case "message_stop":
                self.blocks.unfinished = False
            case "error":
                self.blocks.unfinished = True
                self.blocks.fault(f"the stream broke off: {plain(get(chunk, 'error'))!r:.200}")
            case str() if kind in _REPEATED:
                pass
            case _:
                return [self._unknown(chunk, "event")]
        return []

    def _head(self, message: Any) -> None:
        self.blocks.message_id = whole(self.blocks.string(get(message, "id"))) or None
        self.blocks.model = whole(self.blocks.string(get(message, "model"))) or None
        self._usage(get(message, "usage"))

    def _tail(self, message: Any) -> None:
        """Reads the end of a message from the message itself or from a `message_delta`."""
        reason = get(message, "stop_reason") or get(get(message, "delta"), "stop_reason")
        self.blocks.stop_reason = whole(self.blocks.string(reason)) or self.blocks.stop_reason
        self._usage(get(message, "usage"))

    def _usage(self, usage: Any) -> None:
        if usage is not None:
            self.blocks.usage(
                input_tokens=get(usage, "input_tokens"),
                output_tokens=get(usage, "output_tokens"),
                cache_read_tokens=get(usage, "cache_read_input_tokens"),
                cache_write_tokens=get(usage, "cache_creation_input_tokens"),
            )

    def _begin(self, index: int, block: Any) -> None:
        blocks = self.blocks
        match get(block, "type"):
            case "text":
                blocks.text(index, blocks.string(get(block, "text")))
                self._keep(index, block, without=("text",))
            case "thinking":
                signature = blocks.string(get(block, "signature"))
                blocks.thinking(index, blocks.string(get(block, "thinking")), signature=signature)
                self._keep(index, block, without=("thinking", "signature"))
            case "redacted_thinking" if is_base64(get(block, "data")):
                blocks.thinking(index, redacted=get(block, "data"))
            case "tool_use":
                tool_id, name = blocks.string(get(block, "id")), blocks.string(get(block, "name"))
                blocks.call(index, tool_id=tool_id, name=name)
                self._keep(index, block, without=("id", "name", "input"))
                self._input(index, get(block, "input"), name)
            case str() as kind:
                if not _OPAQUE.fullmatch(kind):
                    blocks.fault(f"a block of the unknown kind {kind!r:.100}")
                self._opaque_blocks[index] = (plain(block), [])
                blocks.other(index, self._opaque_blocks[index][0])
            case _:
                blocks.fault(f"a block without a kind: {plain(block)!r:.100}")
                blocks.other(index, plain(block), usable=False)

    def _keep(self, index: int, block: Any, *, without: tuple[str, ...]) -> None:
        """Keeps the other members of the block for Anthropic only. A stream may send null first."""
        members = {name: value for name, value in plain(block).items() if name not in ("type", *without)}
        self.blocks.keep(index, {name: value for name, value in members.items() if value not in (None, [])})
        if isinstance(members.get("citations"), list):
            self._citations[index] = members["citations"]

    def _input(self, index: int, arguments: Any, name: str) -> None:
        # A stream begins with an empty input, and the text of the input follows.
        if arguments is not None and arguments != {}:
            if not isinstance(arguments, Mapping):
                self.blocks.fault(f"the arguments of {name!r} are not an object")
            self.blocks.arguments(index, plain(arguments))
            self._whole.add(index)

    def _delta(self, index: int, delta: Any) -> Sequence[Data]:
        blocks, kind = self.blocks, get(delta, "type")
        if self._opaque_blocks and index in self._opaque_blocks:
            return self._more_of_opaque(index, delta)
        match kind:
            case "text_delta":
                blocks.text(index, blocks.string(get(delta, "text")))
            case "input_json_delta":
                self._more_input(index, blocks.string(get(delta, "partial_json")))
            case "thinking_delta":
                blocks.thinking(index, blocks.string(get(delta, "thinking")))
            case "signature_delta":
                blocks.thinking(index, signature=blocks.string(get(delta, "signature")))
            case "citations_delta":
                blocks.text(index, "")
                self._citations.setdefault(index, []).append(plain(get(delta, "citation")))
                blocks.keep(index, {"citations": self._citations[index]})
            case _:
                return [self._unknown(delta, "delta")]
        return ()

    def _more_input(self, index: int, piece: str) -> None:
        if piece and index in self._whole:
            self._whole.discard(index)
            self.blocks.arguments(index, None)
        self.blocks.arguments_text(index, piece)

    def _more_of_opaque(self, index: int, delta: Any) -> Sequence[Data]:
        content, pieces = self._opaque_blocks[index]
        if get(delta, "type") != "input_json_delta":
            return [self._unknown(delta, "delta")]
        pieces.append(self.blocks.string(get(delta, "partial_json")))
        # The pieces so far, in case the stream breaks off.
        content["input"] = pieces
        return ()

    def _stop(self, index: int) -> Sequence[Data]:
        content, pieces = self._opaque_blocks.pop(index, ({}, []))
        if pieces:
            text = "".join(pieces)
            try:
                content["input"] = plain(json.loads(text)) if text else {}
            except (ValueError, RecursionError):
                self.blocks.fault(f"the input of a {content['type']} is not JSON")
                self.blocks.other(index, {**content, "input": plain(text)}, usable=False)
        return self.blocks.close(index)

    def _unknown(self, content: Any, kind: str) -> ProviderPart:
        """An event for an unknown part of the stream. The log has it unchanged, the ledger omits
        it.
        """
        self.blocks.fault(f"an unknown {kind} of the stream: {plain(content)!r:.100}")
        return ProviderPart(content=plain(content), finished=False)
