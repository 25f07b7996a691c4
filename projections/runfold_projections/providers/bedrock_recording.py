"""Records the responses of Bedrock's Converse and ConverseStream as events. Bytes become base64."""

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from runfold_projections.providers.claude_citations import bedrock_citations
from runfold_projections.providers.recording import Blocks
from runfold_projections.providers.values import get, is_base64, others, plain
from runfold_schemas.data import Data
from runfold_schemas.events import (
    ProviderPart,
)
from runfold_schemas.whole_texts import whole

_Block = dict[str, Any]

_EVENTS: Final = frozenset(
    {"messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata"}
)

_OPAQUE: Final = frozenset(
    {"toolUse", "toolResult", "image", "document", "video", "audio", "searchResult"}
    | {"citationsContent", "reasoningContent", "guardContent", "cachePoint"}
)
"""The known kinds of blocks for which Runfold may have no kind. Other blocks are kept with a fault.
"""

_READ: Final = frozenset({"output", "stopReason", "usage", "ResponseMetadata"})
"""The members of a response that the events have in fields of their own."""

_COUNTED: Final = frozenset(
    {"inputTokens", "outputTokens", "totalTokens", "cacheReadInputTokens", "cacheWriteInputTokens"}
    | {"cacheDetails"}
)
"""The members of the usage that `TokenUsage` has."""

_UNKNOWN: Final = "SDK_UNKNOWN_MEMBER"
"""The member that an old boto3 uses for members that it does not know. Their content is lost."""


def recognizes(response: Any) -> bool:
    """Whether this is Converse's response, or an event of ConverseStream."""
    if not isinstance(response, Mapping):
        return False
    output = response.get("output")
    if isinstance(output, Mapping):
        return isinstance(output.get("message"), Mapping)
    # A response of another provider may have a member `metadata` among others.
    return bool(response) and _EVENTS.issuperset(response)


