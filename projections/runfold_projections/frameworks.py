"""Expands the events of agent frameworks to events of Runfold's own kinds. The log has each event
once, in the framework's own form.

- adk: an `Event` of Google's ADK. Its content has Gemini's form. Content of the user becomes a
  message, and `functionResponse` parts become results. `GeminiRecorder` reads content of the model,
  one message for each event. Pieces of a stream (`partial`) expand to nothing, because the whole
  follows. ADK's own questions to the user (credentials, confirmations) expand to nothing too,
  because no model sees them.
- vertex: an event of Agent Engine's sessions. If ADK wrote it, `rawEvent` holds the whole ADK
  event.
- openai-agents: an item of the Responses API's input. `ResponsesRecorder` reads the model's items.
  Consecutive items are one message.

No function here raises an error. An event of unknown form expands to nothing.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, assert_never
from zlib import crc32

from runfold_projections.providers.gemini_recording import GeminiRecorder
from runfold_projections.providers.openai_responses_recording import ResponsesRecorder
from runfold_projections.providers.values import is_base64, items, mapping, string
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

PartReader = Callable[[Mapping[str, Any]], Fields | None]
"""Reads a part of an item's content. None if the part has another form."""

_ASSISTANT_KINDS: Final = (AssistantMessage, Thinking, ToolCall, ProviderPart)

_ADK_ID_PREFIX: Final = "adk-"
"""The prefix of the ids that ADK gives to calls without an id. ADK removes such ids before a
request, and so does Runfold's encoder.
"""

_ADK_QUESTIONS: Final = frozenset({"adk_request_credential", "adk_request_confirmation", "adk_framework"})
"""Calls that ADK itself makes. ADK does not send events with these calls or their answers to a
model.
"""

_TURN_ID_LENGTH_MAX: Final = 200
"""The limit of a `TurnId`. An invocation with a longer id becomes no turn."""

_DATA_URL: Final = re.compile(r"data:([^;,]*)(?:;[^,]*)?;base64,(.*)", re.DOTALL)


def expand(event: AnyEvent) -> list[AnyEvent]:
    """The events that replace a framework's event. Any other event expands to itself."""
    if not isinstance(event.data, FrameworkEvent):
        return [event]
    match event.data.framework:
        case "adk" | "vertex":
            return replace_event(event, expand_adk(adk_body(event.data)))
        case "openai-agents":
            files = _openai_file if event.data.files_by_id else _no_file
            return replace_event(event, _expand_openai(event.data.body, event.event_id, files))
        case _:
            assert_never(event.data.framework)


def replace_event(event: AnyEvent, data: Iterable[Data]) -> list[AnyEvent]:
    """Events with `data` that replace `event` and have its envelope. Events of the assistant also
    have the message id and the provider of the model's response.
    """
    envelope = {name: getattr(event, name) for name in event.model_fields_set - {"type", "data"}}
    assistant_envelope = envelope
    if isinstance(event.data, FrameworkEvent):
        match event.data.framework:
            case "adk" | "vertex":
                body = adk_body(event.data)
                turn_id = event.turn_id or _bounded(body.get("invocationId"), _TURN_ID_LENGTH_MAX)
                message_id = event.message_id or _bounded(body.get("id"), MESSAGE_ID_LENGTH_MAX)
                envelope = {**envelope, "turn_id": turn_id} if turn_id else envelope
                assistant_envelope = {
                    **envelope,
                    "message_id": message_id or event.event_id,
                    "provider": "gemini",
                }
            case "openai-agents":
                assistant_envelope = {**envelope, "provider": "openai-responses"}
            case _:
                assert_never(event.data.framework)
    return [
        new_event(each, **(assistant_envelope if isinstance(each, _ASSISTANT_KINDS) else envelope))
        for each in data
    ]


def adk_body(event: FrameworkEvent) -> Mapping[str, Any]:
    """The body of the event in ADK's form."""
    body = event.body
    if event.framework != "vertex":
        return body
    origin = {name: body.get(name) for name in ("author", "invocationId")}
    if raw := mapping(body.get("rawEvent")):
        return {**raw, **origin}
    partial = mapping(body.get("eventMetadata")).get("partial")
    return {**origin, "content": body.get("content"), "partial": partial}


