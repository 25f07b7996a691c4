"""What the events of agent frameworks say, as events of ours. The log has them once, in the
framework's own form.

- adk: an `Event` of Google's ADK. Its content has Gemini's form: the user's is a message,
  `functionResponse` parts are results, and what a model said is what `GeminiRecorder` makes of it,
  one message an event. Pieces of a stream (`partial`) say nothing, because the whole follows; nor
  do ADK's own questions to the user (credentials, confirmations), which no model sees.
- vertex: an event of Agent Engine's sessions. It is ADK's, which it brings along whole as
  `rawEvent` where ADK wrote it.
- openai-agents: an item of the Responses API's input. The model's items are what
  `ResponsesRecorder` makes of them; those in a row are one message, as everywhere.

Nothing raises here: what cannot be understood says nothing.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, assert_never
from zlib import crc32

from runfold_projections.providers.gemini_recording import GeminiRecorder
from runfold_projections.providers.openai_responses_recording import ResponsesRecorder
from runfold_projections.providers.recording import is_base64
from runfold_schemas.codec import new_event
from runfold_schemas.data import MESSAGE_ID_LENGTH_MAX, Data
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    ProviderPart,
    SystemMessage,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.sessions import FrameworkEvent

Fields = dict[str, Any]

_OF_ASSISTANT: Final = (AssistantMessage, Thinking, ToolCall, ProviderPart)

_ADK_OWN_ID: Final = "adk-"
"""Begins the ids that ADK gives to calls without one. It takes them out again before a request, and
so does our encoder.
"""

_ADK_QUESTIONS: Final = frozenset({"adk_request_credential", "adk_request_confirmation", "adk_framework"})
"""Calls of ADK itself. It leaves the events that have them, and the answers, out of a model's
contents.
"""

_TURN_ID_LENGTH_MAX: Final = 200
"""That of a `TurnId`. An invocation with a longer id is no turn."""

_DATA_URL: Final = re.compile(r"data:([^;,]*)(?:;[^,]*)?;base64,(.*)", re.DOTALL)


def expand(event: AnyEvent) -> list[AnyEvent]:
    """The events that stand in the place of a framework's event; any other event stands as
    itself.
    """
    if not isinstance(event.data, FrameworkEvent):
        return [event]
    match event.data.framework:
        case "adk" | "vertex":
            return replace_event(event, _adk(_of_adk(event.data)))
        case "openai-agents":
            return replace_event(event, _openai(event.data.body, event.event_id))
        case _:
            assert_never(event.data.framework)


def replace_event(event: AnyEvent, data: Iterable[Data]) -> list[AnyEvent]:
    """Events that say `data` in the place of `event`, with its envelope; what the model said has
    the model's too.
    """
    envelope = {name: getattr(event, name) for name in event.model_fields_set - {"type", "data"}}
    recorded = envelope
    if isinstance(event.data, FrameworkEvent):
        match event.data.framework:
            case "adk" | "vertex":
                body = _of_adk(event.data)
                turn_id = event.turn_id or _bounded(body.get("invocationId"), _TURN_ID_LENGTH_MAX)
                message_id = event.message_id or _bounded(body.get("id"), MESSAGE_ID_LENGTH_MAX)
                envelope = {**envelope, "turn_id": turn_id} if turn_id else envelope
                recorded = {**envelope, "message_id": message_id or event.event_id, "provider": "gemini"}
            case "openai-agents":
                recorded = {**envelope, "provider": "openai-responses"}
            case _:
                assert_never(event.data.framework)
    return [new_event(one, **(recorded if isinstance(one, _OF_ASSISTANT) else envelope)) for one in data]


def _of_adk(event: FrameworkEvent) -> Mapping[str, Any]:
    """The event in ADK's form."""
    body = event.body
    if event.framework != "vertex":
        return body
    named = {name: body.get(name) for name in ("author", "invocationId")}
    if raw := _mapping(body.get("rawEvent")):
        return {**raw, **named}
    partial = _mapping(body.get("eventMetadata")).get("partial")
    return {**named, "content": body.get("content"), "partial": partial}