class BedrockRecorder:
    """Makes events of one response of Converse, or of the events of ConverseStream, as boto3 or
    JSON gives them.
    """

    def __init__(self, tool_names: Mapping[str, str]) -> None:
        self.blocks = Blocks("bedrock", tool_names=tool_names, arguments_are_text=False)
        # By index: the citations of a text, the bytes of redacted thinking, and the opaque blocks
        # with the pieces of their inputs.
        self._citations: dict[int, list[Any]] = {}
        self._redacted: dict[int, bytes] = {}
        self._opaque_blocks: dict[int, tuple[_Block, list[str]]] = {}

    def response(self, response: Any) -> Sequence[Data]:
        metadata = get(response, "ResponseMetadata")
        self.blocks.response_id = whole(self.blocks.string(get(metadata, "RequestId"))) or None
        self.blocks.stop_reason = whole(self.blocks.string(get(response, "stopReason"))) or None
        self._metadata(response)
        message = get(get(response, "output"), "message")
        self.blocks.beside(others(message, {"role", "content"}))
        content = get(message, "content")
        if not isinstance(content, list):
            self.blocks.fault(f"a response without content: {plain(response)!r:.200}")
            content = []
        for index, block in enumerate(content):
            self._take(index, block)
        return self.blocks.end()

    def feed(self, chunk: Any) -> Sequence[Data]:
        if (event := get(chunk, "contentBlockDelta")) is not None:
            return self._delta(get(event, "contentBlockIndex"), get(event, "delta"))
        if (event := get(chunk, "contentBlockStart")) is not None:
            return self._start(get(event, "contentBlockIndex"), get(event, "start"))
        if (event := get(chunk, "contentBlockStop")) is not None:
            return self._stop(get(event, "contentBlockIndex"))
        if get(chunk, "messageStart") is not None:
            self.blocks.unfinished = True
        elif (event := get(chunk, "messageStop")) is not None:
            self.blocks.unfinished = False
            self.blocks.stop_reason = whole(self.blocks.string(get(event, "stopReason"))) or None
            self.blocks.beside(others(event, _READ))
        elif (event := get(chunk, "metadata")) is not None:
            self._metadata(event)
        else:
            return self._error(chunk)
        return ()

    def _metadata(self, metadata: Any) -> None:
        router = get(get(metadata, "trace"), "promptRouter")
        self.blocks.model = whole(self.blocks.string(get(router, "invokedModelId"))) or None
        self.blocks.beside(others(metadata, _READ))
        if (usage := get(metadata, "usage")) is not None:
            self.blocks.usage(usage)
            if more := others(usage, _COUNTED):
                self.blocks.beside({"usage": more})

    def _take(self, index: int, block: Any) -> None:
        """Takes a whole block."""
        blocks = self.blocks
        match _without_nulls(block):
            case {"text": str() as text, **rest} if not rest:
                blocks.text(index, text)
            case {"toolUse": Mapping() as call, **rest} if "type" not in call and not rest:
                self._call(index, call)
                self._input(index, call.get("input"))
            case {"reasoningContent": {"reasoningText": {"text": str() as text, **members}}}:
                blocks.thinking(index, text, signature=blocks.string(members.get("signature")))
                blocks.keep(index, others(members, {"signature"}))
            case {"reasoningContent": {"redactedContent": data}} if _bytes(data):
                blocks.thinking(index, redacted=plain(data))
            case {"citationsContent": {"content": list() as texts, **members}} if _are_texts(texts):
                self._cited(index, texts, members)
            case Mapping() if _OPAQUE.isdisjoint(block) or _is_lost(block):
                blocks.fault(f"a block of an unknown kind: {plain(block)!r:.100}")
                blocks.other(index, plain(block), usable=not _is_lost(block))
            case Mapping():
                blocks.other(index, plain(block))
            case _:
                blocks.fault(f"a block that is not an object: {plain(block)!r:.100}")
                blocks.other(index, plain(block), usable=False)

    def _call(self, index: int, call: Mapping[Any, Any]) -> None:
        tool_id, name = self.blocks.string(call.get("toolUseId")), self.blocks.string(call.get("name"))
        self.blocks.call(index, tool_id=tool_id, name=name)
        self.blocks.keep(index, others(call, {"toolUseId", "name", "input"}))

    def _cited(self, index: int, texts: list[Any], members: Mapping[Any, Any]) -> None:
        self.blocks.text(index, "".join(each["text"] for each in texts))
        if len(texts) > 1:
            self.blocks.keep(index, {"content": plain(texts)})
        citations = members.get("citations")
        if isinstance(citations, list) and citations:
            self._cite(index, citations)

    def _cite(self, index: int, citations: list[Any]) -> None:
        self._citations[index] = self._citations.get(index, []) + plain(citations)
        self.blocks.keep(index, {"citations": self._citations[index]})
        self.blocks.cite(index, bedrock_citations(self._citations[index]))

    def _input(self, index: int, arguments: Any) -> None:
        if not isinstance(arguments, Mapping | None):
            self.blocks.fault(f"the arguments of a call are not an object: {plain(arguments)!r:.100}")
        self.blocks.arguments(index, plain(arguments))

    def _start(self, index: Any, start: Any) -> Sequence[Data]:
        match start:
            case _ if not isinstance(index, int):
                return self._unplaced(start)
            case {"toolUse": Mapping() as call} if "type" not in call:
                self._call(index, call)
            case {"toolUse": Mapping() as call}:
                self._begin_opaque(index, "toolUse", {**call, "input": {}})
            case {"toolResult": Mapping() as result}:
                self._begin_opaque(index, "toolResult", {**result, "content": []})
            case {"image": Mapping() as image}:
                self._begin_opaque(index, "image", {**image, "source": {}})
            case _:
                return self._unplaced(start)
        return ()

    def _begin_opaque(self, index: int, kind: str, block: _Block) -> None:
        content = {kind: plain(block)}
        self._opaque_blocks[index] = (content, [])
        self.blocks.other(index, content)

    def _delta(self, index: Any, delta: Any) -> Sequence[Data]:
        blocks = self.blocks
        match delta:
            case _ if not isinstance(index, int):
                return self._unplaced(delta)
            case _ if self._opaque_blocks and index in self._opaque_blocks:
                return self._more_of_opaque(delta, *self._opaque_blocks[index])
            case {"text": str() as text}:
                blocks.text(index, text)
            case {"toolUse": {"input": str() as piece}}:
                blocks.arguments_text(index, piece)
            case {"reasoningContent": {"text": str() as text}}:
                blocks.thinking(index, text)
            case {"reasoningContent": {"signature": str() as signature}}:
                blocks.thinking(index, signature=signature)
            case {"reasoningContent": {"redactedContent": data}} if _bytes(data):
                self._redacted[index] = self._redacted.get(index, b"") + _bytes(data)
                blocks.thinking(index, redacted=plain(self._redacted[index]))
            case {"citation": Mapping() as citation}:
                blocks.text(index, "")
                self._cite(index, [citation])
            case _:
                return self._unplaced(delta)
        return ()

    def _more_of_opaque(self, delta: Any, content: _Block, pieces: list[str]) -> Sequence[Data]:
        match delta, content:
            case {"toolUse": {"input": str() as piece}}, {"toolUse": call}:
                pieces.append(piece)
                # The pieces so far, in case the stream breaks off.
                call["input"] = pieces
            case {"toolResult": list() as results}, {"toolResult": kept}:
                for result in results:
                    _add_result(kept["content"], plain(result))
            case {"image": {"source": Mapping() as source}}, {"image": {"source": kept}}:
                before = _bytes(kept.get("bytes"))
                kept.update(plain(source))
                if more := _bytes(source.get("bytes")):
                    kept["bytes"] = plain(before + more)
            case {"image": {"error": error}}, {"image": kept}:
                kept["error"] = plain(error)
            case _:
                return self._unplaced(delta)
        return ()

    def _stop(self, index: Any) -> Sequence[Data]:
        if not isinstance(index, int):
            return self._unplaced(index)
        content, pieces = self._opaque_blocks.pop(index, ({}, []))
        if pieces:
            text = whole("".join(pieces))
            try:
                content["toolUse"]["input"] = plain(json.loads(text)) if text else {}
            except (ValueError, RecursionError):
                self.blocks.fault("the input of a call that the service makes is not JSON")
                self.blocks.other(index, plain(content), usable=False)
        self.blocks.close(index)
        return self.blocks.take()

    def _error(self, chunk: Any) -> Sequence[Data]:
        """Takes an exception of the stream, which replaces its end, or an unknown chunk."""
        names = (
            [name for name in chunk if str(name).endswith("Exception")] if isinstance(chunk, Mapping) else []
        )
        if not names:
            return self._unplaced(chunk)
        self.blocks.unfinished = True
        self.blocks.fault(f"the stream broke off: {plain(chunk)!r:.200}")
        return ()

    def _unplaced(self, content: Any) -> Sequence[Data]:
        """An event for an unknown part of the stream. The log has it unchanged, the ledger omits
        it.
        """
        self.blocks.fault(f"an unknown part of the stream: {plain(content)!r:.100}")
        return [ProviderPart(content=plain(content), finished=False)]


def _add_result(results: list[Any], more: Any) -> None:
    """Adds a part of a result. Adjacent texts become one text, as in a response that is not
    streamed.
    """
    match results, more:
        case [*_, {"text": str() as before}], {"text": str() as text}:
            results[-1] = {"text": before + text}
        case _:
            results.append(more)


def _without_nulls(block: Any) -> Any:
    """The block without members that are null. Typed clients write all kinds of a block."""
    if not isinstance(block, Mapping):
        return block
    return {name: member for name, member in block.items() if member is not None}


def _are_texts(texts: list[Any]) -> bool:
    return bool(texts) and all(
        isinstance(each, Mapping) and each.keys() == {"text"} and isinstance(each["text"], str)
        for each in texts
    )


def _bytes(value: Any) -> bytes:
    """Bytes from boto3, or decoded from base64. Empty for any other value."""
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    return b64decode(value) if is_base64(value) else b""


def _is_lost(value: Any) -> bool:
    """Whether boto3 has lost a member of the value."""
    if isinstance(value, list):
        return any(_is_lost(member) for member in value)
    return isinstance(value, Mapping) and (
        _UNKNOWN in value or any(_is_lost(member) for member in value.values())
    )
