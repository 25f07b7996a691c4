"""OpenAI's Responses API: encodes a ledger as a flat list of items, in the order of the ledger.

Items of this API are sent back unchanged and with their ids, because the API pairs them (400: "Item
'fc_…' of type 'function_call' was provided without its required 'reasoning' item"). It also refuses
reasoning that nothing follows ("…without its required following item"). If a run broke off after
reasoning, that reasoning is omitted and listed. Reasoning of other providers is refused.

The ids of calls are unique in a whole request ("Duplicate function_call_output for call_id"), so
repeated ids are numbered.

Reasoning without content is a reference to what the server stored. If the server stored nothing,
the reasoning is omitted and listed, and the items that follow go without their ids.

Data for this provider only (`provider_data["openai-responses"]`):

- `item`: the members of the item that the ledger has no field for (id, status, phase,
  encrypted_content, …). Of a call with `type`, the arguments are the other members
  (`openai_responses_tools`);
- for a text: `part`, the same members of its content part (annotations, logprobs), and `refusal`
  (true);
- for a call: `arguments`, if the exact text is not compact JSON, and `custom` (true) for free text;
- for reasoning: `stored`, whether the server stored the response, if it said so;
- for a result: `item`, members of the output such as `acknowledged_safety_checks`;
- for instructions, parts of the user and results: `prompt_cache_breakpoint`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeGuard

from runfold_projections.providers.blobs import file_of
from runfold_projections.providers.encoding import Call, Encoded, EncodeOptions, Encoding, Limits
from runfold_projections.providers.media_types import is_text
from runfold_projections.providers.openai_chat import CACHE_MARK, arguments_text, image_url, marked
from runfold_projections.providers.openai_responses_recording import ResponsesRecorder
from runfold_projections.providers.openai_responses_tools import (
    TOOLS,
    attachments_max,
    call_item,
    has_screenshot,
    output_item,
)
from runfold_projections.providers.values import get, mapping
from runfold_schemas.messages import (
    AudioPart,
    DocumentPart,
    ImagePart,
    Medium,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
    VideoPart,
)

__all__ = ["ResponsesRecorder", "encode", "recognizes"]

_LIMITS: Final = Limits(
    id_illegal=re.compile(r"[^a-zA-Z0-9_-]"),
    id_max=64,
    name_illegal=re.compile(r"[^a-zA-Z0-9_-]"),
    name_max=64,
    ids_unique=True,
)

# "Invalid 'input[2].id': string too long. Expected a string with maximum length 64", and "Expected
# an ID that contains letters, numbers, underscores, or dashes". Some routers make longer ones.
_ITEM_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")

# The API says "string too long. Expected a string with maximum length 1048576": openai/codex 13270.
_ARGUMENTS_MAX: Final = 1_048_576

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


def encode(messages: Sequence[Message], options: EncodeOptions) -> Encoded:
    encoding = Encoding("openai-responses", _LIMITS, options)
    items = _Items(encoding)
    for message, following in zip(encoding.messages(messages), (*messages[1:], None), strict=False):
        if message.role == "assistant":
            items.assistant(message, following)
        else:
            items.others(message)
    return _continued(encoding.finish({"input": items.list}), items.list[items.end_of_response :])


def _continued(encoded: Encoded, new_items: list[Fields]) -> Encoded:
    """Adds the input for a request that continues the stored response. The items there have the ids
    that the response gave to its calls.
    """
    if not encoded.next_request.keys() & {"previous_response_id", "conversation"}:
        return encoded
    new_input = [
        {**item, "call_id": encoded.tool_ids[item["call_id"]]}
        if item.get("call_id") in encoded.tool_ids
        else item
        for item in new_items
    ]
    return replace(encoded, next_request={**encoded.next_request, "input": new_input})


class _Items:
    """The items so far, with the ids and the calls that later items depend on."""

    def __init__(self, encoding: Encoding) -> None:
        self.list: list[Fields] = []
        self.end_of_response = 0
        """The number of items up to the end of the last message of the assistant."""
        self._encoding = encoding
        self._ids: set[str] = set()
        self._calls: dict[str, Fields] = {}
        self._lacks_reasoning = False
        """Whether the message lacks reasoning, so that its items go without their ids."""

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

    def assistant(self, message: Message, following: Message | None) -> None:
        results = {
            part.tool_use_id: part
            for part in (following.parts if following else ())
            if isinstance(part, ToolResultPart)
        }
        # The server looks for reasoning that it stored, also if the caller wants to send none.
        self._lacks_reasoning = not self._encoding.with_thinking and any(
            isinstance(part, ThinkingPart) and self._is_stored(part) for part in message.parts
        )
        group: Fields | None = None
        for at, part in enumerate(self._encoding.parts(message)):
            if isinstance(part, TextPart):
                group = self._text(part, group)
                continue
            if _is_piece(part):
                group = self._piece(_sendable(part.content), group)
                continue
            group = None
            match part:
                case ToolUsePart():
                    self._call(part, results.get(part.id))
                case ThinkingPart() if "item" in self._encoding.provider_data(part):
                    self._reasoning(part, message, at)
                case OpaquePart(provider="openai-responses", content=dict(item)):
                    self.list.append(_sendable(item))
                case _:
                    self._encoding.refuse(f"a {part.type} of the assistant from another provider")
        self.end_of_response = len(self.list)

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
        content |= mapping(data.get("part"))
        if group and group["id"] == item.get("id"):
            group["content"].append(content)
            return group
        if not self._is_new(item):
            # A message of another provider has no id. The short form needs none.
            phase = {"phase": item["phase"]} if "phase" in item else {}
            self.list.append({"role": "assistant", "content": part.text, **phase})
            return None
        group = {"type": "message", "role": "assistant", "status": "completed", **item, "content": [content]}
        self.list.append(group)
        return group

    def _piece(self, item: Fields, group: Fields | None) -> Fields | None:
        """Adds parts of a message for which the ledger has no part, to the item of its texts."""
        if group and group["id"] == item.get("id"):
            group["content"] += item["content"]
            return group
        if "id" in item and not self._is_new(item):
            self.list.append(_without(item, "id"))
            return None
        self.list.append(group := {**item, "content": [*item["content"]]})
        return group if "id" in item else None

    def _reasoning(self, part: ThinkingPart, message: Message, at: int) -> None:
        item = self._item(part)
        following = next(
            (each for each in message.parts[at + 1 :] if not isinstance(each, ThinkingPart)), None
        )
        if following is None:
            self._encoding.leave_out("reasoning that nothing follows", rule="more-than-thinking")
        elif "id" in item and not self._is_new(item):
            self._encoding.leave_out(f"reasoning {item['id']!r} a second time", rule="more-than-thinking")
        elif not self._can_be_found(part, item, following):
            self._lacks_reasoning = True
            self._encoding.leave_out("reasoning that the server did not store", rule="not-stored")
        else:
            # "Unknown parameter: 'input[3].status'" (1jehuang/jcode issue 1028).
            self.list.append({"type": "reasoning", "summary": [], **_without(item, "status")})

    def _can_be_found(self, part: ThinkingPart, item: Fields, following: Part) -> bool:
        """Whether the server can use the reasoning. An item without content is only a reference to
        the item that the server stored, and nothing is stored of a response that broke off. Of such
        a response the text has no id.
        """
        if item.get("encrypted_content") or item.get("content"):
            return True
        has_id = isinstance(following, OpaquePart) or "id" in self._item(following)
        return has_id and self._is_stored(part)

    def _is_stored(self, part: ThinkingPart) -> bool:
        """Whether the server stored the reasoning. If it did not say so, reasoning with its content
        was not stored.
        """
        stored = self._encoding.provider_data(part).get("stored")
        if isinstance(stored, bool):
            return stored
        item = self._item(part)
        return not (item.get("encrypted_content") or item.get("content"))

    def _call(self, part: ToolUsePart, result: ToolResultPart | None) -> None:
        call = self._encoding.call(part)
        item = self._call_item(part, call, result)
        self._calls[call.id] = item
        self.list.append(item)

    def _call_item(self, part: ToolUsePart, call: Call, result: ToolResultPart | None) -> Fields:
        item, data = self._item(part), self._encoding.provider_data(part)
        kind = str(item.get("type"))
        is_new = self._is_new(item)
        if kind in TOOLS and isinstance(part.input, dict) and (is_new or "id" not in item):
            if kind != "computer_call" or result is None or has_screenshot(result):
                return call_item(kind, call.id, item, part.input)
            # The output of a computer call is a screenshot, so an error needs another form.
            item = {}
        if kind in TOOLS or not is_new:
            item = _without(item, "id", "type")
        members = {"call_id": call.id, "name": call.name}
        if data.get("custom") and isinstance(text := get(part.input, "input"), str):
            return {"type": "custom_tool_call", **item, **members, "input": text}
        return {"type": "function_call", **item, **members, "arguments": self._arguments(part)}

    def _arguments(self, part: ToolUsePart) -> str:
        """The arguments of a call, or none in the place of a text that is too long."""
        text = arguments_text(part)
        if len(text) <= _ARGUMENTS_MAX:
            return text
        why = f"arguments of {len(text):,} characters; {_ARGUMENTS_MAX:,} are allowed"
        self._encoding.refuse(why, rule="arguments-length", tool_use_id=part.id)
        self._encoding.keep_part()
        return "{}"

    def _result(self, part: ToolResultPart) -> None:
        matched = self._encoding.match_call(part)
        if matched is None:
            return
        call = self._calls[matched.id]
        limit = attachments_max(call)
        for attachment in part.attachments[limit:]:
            self._encoding.refuse(
                f"an attached {attachment.type}: the output of a {call['type']} has no place"
            )
        media = [item for attachment in part.attachments[:limit] for item in self._content(attachment)]
        self._encoding.keep_part()
        item = {**self._item(part), **output_item(call, part, media)}
        data = self._encoding.provider_data(part)
        if CACHE_MARK in data and call["type"] in ("function_call", "custom_tool_call"):
            output = item["output"]
            texts = [{"type": "input_text", "text": output}] if isinstance(output, str) else output
            item["output"] = marked(texts, data)
        self.list.append(item)

    def _content(self, part: TextPart | Medium) -> list[Fields]:
        content = self._unmarked(part)
        return marked(content, self._encoding.provider_data(part))

    def _unmarked(self, part: TextPart | Medium) -> list[Fields]:
        match part:
            case TextPart(text=""):
                self._encoding.leave_out("an empty text", rule="text-not-blank")
                return []
            case TextPart():
                return [{"type": "input_text", "text": part.text}]
            case DocumentPart() if file_id := file_of(part, "openai-responses"):
                return [{"type": "input_file", "file_id": file_id, **self._detail(part)}]
            case DocumentPart() if part.media_type.startswith("image/"):
                fields = part.model_dump(include={"media_type", "data", "url", "provider_data"})
                return self._image(ImagePart.model_validate(fields))
            case ImagePart():
                return self._image(part)
            case DocumentPart():
                return self._document(part)
            case AudioPart() | VideoPart():
                self._encoding.refuse(f"the Responses API takes no {part.type}")
                return []

    def _image(self, part: ImagePart) -> list[Fields]:
        image = {"type": "input_image", "detail": "auto", **self._detail(part)}
        if file_id := file_of(part, "openai-responses"):
            return [image | {"file_id": file_id}]
        url = image_url(self._encoding, part)
        return [image | {"image_url": url}] if url else []

    def _detail(self, part: Medium) -> Fields:
        detail = self._encoding.provider_data(part).get("detail")
        return {"detail": detail} if detail else {}

    def _document(self, part: DocumentPart) -> list[Fields]:
        if part.media_type.startswith(("audio/", "video/")):
            self._encoding.refuse(f"a document of the type {part.media_type!r}: the Responses API takes none")
            return []
        if part.url is None:
            data = f"data:{part.media_type};base64,{part.data}"
            return [{"type": "input_file", "filename": _file_name(part), "file_data": data}]
        if not part.url.startswith(("https://", "http://")):
            self._encoding.refuse(f"a document at {part.url!r}: OpenAI only fetches http and https")
            return []
        return [{"type": "input_file", "file_url": part.url}]

    def _add_message(self, role: str, content: list[Fields]) -> None:
        if len(content) == 1 and content[0].keys() == {"type", "text"}:
            self.list.append({"role": role, "content": content[0]["text"]})
        elif content:
            self.list.append({"role": role, "content": content})

    def _item(self, part: Part) -> Fields:
        return _sendable(mapping(self._encoding.provider_data(part).get("item")))

    def _is_new(self, item: Mapping[str, Any]) -> bool:
        """Whether the item goes with its id. A request may have each id once, and the API looks for
        the reasoning that belongs to an id.
        """
        item_id = item.get("id")
        if not isinstance(item_id, str) or item_id in self._ids or self._lacks_reasoning:
            return False
        self._ids.add(item_id)
        return True


def recognizes(response: Any) -> bool:
    if get(response, "object") == "response":
        return True
    kind = get(response, "type")
    return isinstance(kind, str) and kind.startswith("response.")


def _is_piece(part: Part) -> TypeGuard[OpaquePart]:
    """Whether the part is a piece of a message of this provider."""
    if not isinstance(part, OpaquePart) or part.provider != "openai-responses":
        return False
    content = part.content
    return get(content, "type") == "message" and isinstance(get(content, "content"), list)


def _sendable(item: Mapping[str, Any]) -> Fields:
    """The item without an id that the API refuses."""
    item_id = item.get("id")
    is_refused = isinstance(item_id, str) and not _ITEM_ID.fullmatch(item_id)
    return _without(item, "id") if is_refused else {**item}


def _without(item: Mapping[str, Any], *names: str) -> Fields:
    return {name: member for name, member in item.items() if name not in names}


def _file_name(part: DocumentPart) -> str:
    """The name with an ending, from which OpenAI infers the type of the file."""
    name = part.name or "document"
    ending = _ENDINGS.get(part.media_type, ".txt" if is_text(part.media_type) else "")
    return name if "." in name else f"{name}{ending}"