def _adk(body: Mapping[str, Any]) -> list[Data]:
    content = _mapping(body.get("content"))
    parts = [part for part in _items(content.get("parts")) if isinstance(part, dict)]
    if body.get("partial") or any(_asks_for_adk(part) for part in parts):
        return []
    ids = _Ids(_string(body.get("invocationId")))
    results = [
        _adk_result(response, ids)
        for part in parts
        if isinstance(response := part.get("functionResponse"), dict)
    ]
    others = [part for part in parts if part.get("functionResponse") is None]
    if body.get("author") == "user" or content.get("role") == "user":
        return [*results, *_asked(map(_adk_part, others))]
    return [*_adk_model(others, _Ids(_string(body.get("invocationId")))), *results]


class _Ids:
    """Ids for the calls of one event that have none, and for the results of one event.

    Gemini pairs those by their names and their order. So a result's id is that of the last call of
    its invocation with its name, and its number among those of one event.
    """

    def __init__(self, invocation_id: str) -> None:
        self._invocation_id = invocation_id
        self._named: Counter[str] = Counter()

    def next(self, name: str) -> str:
        number = self._named[name]
        self._named[name] += 1
        return f"{self._invocation_id}:{name}:{number}"


def _asks_for_adk(part: Mapping[str, Any]) -> bool:
    return any(
        _mapping(part.get(kind)).get("name") in _ADK_QUESTIONS
        for kind in ("functionCall", "functionResponse")
    )


def _adk_model(parts: Sequence[Fields], ids: _Ids) -> Iterator[Data]:
    content = {"role": "model", "parts": parts}
    recorded = GeminiRecorder({}).response({"candidates": [{"content": content, "finishReason": "STOP"}]})
    for data in recorded:
        if isinstance(data, ToolCall):
            yield _adk_call(data, ids)
        elif isinstance(data, _OF_ASSISTANT):
            yield data


def _adk_call(call: ToolCall, ids: _Ids) -> ToolCall:
    own = _mapping(_mapping(call.provider_data).get("gemini"))
    if not own.get("id"):
        return call.model_copy(update={"tool_call_id": ids.next(call.tool_name)})
    if call.tool_call_id.startswith(_ADK_OWN_ID):
        return call.model_copy(update={"provider_data": {"gemini": {**own, "id": None}}})
    return call


def _adk_result(response: Mapping[str, Any], ids: _Ids) -> ToolResult:
    name = _string(response.get("name"))
    attached = [_adk_part(part) for part in _items(response.get("parts")) if isinstance(part, dict)]
    return _result(
        _string(response.get("id")) or ids.next(name),
        tool_name=name,
        attachments=_media(attached),
        **_adk_answer(response.get("response")),
    )


def _adk_answer(response: Any) -> Fields:
    """The result and the error, from which Gemini's encoder makes the same response again.

    ADK puts a tool's answer that is no object under "result". That stays: it is what the model saw.
    """
    if not isinstance(response, dict):
        return {"result": response}
    if error := response.get("error"):
        others = {name: value for name, value in response.items() if name != "error"}
        if others.keys() == {"result"}:
            return {"result": others["result"], "error": error}
        return {"result": others, "error": error} if others else {"error": error}
    return {"result": response["output"] if response.keys() == {"output"} else response}


def _adk_part(part: Mapping[str, Any]) -> Fields | None:
    if isinstance(text := part.get("text"), str):
        return _text(text)
    inline, file = _mapping(part.get("inlineData")), _mapping(part.get("fileData"))
    if inline:
        # Pydantic writes bytes for URLs, and a reader takes either.
        data = _string(inline.get("data")).replace("-", "+").replace("_", "/")
        return _medium(inline.get("mimeType"), data=data, name=inline.get("displayName"))
    if file:
        return _medium(file.get("mimeType"), url=file.get("fileUri"), name=file.get("displayName"))
    return None


def _openai(item: Mapping[str, Any], event_id: str) -> Iterable[Data]:
    match item:
        case {"role": "user"}:
            return _asked(map(_openai_part, _contents(item, "input_text")))
        case {"role": "system" | "developer"}:
            return _instructed(map(_openai_part, _contents(item, "input_text")))
        case {"role": "assistant"}:
            message = {**item, "type": "message", "content": _contents(item, "output_text")}
            return _openai_model(message, event_id)
        case {"type": "message"}:
            return ()
        case {"type": "function_call_output" | "custom_tool_call_output"}:
            return [_openai_result(item)]
        case {"type": str()}:
            return _openai_model(item, event_id)
        case {"id": str()} if item.keys() <= {"id", "type"}:
            # A reference to an item that OpenAI keeps may do without its type.
            return _openai_model(item, event_id)
        case _:
            return ()


