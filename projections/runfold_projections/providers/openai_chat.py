"""OpenAI's Chat Completions, which many other servers speak too.

A Chat message says less of its order than a ledger: its texts stand in `content`, its calls in
`tool_calls`, and nothing says which came first. The ledger's order is kept within each; a text
behind a call is no refusal, because every request of this format is so, and the model reads the
same words. Reasoning has no form in OpenAI's own API. Servers that speak the format have a member
for it (`reasoning_content`, `reasoning`), and some refuse a tool loop that does not bring it back
(DeepSeek: "The `reasoning_content` in the thinking mode must be passed back to the API"). So it is
recorded with the name of its member and goes back in that member; thinking of other providers is
refused.

What is for this provider alone (`provider_data["openai-chat"]`):

- a text's `refusal` (true), `audio` (the id under which the server has the sound), `annotations`
  (kept, not sent: a request has no member for them);
- a call's `arguments`, where the exact text is not that of compact JSON, and `custom` (true) for
  free text;
- thinking's `member`; an image's `detail`;
- on the first part of a message, `members`: those that OpenAI's API does not have, handed back as
  they came.

An opaque part is a piece of its message: some of its members, or some of its `content`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from runfold_projections.providers.encoding import Encoded, Encoding, Limits, Lossy, text_of
from runfold_projections.providers.openai_chat_recording import ChatRecorder
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

__all__ = ["ChatRecorder", "arguments_text", "encode", "image_url", "recognizes"]

_LIMITS: Final = Limits(
    # Some servers read meaning from their ids (functions.look:0), so only what is too long is
    # changed.
    id_illegal=None,
    id_max=40,
    name_illegal=re.compile(r"[^a-zA-Z0-9_-]"),
    name_max=64,
    # A tool message answers the assistant message before it: an id may come again later, and in
    # real conversations does.
    ids_unique=False,
)

_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/jpg", "image/webp", "image/gif"})

Fields = dict[str, Any]


def encode(messages: Sequence[Message], lossy: Lossy) -> Encoded:
    encoding = Encoding("openai-chat", _LIMITS, lossy)
    body: list[Fields] = []
    for message in encoding.messages(messages):
        match message.role:
            case "assistant":
                body += _assistant(encoding, message)
            case "user":
                body += _user(encoding, message)
            case "system":
                body += _system(encoding, message)
    return encoding.encoded({"messages": body})


def arguments_text(part: ToolUsePart) -> str:
    """A call's arguments for OpenAI, which takes them as text: the exact text if it was OpenAI's,
    else compact JSON.

    Both of OpenAI's formats write this text, so either takes it from the other. A text that is no
    JSON is the input itself and goes back as it came. One that says something else than the input
    is out of date and does not.
    """
    data = part.provider_data or {}
    for format_ in ("openai-chat", "openai-responses"):
        text = get(data.get(format_), "arguments")
        if isinstance(text, str) and text and _says(text, part.input):
            return text
    return json.dumps(part.input, ensure_ascii=False, separators=(",", ":"))


def image_url(encoding: Encoding, image: ImagePart) -> str | None:
    """The image as OpenAI takes it in both of its formats: by http, or as a data URI of four media
    types.
    """
    if image.url is None:
        if image.media_type not in _IMAGES:
            encoding.refuse(
                f"an image of the type {image.media_type!r}: OpenAI reads PNG, JPEG, WebP and GIF"
            )
            return None
        return f"data:{image.media_type};base64,{image.data}"
    if not image.url.startswith(("https://", "http://", "data:")):
        encoding.refuse(f"an image at {image.url!r}: OpenAI fetches http alone")
        return None
    return image.url


def _says(text: str, value: Any) -> bool:
    try:
        return bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return bool(text == value)


def _system(encoding: Encoding, message: Message) -> list[Fields]:
    content: list[Fields] = []
    for part in encoding.parts(message):
        if isinstance(part, TextPart):
            content += _text(encoding, part)
        else:
            encoding.refuse(f"a {part.type} of the system: its messages are text")
    return [{"role": "system", "content": _short(content)}] if content else []


def _user(encoding: Encoding, message: Message) -> list[Fields]:
    answers: list[Fields] = []
    content: list[Fields] = []
    for part in encoding.parts(message):
        if not isinstance(part, ToolResultPart):
            content += _asked(encoding, part)
        elif content:
            encoding.refuse(
                "a tool_result behind the user's words: it follows its call", rule="result-after-call"
            )
        else:
            answers += _answer(encoding, part)
    return [*answers, {"role": "user", "content": _short(content)}] if content else answers


def _asked(encoding: Encoding, part: Part) -> list[Fields]:
    match part:
        case TextPart():
            return _text(encoding, part)
        case ImagePart():
            url = image_url(encoding, part)
            detail = {"detail": encoding.own(part)["detail"]} if "detail" in encoding.own(part) else {}
            return [{"type": "image_url", "image_url": {"url": url, **detail}}] if url else []
        case DocumentPart():
            return _document(encoding, part)
        case _:
            encoding.refuse(f"a {part.type} of the user")
            return []


def _document(encoding: Encoding, part: DocumentPart) -> list[Fields]:
    if part.data is None:
        encoding.refuse("a document by reference: Chat Completions takes a file's bytes alone")
        return []
    if part.media_type != "application/pdf":
        encoding.refuse(f"a document of the type {part.media_type!r}: Chat Completions reads PDF alone")
        return []
    name = part.name or "document"
    name = name if name.lower().endswith(".pdf") else f"{name}.pdf"
    return [
        {"type": "file", "file": {"filename": name, "file_data": f"data:application/pdf;base64,{part.data}"}}
    ]


def _answer(encoding: Encoding, part: ToolResultPart) -> list[Fields]:
    call = encoding.answered(part)
    if call is None:
        return []
    for attachment in part.attachments:
        encoding.refuse(
            f"an attached {attachment.type}: a tool message is text", tool_use_id=part.tool_use_id
        )
    return [{"role": "tool", "tool_call_id": call.id, "content": text_of(part.content)}]


def _assistant(encoding: Encoding, message: Message) -> list[Fields]:
    content: list[Fields] = []
    calls: list[Fields] = []
    members: Fields = {}
    for part in encoding.parts(message):
        match part:
            case TextPart():
                content += _said(encoding, part, members)
            case ToolUsePart():
                calls.append(_call(encoding, part))
            case ThinkingPart() if data := encoding.own(part):
                member = str(data.get("member") or "reasoning_content")
                members[member] = f"{members.get(member, '')}{part.text}"
            case OpaquePart(provider="openai-chat", content=dict(block)):
                content += _items(block.get("content"))
                members |= {name: value for name, value in block.items() if name != "content"}
            case _:
                encoding.refuse(f"a {part.type} of the assistant: Chat Completions has no form for it")
        if isinstance(part, TextPart | ThinkingPart | ToolUsePart):
            members |= _mapping(encoding.own(part).get("members"))
    if calls:
        members["tool_calls"] = calls
    if not content and not members:
        return []
    # Null is what responses say beside calls, a refusal or sound; beside anything else the API
    # wants a text.
    silent = None if members.keys() & {"tool_calls", "refusal", "audio"} else ""
    return [{"role": "assistant", "content": _short(content) if content else silent, **members}]


def _said(encoding: Encoding, part: TextPart, members: Fields) -> list[Fields]:
    data = encoding.own(part)
    if data.get("refusal"):
        members["refusal"] = members.get("refusal", "") + part.text
        return []
    if isinstance(sound := data.get("audio"), Mapping) and sound.get("id") and "audio" not in members:
        members["audio"] = {"id": sound["id"]}
        return []
    return _text(encoding, part)


def _call(encoding: Encoding, part: ToolUsePart) -> Fields:
    call = encoding.call(part)
    if encoding.own(part).get("custom") and isinstance(get(part.input, "input"), str):
        return {
            "id": call.id,
            "type": "custom",
            "custom": {"name": call.name, "input": part.input["input"]},
        }
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments_text(part)},
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> list[Fields]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(encoding: Encoding, part: TextPart) -> list[Fields]:
    if not part.text:
        encoding.leave_out("an empty text", rule="text-not-blank")
        return []
    return [{"type": "text", "text": part.text}]


def _short(content: list[Fields]) -> str | list[Fields]:
    """One text as a string, as it was most likely said and as every server takes it."""
    if len(content) == 1 and content[0].keys() == {"type", "text"}:
        return str(content[0]["text"])
    return content


def recognizes(response: Any) -> bool:
    if get(response, "object") in ("chat.completion", "chat.completion.chunk"):
        return True
    # Servers of other makers leave `object` out, and Azure leaves it empty in the first chunk.
    return isinstance(get(response, "choices"), list)
