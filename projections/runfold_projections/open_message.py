"""The open assistant message of a ledger: its parts while they arrive."""

from collections.abc import Mapping, Sequence
from typing import Any

from runfold_schemas.events import AssistantMessage, ProviderPart, Thinking
from runfold_schemas.messages import Provider

Fields = dict[str, Any]
"""The fields of a part or a message that is not built yet."""


class OpenMessage:
    """The parts of an open assistant message. With a provider, parts keep their order; otherwise
    thinking comes first.
    """

    __slots__ = ("_parts", "_provider", "_text", "_text_data", "_text_index", "_text_members", "_thinking")

    def __init__(self, provider: Provider | None = None) -> None:
        self._provider = provider
        self._thinking: list[Fields] = []
        self._parts: list[Fields] = []
        # The pieces of the last text. They are joined once, because appending each piece to a
        # string would copy a long text again and again.
        self._text: list[str] = []
        self._text_index: int | None = None
        self._text_data: Mapping[str, Any] | None = None
        self._text_members: Fields = {}

    def think(self, thinking: Thinking) -> bool:
        """Adds thinking. Returns whether it is part of the message: no provider accepts thinking
        that no provider signed.
        """
        kept = thinking.redacted or (thinking.signature and (thinking.text or self._provider))
        if not kept and thinking.provider_data is None:
            return False
        part = {
            "type": "thinking",
            "text": "" if thinking.redacted else thinking.text,
            "signature": "" if thinking.redacted else thinking.signature,
            "redacted": thinking.redacted or None,
            "index": thinking.content_index,
            "final": thinking.final,
        }
        if self._provider:
            self._end_text()
            self._parts.append(with_data(part, thinking.provider_data))
        else:
            self._thinking.append(with_data(part, thinking.provider_data))
        return True

    def say(self, text: str, index: int | None = None) -> None:
        if index != self._text_index:
            self._end_text()
            self._text_index = index
        self._text.append(text)

    def add_text(self, block: AssistantMessage) -> None:
        provider_data, citations = block.provider_data, block.citations
        if not block.message and provider_data is None and not citations:
            return
        self.say(block.message, block.content_index)
        if provider_data is not None:
            self._text_data = {**(self._text_data or {}), **provider_data}
        if block.blobs:
            self._text_members.setdefault("blobs", []).extend(block.blobs)
        if block.refusal:
            self._text_members["refusal"] = True
        if citations:
            self._text_members.setdefault("citations", []).extend(each.model_dump() for each in citations)

    def call(
        self,
        tool_id: str,
        name: str,
        args: Any,
        provider_data: Mapping[str, Any] | None = None,
        blobs: Sequence[str] = (),
    ) -> None:
        self._end_text()
        part = {"type": "tool_use", "id": tool_id, "name": name, "input": args}
        self._parts.append(with_blobs(with_data(part, provider_data), blobs))

    def keep(self, block: ProviderPart) -> bool:
        """Adds a block of the provider. Returns whether it is part of the message."""
        if not block.finished or not self._provider:
            return False
        self._end_text()
        part = {"type": "opaque", "provider": self._provider, "content": block.content}
        self._parts.append(with_blobs(part, block.blobs))
        return True

    def parts(self) -> list[Fields]:
        return self._thinking + self._parts + self._open_text()

    def _end_text(self) -> None:
        self._parts += self._open_text()
        self._text.clear()
        self._text_data = None
        self._text_members = {}

    def _open_text(self) -> list[Fields]:
        text = "".join(self._text)
        if not text and self._text_data is None and not self._text_members:
            return []
        return [with_data({"type": "text", "text": text, **self._text_members}, self._text_data)]


def with_data(part: Fields, provider_data: Mapping[str, Any] | None) -> Fields:
    return part if provider_data is None else {**part, "provider_data": provider_data}


def with_blobs(part: Fields, blobs: Sequence[str]) -> Fields:
    return {**part, "blobs": blobs} if blobs else part
