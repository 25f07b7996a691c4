"""Anthropic's Messages: a ledger as their request, their responses and streams as events.

The rules are those of the Messages API: what it documents, and what its errors say.
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

# The rules: "tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'" and "`tool_use` ids must
# be unique", in all of the conversation; names are up to 128 of these. How long an id may be is not
# said: 64 is what the strictest provider takes.
_LIMITS: Final = Limits(id_illegal=_ILLEGAL, id_max=64, name_illegal=_ILLEGAL, name_max=128, ids_unique=True)

_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})


_HOLDS: Final[Mapping[Role, frozenset[str]]] = {
    "system": frozenset({"text"}),
    "assistant": frozenset({"text", "thinking", "tool_use", "opaque"}),
    "user": frozenset({"text", "tool_result", "image", "document", "opaque"}),
}


def encode(messages: Sequence[Message], lossy: Lossy) -> Encoded:
    """`system`, if there is any, and `messages`. Adjacent messages of one role stay: the API joins
    them itself.
    """
    encoding = Encoding("anthropic", _LIMITS, lossy)
    system: list[_Block] = []
    spoken: list[_Block] = []
    # Whether the user has said more than results since the assistant spoke.
    begun = asked = False
    for message in encoding.messages(messages):
        if message.role == "system":
            system += _instructions(encoding, message, begun=begun)
            continue
        begun = True
        blocks, more = _blocks(encoding, message, asked=asked)
        asked = more and message.role == "user"
        if blocks:
            spoken.append({"role": message.role, "content": blocks})
    return encoding.encoded({"system": system, "messages": spoken} if system else {"messages": spoken})


def _instructions(encoding: Encoding, message: Message, *, begun: bool) -> list[_Block]:
    if not begun:
        return _blocks(encoding, message, asked=False)[0]
    for _ in encoding.parts(message):
        encoding.refuse("a system message stands before the conversation, never within it")
    return []


def _blocks(encoding: Encoding, message: Message, *, asked: bool) -> tuple[list[_Block], bool]:
    """A message's blocks, and whether there is now more than results.

    "tool_result blocks must come first in the content array; any text must come after all tool
    results."
    """
    blocks: list[_Block] = []
    for part in encoding.parts(message):
        if part.type not in _HOLDS[message.role]:
            encoding.refuse(f"a message of the {message.role} holds no {part.type}")
        elif (block := _block(encoding, part, asked=asked)) is not None:
            blocks.append(block)
            asked = asked or part.type != "tool_result"
    return blocks, asked


def _block(encoding: Encoding, part: Part, *, asked: bool) -> _Block | None:
    match part:
        case TextPart():
            return _text(encoding, part)
        case ToolUsePart():
            return _call(encoding, part)
        case ToolResultPart():
            return _result(encoding, part, asked=asked)
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
    return _with_own(part, {"type": "text", "text": part.text})


def _call(encoding: Encoding, part: ToolUsePart) -> _Block | None:
    if not isinstance(part.input, dict):
        encoding.refuse(
            f"the input of tool_use {part.id!r} is no object", rule="input-is-object", tool_use_id=part.id
        )
        return None
    call = encoding.call(part)
    return _with_own(part, {"type": "tool_use", "id": call.id, "name": call.name, "input": part.input})


def _thinking(encoding: Encoding, part: ThinkingPart) -> _Block | None:
    if part.provider_data and "anthropic" not in part.provider_data:
        encoding.refuse(f"thinking of {', '.join(part.provider_data)} is not signed for it")
        return None
    if part.redacted:
        return _with_own(part, {"type": "redacted_thinking", "data": part.redacted})
    if part.signature:
        return _with_own(part, {"type": "thinking", "thinking": part.text, "signature": part.signature})
    encoding.refuse("thinking without a signature")
    return None


def _opaque(encoding: Encoding, part: OpaquePart) -> _Block | None:
    if part.provider != "anthropic" or not isinstance(part.content, dict):
        encoding.refuse(f"a block that only {part.provider} understands")
        return None
    return part.content


def _result(encoding: Encoding, part: ToolResultPart, *, asked: bool) -> _Block | None:
    call = encoding.answered(part)
    if call is None:
        return None
    if asked:
        why = "the results of tools come before all else that the user says"
        encoding.refuse(why, tool_use_id=part.tool_use_id)
        return None
    block: _Block = {"type": "tool_result", "tool_use_id": call.id}
    text = text_of(part.content)
    if text.isspace():
        # Refused as every blank text is; as JSON it has its quotes.
        text = json.dumps(text)
    if part.attachments:
        attached = [_block(encoding, attachment, asked=asked) for attachment in part.attachments]
        said = [{"type": "text", "text": text}] if text else []
        block["content"] = said + [medium for medium in attached if medium]
    elif text:
        block["content"] = text
    if part.is_error:
        block["is_error"] = True
    return block


def _image(encoding: Encoding, part: ImagePart) -> _Block | None:
    source = None
    if part.media_type and part.media_type not in _IMAGES:
        encoding.refuse(f"an image of {part.media_type}: it takes jpeg, png, gif and webp")
    else:
        source = _source(encoding, part)
    return source and _with_own(part, {"type": "image", "source": source})


def _document(encoding: Encoding, part: DocumentPart) -> _Block | None:
    source = None
    if part.data is not None and part.media_type.startswith("text/"):
        source = _plain_text(encoding, part.data, part.media_type)
    elif part.media_type not in ("application/pdf", ""):
        encoding.refuse(f"a document of {part.media_type}: it takes PDF, and text as data")
    else:
        source = _source(encoding, part)
    block = source and _with_own(part, {"type": "document", "source": source})
    return {**block, "title": part.name} if block and part.name else block


def _source(encoding: Encoding, part: ImagePart | DocumentPart) -> _Block | None:
    if part.data:
        return {"type": "base64", "media_type": part.media_type, "data": part.data}
    if part.url and part.url.startswith("https://"):
        return {"type": "url", "url": part.url}
    encoding.refuse(
        f"{part.type} at {part.url!r}: it fetches https only" if part.url else f"an empty {part.type}"
    )
    return None


def _plain_text(encoding: Encoding, data: str, media_type: str) -> _Block | None:
    """Any kind of text goes as plain text, the one kind that there is: what it says is the same."""
    try:
        text = b64decode(data).decode()
    except UnicodeDecodeError:
        encoding.refuse(f"a document of {media_type} that is not UTF-8")
        return None
    if not text or text.isspace():
        encoding.refuse(f"a document of {media_type} that says nothing")
        return None
    return {"type": "text", "media_type": "text/plain", "data": text}


def _with_own(part: Part, block: _Block) -> _Block:
    """The block with what only Anthropic understands of the part: its citations, its
    cache_control.
    """
    data = getattr(part, "provider_data", None)
    own = data.get("anthropic") if data else None
    return {**own, **block} if own else block


_BEGINNINGS: Final = frozenset({"message_start", "content_block_start", "content_block_delta"})

# What the SDK's stream helper says besides the events of the API, and of the same.
_SAID_TWICE: Final = frozenset(
    {"ping", "text", "thinking", "input_json", "signature", "citation", "compaction"}
)

_OPAQUE: Final = re.compile(
    r"redacted_thinking|server_tool_use|mcp_tool_use|container_upload|compaction|\w+_tool_result"
)
"""The blocks that are known and have no word here; others are kept with a fault."""


def recognizes(response: Any) -> bool:
    """Whether this is a Message, or one of the events with which its stream can begin."""
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
        # By index: the citations of a text, the kept blocks and the pieces of their inputs, the
        # calls that began whole.
        self._citations: dict[int, list[Any]] = {}
        self._kept: dict[int, tuple[_Block, list[str]]] = {}
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
            case str() if kind in _SAID_TWICE:
                pass
            case _:
                return [self._unknown(chunk, "event")]
        return []

    def _head(self, message: Any) -> None:
        self.blocks.message_id = whole(self.blocks.string(get(message, "id"))) or None
        self.blocks.model = whole(self.blocks.string(get(message, "model"))) or None
        self._usage(get(message, "usage"))

    def _tail(self, message: Any) -> None:
        """The end of a message: its members are the message's own, or a `message_delta`'s."""
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
                self._keep(index, block, but=("text",))
            case "thinking":
                signature = blocks.string(get(block, "signature"))
                blocks.thinking(index, blocks.string(get(block, "thinking")), signature=signature)
                self._keep(index, block, but=("thinking", "signature"))
            case "redacted_thinking" if is_base64(get(block, "data")):
                blocks.thinking(index, redacted=get(block, "data"))
            case "tool_use":
                tool_id, name = blocks.string(get(block, "id")), blocks.string(get(block, "name"))
                blocks.call(index, tool_id=tool_id, name=name)
                self._keep(index, block, but=("id", "name", "input"))
                self._input(index, get(block, "input"), name)
            case str() as kind:
                if not _OPAQUE.fullmatch(kind):
                    blocks.fault(f"a block of the unknown kind {kind!r:.100}")
                self._kept[index] = (plain(block), [])
                blocks.other(index, self._kept[index][0])
            case _:
                blocks.fault(f"a block without a kind: {plain(block)!r:.100}")
                blocks.other(index, plain(block), usable=False)

    def _keep(self, index: int, block: Any, *, but: tuple[str, ...]) -> None:
        """What else the block says is for Anthropic alone. A stream says null where it says nothing
        yet.
        """
        said = {name: value for name, value in plain(block).items() if name not in ("type", *but)}
        self.blocks.keep(index, {name: value for name, value in said.items() if value not in (None, [])})
        if isinstance(said.get("citations"), list):
            self._citations[index] = said["citations"]

    def _input(self, index: int, given: Any, name: str) -> None:
        # A stream begins with an empty input, and its text follows.
        if given is not None and given != {}:
            if not isinstance(given, Mapping):
                self.blocks.fault(f"the arguments of {name!r} are no object")
            self.blocks.arguments(index, plain(given))
            self._whole.add(index)

    def _delta(self, index: int, delta: Any) -> Sequence[Data]:
        blocks, kind = self.blocks, get(delta, "type")
        if self._kept and index in self._kept:
            return self._more_of_kept(index, delta)
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

    def _more_of_kept(self, index: int, delta: Any) -> Sequence[Data]:
        content, pieces = self._kept[index]
        if get(delta, "type") != "input_json_delta":
            return [self._unknown(delta, "delta")]
        pieces.append(self.blocks.string(get(delta, "partial_json")))
        # What has arrived, should it break off.
        content["input"] = pieces
        return ()

    def _stop(self, index: int) -> Sequence[Data]:
        content, pieces = self._kept.pop(index, ({}, []))
        if pieces:
            text = "".join(pieces)
            try:
                content["input"] = plain(json.loads(text)) if text else {}
            except (ValueError, RecursionError):
                self.blocks.fault(f"the input of a {content['type']} is no JSON")
                self.blocks.other(index, {**content, "input": plain(text)}, usable=False)
        return self.blocks.close(index)

    def _unknown(self, said: Any, what: str) -> ProviderPart:
        """What has no place is in the log as it came, and in no ledger."""
        self.blocks.fault(f"an unknown {what} of the stream: {plain(said)!r:.100}")
        return ProviderPart(content=plain(said), finished=False)
