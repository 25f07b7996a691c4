"""Records the responses and streams of Anthropic's Messages API as events."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from runfold_projections.providers.claude_citations import anthropic_citations
from runfold_projections.providers.recording import Blocks
from runfold_projections.providers.values import get, is_base64, others, plain
from runfold_schemas.data import Data
from runfold_schemas.events import ProviderPart
from runfold_schemas.whole_texts import whole

_Block = dict[str, Any]

_BEGINNINGS: Final = frozenset({"message_start", "content_block_start", "content_block_delta"})

# Events of the SDK's stream helper that repeat events of the API.
_REPEATED: Final = frozenset(
    {"ping", "text", "thinking", "input_json", "signature", "citation", "compaction"}
)

_OPAQUE: Final = re.compile(
    r"redacted_thinking|server_tool_use|mcp_tool_use|mcp_tool_listing|container_upload|compaction|fallback"
    r"|\w+_tool_result"
)
"""The known kinds of blocks for which Runfold has no kind. Other blocks are kept with a fault."""

_READ: Final = frozenset({"id", "type", "role", "model", "content", "stop_reason", "usage"})
"""The members of a message that the events have in fields of their own."""

_COUNTED: Final = frozenset(
    {"input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"}
    | {"cache_creation", "output_tokens_details", "server_tool_use"}
)
"""The members of the usage that `TokenUsage` has."""


def recognizes(response: Any) -> bool:
    """Whether this is a Message, or an event with which a stream can begin."""
    kind = get(response, "type")
    if kind == "message":
        return get(response, "role") == "assistant" and isinstance(get(response, "content"), list)
    return isinstance(kind, str) and kind in _BEGINNINGS


def is_claude(model: str | None) -> bool:
    """Whether the name is one of Anthropic's models. Other makers have endpoints of this format."""
    return model is not None and "claude" in model.lower()


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
        self._other_usage: dict[str, Any] = {}

    def response(self, response: Any) -> Sequence[Data]:
        self._head(response)
        self._stop_reason(response)
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
        self.blocks.response_id = whole(self.blocks.string(get(message, "id"))) or None
        self.blocks.model = whole(self.blocks.string(get(message, "model"))) or None
        self._usage(get(message, "usage"))
        self._beside(message)

    def _tail(self, event: Any) -> None:
        """Reads the end of a message from a `message_delta`."""
        delta = get(event, "delta")
        self._stop_reason(delta)
        self._usage(get(event, "usage"))
        self._beside(delta)
        self._beside(event, without=_READ | {"delta"})

    def _stop_reason(self, message: Any) -> None:
        reason = get(message, "stop_reason")
        self.blocks.stop_reason = whole(self.blocks.string(reason)) or self.blocks.stop_reason

    def _beside(self, message: Any, without: frozenset[str] = _READ) -> None:
        """Keeps what stands beside the content. The next request needs the id of the container, in
        which the provider runs code.
        """
        members = others(message, without)
        self.blocks.beside(members)
        container = get(members.get("container"), "id")
        if isinstance(container, str):
            self.blocks.next_request(container=container)

    def _usage(self, usage: Any) -> None:
        self.blocks.usage(usage)
        self._other_usage |= others(usage, _COUNTED)
        if self._other_usage:
            self.blocks.beside({"usage": self._other_usage})

    def _begin(self, index: int, block: Any) -> None:
        blocks = self.blocks
        match get(block, "type"):
            case "text":
                blocks.text(index, blocks.string(get(block, "text")))
                self._keep(index, block, without=("text",))
            case "thinking":
                signature = blocks.string(get(block, "signature"))
                blocks.thinking(index, blocks.string(get(block, "thinking")), signature=signature)
                self._mark_foreign(index)
                self._keep(index, block, without=("thinking", "signature"))
            case "redacted_thinking" if is_base64(get(block, "data")):
                blocks.thinking(index, redacted=get(block, "data"))
                self._keep(index, block, without=("data",))
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
        """Keeps the other members of the block for Anthropic only. A stream may begin with an empty
        list of citations.
        """
        # The SDK's helpers add `parsed_output`, which the API refuses.
        members = others(block, {"type", "parsed_output", *without})
        self.blocks.keep(index, {name: value for name, value in members.items() if value != []})
        if isinstance(citations := members.get("citations"), list):
            self._cite(index, citations)

    def _cite(self, index: int, citations: list[Any]) -> None:
        self._citations[index] = self._citations.get(index, []) + citations
        self.blocks.keep(index, {"citations": self._citations[index]})
        self.blocks.cite(index, anthropic_citations(self._citations[index]))

    def _mark_foreign(self, index: int) -> None:
        """Marks the thinking of another maker's model: Claude refuses it, and the ledger keeps it
        even if it is not signed, because its maker needs it back.
        """
        if self.blocks.model and not is_claude(self.blocks.model):
            self.blocks.keep(index, {"signature": ""})

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
                self._cite(index, [plain(get(delta, "citation"))])
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
        match get(delta, "type"):
            case "input_json_delta":
                pieces.append(self.blocks.string(get(delta, "partial_json")))
                # The pieces so far, in case the stream breaks off.
                content["input"] = pieces
            case "compaction_delta":
                content.update(others(delta, {"type"}))
            case "citations_delta":
                content["citations"] = [*(content.get("citations") or ()), plain(get(delta, "citation"))]
            case "text_delta" | "thinking_delta" | "signature_delta":
                for name, piece in others(delta, {"type"}).items():
                    before = content.get(name)
                    content[name] = before + piece if isinstance(before, str) else piece
            case _:
                return [self._unknown(delta, "delta")]
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
        self.blocks.close(index)
        return self.blocks.take()

    def _unknown(self, content: Any, kind: str) -> ProviderPart:
        """An event for an unknown part of the stream. The log has it unchanged, the ledger omits
        it.
        """
        self.blocks.fault(f"an unknown {kind} of the stream: {plain(content)!r:.100}")
        return ProviderPart(content=plain(content), finished=False)