def _contents(item: Mapping[str, Any], kind: str) -> list[Fields]:
    """The parts of a message, which may be a text alone."""
    content = item.get("content")
    if isinstance(content, str):
        return [{"type": kind, "text": content}]
    return [part for part in _items(content) if isinstance(part, dict)]


def _openai_model(item: Mapping[str, Any], event_id: str) -> Iterator[Data]:
    for data in ResponsesRecorder({}).response({"output": [item]}):
        if isinstance(data, AssistantMessage):
            # Each item counts its texts anew, and those of two items in a row are two texts.
            index = crc32(f"{event_id} {data.content_index}".encode())
            yield data.model_copy(update={"content_index": index})
        elif isinstance(data, _OF_ASSISTANT):
            yield data


def _openai_result(item: Mapping[str, Any]) -> ToolResult:
    tool_id, output = _string(item.get("call_id")), item.get("output")
    parts = [_openai_part(part) for part in _items(output) if isinstance(part, dict)]
    if not isinstance(output, list) or None in parts:
        return _result(tool_id, result=output)
    texts = [part["text"] for part in parts if part is not None and part["type"] == "text"]
    return _result(tool_id, result="\n".join(texts), attachments=_media(parts))


def _openai_part(part: Mapping[str, Any]) -> Fields | None:
    match part:
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            return _text(text)
        case {"type": "input_image", "image_url": str(url)}:
            image = _at_url(url, kind="image")
            detail = part.get("detail")
            if image and isinstance(detail, str):
                image["provider_data"] = {"openai-responses": {"detail": detail}}
            return image
        case {"type": "input_file", "file_data": str(data)}:
            return _at_url(data, name=part.get("filename"))
        case {"type": "input_file", "file_url": str(url)}:
            return _at_url(url, name=part.get("filename"))
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(form)}}:
            return _medium(f"audio/{form}", data=data)
        case _:
            return None


def _at_url(url: str, *, kind: str = "document", name: Any = None) -> Fields | None:
    if held := _DATA_URL.fullmatch(url):
        return _medium(held[1], data=held[2], kind=kind, name=name)
    return None if url.startswith("data:") else _medium("", url=url, kind=kind, name=name)


def _instructed(parts: Iterable[Fields | None]) -> list[SystemMessage]:
    texts = [part["text"] for part in parts if part is not None and part["type"] == "text"]
    return [SystemMessage(message="\n".join(texts))] if texts else []


def _asked(given: Iterable[Fields | None]) -> list[UserMessage]:
    """A message of the user; none if nothing in it can be understood."""
    parts = [part for part in given if part is not None]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    if not parts:
        return []
    message = "\n".join(texts)
    if len(parts) == len(texts) and (len(texts) == 1 or not message.strip()):
        return [UserMessage(message=message)]
    return [UserMessage.model_validate({"message": message, "parts": parts})]


def _result(
    tool_id: str, *, tool_name: str = "", attachments: Sequence[Fields] = (), **answer: Any
) -> ToolResult:
    given = {"tool_call_id": tool_id, "tool_name": tool_name, **answer}
    return ToolResult.model_validate({**given, "attachments": attachments} if attachments else given)


def _text(text: str) -> Fields | None:
    return {"type": "text", "text": text} if text else None


def _medium(
    media_type: Any, *, data: str | None = None, url: Any = None, kind: str = "", name: Any = None
) -> Fields | None:
    """An image or a document as a message has it; None if it is neither bytes of a known type nor
    an address.
    """
    media_type = _string(media_type)
    if data is not None:
        if not media_type or not is_base64(data):
            return None
        source = {"media_type": media_type, "data": data}
    elif isinstance(url, str) and url:
        source = {"media_type": media_type, "url": url}
    else:
        return None
    if kind == "image" or media_type.startswith("image/"):
        return {"type": "image", **source}
    return {"type": "document", **source, **({"name": name} if isinstance(name, str) else {})}


def _media(parts: Iterable[Fields | None]) -> list[Fields]:
    return [part for part in parts if part is not None and part["type"] != "text"]


def _bounded(value: Any, length_max: int) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= length_max else None


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