def expand_adk(body: Mapping[str, Any]) -> list[Data]:
    content = mapping(body.get("content"))
    parts = [part for part in items(content.get("parts")) if isinstance(part, dict)]
    if body.get("partial") or any(is_question_of_adk(part) for part in parts):
        return []
    ids = _Ids(string(body.get("invocationId")))
    results = [
        _adk_result(response, ids)
        for part in parts
        if isinstance(response := part.get("functionResponse"), dict)
    ]
    others = [part for part in parts if part.get("functionResponse") is None]
    if body.get("author") == "user" or content.get("role") == "user":
        return [*results, *_user_messages(map(_adk_part, others))]
    return [*_adk_model(others, _Ids(string(body.get("invocationId")))), *results]


class _Ids:
    """Ids for calls without an id, or for their results, within one event.

    Gemini pairs such calls and results by their names and their order. So an id consists of the
    invocation, the name, and the number among the calls or results of that name in the event.
    """

    def __init__(self, invocation_id: str) -> None:
        self._invocation_id = invocation_id
        self._counts: Counter[str] = Counter()

    def next(self, name: str) -> str:
        number = self._counts[name]
        self._counts[name] += 1
        return f"{self._invocation_id}:{name}:{number}"


def is_question_of_adk(part: Mapping[str, Any]) -> bool:
    named = (mapping(part.get(kind)) for kind in ("functionCall", "functionResponse"))
    return any(string(each.get("name")) in _ADK_QUESTIONS for each in named)


def _adk_model(parts: Sequence[Fields], ids: _Ids) -> Iterator[Data]:
    content = {"role": "model", "parts": parts}
    response = {"candidates": [{"content": content, "finishReason": "STOP"}]}
    for data in GeminiRecorder({}).response(response):
        if isinstance(data, ToolCall):
            yield _adk_call(data, ids)
        elif isinstance(data, _ASSISTANT_KINDS):
            yield data


def _adk_call(call: ToolCall, ids: _Ids) -> ToolCall:
    own = mapping(mapping(call.provider_data).get("gemini"))
    if not own.get("id"):
        return call.model_copy(update={"tool_call_id": ids.next(call.tool_name)})
    if call.tool_call_id.startswith(_ADK_ID_PREFIX):
        return call.model_copy(update={"provider_data": {"gemini": {**own, "id": None}}})
    return call


def _adk_result(response: Mapping[str, Any], ids: _Ids) -> ToolResult:
    name = string(response.get("name"))
    parts = [_adk_part(part) for part in items(response.get("parts")) if isinstance(part, dict)]
    return _result(
        string(response.get("id")) or ids.next(name),
        tool_name=name,
        attachments=_media(parts),
        **_adk_outcome(response.get("response")),
    )


