"""OpenAI's Responses API: encodes a ledger as a flat list of items, in the order of the ledger.

Items of this API are sent back unchanged and with their ids, because the API pairs them (400: "Item
'fc_…' of type 'function_call' was provided without its required 'reasoning' item"). It also refuses
reasoning that nothing follows ("…without its required following item"). If a run broke off after
reasoning, that reasoning is omitted and listed. Reasoning of other providers is refused.

The ids of calls are unique in a whole request ("Duplicate function_call_output for call_id"), so
repeated ids are numbered.

Data for this provider only (`provider_data["openai-responses"]`):

- `item`: the members of the item that the ledger has no field for (id, status, phase,
  encrypted_content, …);
- for a text: `part`, the same members of its content part (annotations, logprobs), and `refusal`
  (true);
- for a call: `arguments`, if the exact text is not compact JSON, and `custom` (true) for free text.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from runfold_projections.providers.encoding import Encoded, Encoding, Limits, Lossy, text_of
from runfold_projections.providers.openai_chat import arguments_text, image_url
from runfold_projections.providers.openai_responses_recording import ResponsesRecorder
from runfold_projections.providers.recording import get
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

__all__ = ["ResponsesRecorder", "encode", "recognizes"]

_LIMITS: Final = Limits(
    id_illegal=re.compile(r"[^a-zA-Z0-9_-]"),
    id_max=64,
    name_illegal=re.compile(r"[^a-zA-Z0-9_-]"),
    name_max=64,
    ids_unique=True,
)

_ENDINGS: Final[Mapping[str, str]] = {
    "application/pdf": ".pdf",
    "application/json": ".json",
    "application/msword": ".doc",
    "application/vnd.ms-excel": ".xls",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": ".pptx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "text/csv": ".csv",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/xml": ".xml",
}

Fields = dict[str, Any]


def encode(messages: Sequence[Message], lossy: Lossy) -> Encoded:
    encoding = Encoding("openai-responses", _LIMITS, lossy)
    items = _Items(encoding)
    for message in encoding.messages(messages):
        if message.role == "assistant":
            items.assistant(message)
        else:
            items.others(message)
    return encoding.finish({"input": items.list})


class _Items:
    """The items so far, with the ids and the custom calls that later items depend on."""

    def __init__(self, encoding: Encoding) -> None:
        self.list: list[Fields] = []
        self._encoding = encoding
        self._ids: set[str] = set()
        self._custom: set[str] = set()

    def others(self, message: Message) -> None:
        """Adds a message of the system or the user. Results become items of their own."""
        content: list[Fields] = []
        for part in self._encoding.parts(message):
            match part:
                case ToolResultPart():
                    self._add_message(message.role, content)
                    content = []
                    self._result(part)
                case TextPart():
                    content += self._content(part)
                case ImagePart() | DocumentPart() if message.role == "user":
                    content += self._content(part)
                case _:
                    self._encoding.refuse(f"a message of the {message.role} cannot hold {part.type} parts")
        self._add_message(message.role, content)

    def assistant(self, message: Message) -> None:
        last = max(
            (at for at, part in enumerate(message.parts) if not isinstance(part, ThinkingPart)), default=-1
        )
        group: Fields | None = None
        for at, part in enumerate(self._encoding.parts(message)):
            if isinstance(part, TextPart):
                group = self._text(part, group)
                continue
            group = None
            match part:
                case ToolUsePart():
                    self._call(part)
                case ThinkingPart() if "item" in self._encoding.provider_data(part):
                    self._reasoning(self._item(part), followed=at < last)
                case OpaquePart(provider="openai-responses", content=dict(item)):
                    self.list.append(item)
                case _:
                    self._encoding.refuse(f"a {part.type} of the assistant from another provider")

    def _text(self, part: TextPart, group: Fields | None) -> Fields | None:
        """Adds a text. Returns the item that takes further texts with the same id, if any."""
        item, data = self._item(part), self._encoding.provider_data(part)
        if not part.text and not item:
            self._encoding.leave_out("an empty text", rule="text-not-blank")
            return group
        if data.get("refusal"):
            content: Fields = {"type": "refusal", "refusal": part.text}
        else:
            content = {"type": "output_text", "text": part.text, "annotations": []}
        content |= _mapping(data.get("part"))
        if group and group["id"] == item.get("id"):
            group["content"].append(content)
            return group
        if not self._is_new(item):
            # A message of another provider has no id. The short form needs none.
            self.list.append({"role": "assistant", "content": part.text})
            return None
        group = {"type": "message", "role": "assistant", "status": "completed", **item, "content": [content]}
        self.list.append(group)
        return group

    def _reasoning(self, item: Fields, *, followed: bool) -> None:
        if not followed:
            self._encoding.leave_out("reasoning that nothing follows", rule="more-than-thinking")
        elif "id" in item and not self._is_new(item):
            self._encoding.leave_out(f"reasoning {item['id']!r} a second time", rule="more-than-thinking")
        else:
            self.list.append({"type": "reasoning", "summary": [], **item})

    def _call(self, part: ToolUsePart) -> None:
        call = self._encoding.call(part)
        item = self._item(part)
        if not self._is_new(item):
            item.pop("id", None)
        members = {"call_id": call.id, "name": call.name}
        if self._encoding.provider_data(part).get("custom") and isinstance(
            text := get(part.input, "input"), str
        ):
            self._custom.add(call.id)
            self.list.append({"type": "custom_tool_call", **item, **members, "input": text})
        else:
            self.list.append({"type": "function_call", **item, **members, "arguments": arguments_text(part)})

    def _result(self, part: ToolResultPart) -> None:
        call = self._encoding.match_call(part)
        if call is None:
            return
        media = [item for attachment in part.attachments for item in self._content(attachment)]
        output: str | list[Fields] = text_of(part.content)
        if media:
            texts = [] if part.content in (None, "") else [{"type": "input_text", "text": output}]
            output = [*texts, *media]
        kind = "custom_tool_call_output" if call.id in self._custom else "function_call_output"
        self.list.append({"type": kind, "call_id": call.id, "output": output})

    def _content(self, part: TextPart | ImagePart | DocumentPart) -> list[Fields]:
        match part:
            case TextPart(text=""):
                self._encoding.leave_out("an empty text", rule="text-not-blank")
                return []
            case TextPart():
                return [{"type": "input_text", "text": part.text}]
            case ImagePart():
                url = image_url(self._encoding, part)
                detail = self._encoding.provider_data(part).get("detail") or "auto"
                return [{"type": "input_image", "image_url": url, "detail": detail}] if url else []
            case DocumentPart():
                return self._document(part)

    def _document(self, part: DocumentPart) -> list[Fields]:
        if part.url is None:
            data = f"data:{part.media_type};base64,{part.data}"
            return [{"type": "input_file", "filename": _file_name(part), "file_data": data}]
        if not part.url.startswith(("https://", "http://")):
            self._encoding.refuse(f"a document at {part.url!r}: OpenAI only fetches http and https")
            return []
        return [{"type": "input_file", "file_url": part.url}]

    def _add_message(self, role: str, content: list[Fields]) -> None:
        if len(content) == 1 and content[0]["type"] == "input_text":
            self.list.append({"role": role, "content": content[0]["text"]})
        elif content:
            self.list.append({"role": role, "content": content})

    def _item(self, part: Part) -> Fields:
        return dict(_mapping(self._encoding.provider_data(part).get("item")))

    def _is_new(self, item: Mapping[str, Any]) -> bool:
        """Whether the item has an id that no earlier item has. A request may have each id once."""
        item_id = item.get("id")
        if not isinstance(item_id, str) or item_id in self._ids:
            return False
        self._ids.add(item_id)
        return True


def recognizes(response: Any) -> bool:
    if get(response, "object") == "response":
        return True
    kind = get(response, "type")
    return isinstance(kind, str) and kind.startswith("response.")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _file_name(part: DocumentPart) -> str:
    """The name with an ending, from which OpenAI infers the type of the file."""
    name = part.name or "document"
    ending = _ENDINGS.get(part.media_type, ".txt" if part.media_type.startswith("text/") else "")
    return name if "." in name else f"{name}{ending}"