def _adk_outcome(response: Any) -> Fields:
    """The result and the error from which Gemini's encoder makes the same response again.

    ADK puts an answer that is not an object under "result". The result keeps that form, because the
    model saw it.
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
    inline, file = mapping(part.get("inlineData")), mapping(part.get("fileData"))
    if inline:
        # Pydantic writes bytes in the base64 alphabet for URLs.
        data = string(inline.get("data")).replace("-", "+").replace("_", "/")
        return _medium(inline.get("mimeType"), data=data, name=inline.get("displayName"))
    if file:
        return _medium(file.get("mimeType"), url=file.get("fileUri"), name=file.get("displayName"))
    return None


def _expand_openai(item: Mapping[str, Any], event_id: str, file: PartReader) -> Iterable[Data]:
    """`file` reads the parts that name a file by its id."""
    match item:
        case {"role": "user"}:
            return _user_messages(_openai_part(part) or file(part) for part in _contents(item, "input_text"))
        case {"role": "system" | "developer"}:
            return _system_messages(map(_openai_part, _contents(item, "input_text")))
        case {"role": "assistant"}:
            message = {**item, "type": "message", "content": _contents(item, "output_text")}
            return _openai_model(message, event_id)
        case {"type": "message"}:
            return ()
        case {"type": "function_call_output" | "custom_tool_call_output"}:
            return [_openai_result(item, file)]
        case {"type": str()}:
            return _openai_model(item, event_id)
        case {"id": str()} if item.keys() <= {"id", "type"}:
            # A reference to an item that OpenAI stores does not need a type.
            return _openai_model(item, event_id)
        case _:
            return ()


def _contents(item: Mapping[str, Any], kind: str) -> list[Fields]:
    """The parts of a message, whose content may be a list or a text."""
    content = item.get("content")
    if isinstance(content, str):
        return [{"type": kind, "text": content}]
    return [part for part in items(content) if isinstance(part, dict)]


def _openai_model(item: Mapping[str, Any], event_id: str) -> Iterator[Data]:
    for data in ResponsesRecorder({}, as_before=True).response({"output": [item]}):
        if isinstance(data, AssistantMessage):
            # Each item counts its texts from 0, and texts of consecutive items do not join.
            index = crc32(f"{event_id} {data.content_index}".encode())
            # Items that older versions wrote keep their ledger, without the common form of refusals
            # and citations.
            yield data.model_copy(update={"content_index": index, "refusal": False, "citations": ()})
        elif isinstance(data, _ASSISTANT_KINDS):
            yield data


def _openai_result(item: Mapping[str, Any], file: PartReader) -> ToolResult:
    tool_id, output = string(item.get("call_id")), item.get("output")
    parts = [_openai_part(part) or file(part) for part in items(output) if isinstance(part, dict)]
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
            if image and (detail := _openai_detail(part)):
                image["provider_data"] = {"openai-responses": detail}
            return image
        case {"type": "input_file", "file_data": str(data)}:
            return _at_url(data, name=part.get("filename"))
        case {"type": "input_file", "file_url": str(url)}:
            return _at_url(url, name=part.get("filename"))
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(form)}}:
            return _medium(f"audio/{form}", data=data)
        case _:
            return None


def _openai_file(part: Mapping[str, Any]) -> Fields | None:
    """An image or a document that OpenAI has under an id. Other providers cannot fetch it."""
    match part:
        case {"type": "input_image" | "input_file" as kind, "file_id": str(file_id)} if file_id:
            own = {"file_id": file_id, **_openai_detail(part)}
        case _:
            return None
    medium = _medium(
        "",
        url=f"openai-file:{file_id}",
        kind="image" if kind == "input_image" else "document",
        name=part.get("filename"),
    )
    return medium and {**medium, "provider_data": {"openai-responses": own, "openai-chat": own}}


def _no_file(_part: Mapping[str, Any]) -> None:
    """Earlier versions left such files out. Their ledgers stay the same."""


def _openai_detail(part: Mapping[str, Any]) -> Fields:
    detail = part.get("detail")
    return {"detail": detail} if isinstance(detail, str) else {}


def _at_url(url: str, *, kind: str = "document", name: Any = None) -> Fields | None:
    if match := _DATA_URL.fullmatch(url):
        return _medium(match[1], data=match[2], kind=kind, name=name)
    return None if url.startswith("data:") else _medium("", url=url, kind=kind, name=name)


def _system_messages(parts: Iterable[Fields | None]) -> list[SystemMessage]:
    texts = [part["text"] for part in parts if part is not None and part["type"] == "text"]
    return [SystemMessage(message="\n".join(texts))] if texts else []


def _user_messages(parts_or_none: Iterable[Fields | None]) -> list[UserMessage]:
    """A message of the user, or nothing if all its parts have an unknown form."""
    parts = [part for part in parts_or_none if part is not None]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    if not parts:
        return []
    message = "\n".join(texts)
    if len(parts) == len(texts) and (len(texts) == 1 or not message.strip()):
        return [UserMessage(message=message)]
    return [UserMessage.model_validate({"message": message, "parts": parts})]


def _result(
    tool_id: str, *, tool_name: str = "", attachments: Sequence[Fields] = (), **outcome: Any
) -> ToolResult:
    fields = {"tool_call_id": tool_id, "tool_name": tool_name, **outcome}
    return ToolResult.model_validate({**fields, "attachments": attachments} if attachments else fields)


def _text(text: str) -> Fields | None:
    return {"type": "text", "text": text} if text else None


def _medium(
    media_type: Any, *, data: str | None = None, url: Any = None, kind: str = "", name: Any = None
) -> Fields | None:
    """The fields of an image or a document. None if there are neither bytes of a known type nor a
    URL.
    """
    media_type = string(media_type)
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
