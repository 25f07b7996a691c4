"""OpenAI's Chat Completions, a format that many other servers use too.

A message of this format has texts in `content` and calls in `tool_calls`, without an order between
the two. The ledger's order is kept within each. A text after a call is not refused, because the
format cannot express it and the model reads the same words.

OpenAI's own API has no form for reasoning. Other servers have a member for it (`reasoning_content`,
`reasoning`), and some refuse a tool loop without it (DeepSeek: "The `reasoning_content` in the
thinking mode must be passed back to the API"). So reasoning is recorded with the name of its member
and sent back in that member. Mistral has reasoning within `content`. Thinking of other providers is
refused.

A tool message can only hold text. The media of results follow the last tool message, in a message
of the user.

Data for this provider only (`provider_data["openai-chat"]`):

- for a text: `refusal` (true), `audio` (the server's id of the sound), `annotations` (kept and not
  sent, because a request has no member for them);
- for a call: `arguments`, if the exact text is not compact JSON, and `custom` (true) for free text;
  `call` and `function`, the members that OpenAI's API does not have, for example signatures;
- for thinking: `member`, and `part` with the other members of Mistral's piece of `content`;
- for an image: `detail`;
- for instructions, texts and parts of the user: `prompt_cache_breakpoint`;
- for the first part of a message: `members`, the members that OpenAI's API does not have. They are
  sent back unchanged.

An opaque part is a piece of its message: some of its members, or some of its `content`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from runfold_projections.providers.blobs import file_of
from runfold_projections.providers.encoding import Encoded, EncodeOptions, Encoding, Limits, input_of, text_of
from runfold_projections.providers.media_types import is_text
from runfold_projections.providers.models import rules_of
from runfold_projections.providers.openai_chat_recording import ChatRecorder, is_helper
from runfold_projections.providers.values import get, mapping
from runfold_schemas.messages import (
    AudioPart,
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

__all__ = ["CACHE_MARK", "ChatRecorder", "arguments_text", "encode", "image_url", "marked", "recognizes"]

CACHE_MARK: Final = "prompt_cache_breakpoint"

_LIMITS: Final = Limits(
    # Some servers give meaning to their ids (functions.look:0), so only long ids are changed.
    id_illegal=None,
    id_max=40,
    name_illegal=re.compile(r"[^a-zA-Z0-9_-]"),
    name_max=64,
    # A tool message answers the assistant message before it, so ids may repeat in a conversation.
    # In real conversations they do.
    ids_unique=False,
)

# "Tool call id was ... but must be a-z, A-Z, 0-9, with a length of 9."
_EXACT_IDS: Final = _LIMITS._replace(id_max=9, are_exact=True)

_BRIDGE: Final[Mapping[str, Any]] = {"role": "assistant", "content": "OK."}
"""What the assistant says between results and words of the user, for models that must answer."""

_REASONING: Final = frozenset(
    {"reasoning", "reasoning_content", "reasoning_details", "thinking_blocks", "provider_specific_fields"}
)
"""The members with reasoning: those of DeepSeek, OpenRouter and LiteLLM."""

_NO_REASONING: Final = " "
"""What stands for the reasoning of a message without. An empty text is refused as none is:
https://github.com/NousResearch/hermes-agent/pull/17341.
"""

_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})

_SOUNDS: Final[Mapping[str, str]] = {
    "audio/wav": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}

Fields = dict[str, Any]


def encode(messages: Sequence[Message], options: EncodeOptions) -> Encoded:
    has_short_ids = rules_of("openai-chat", options.get("model")).short_ids
    encoding = Encoding("openai-chat", _EXACT_IDS if has_short_ids else _LIMITS, options)
    body: list[Fields] = []
    for message in encoding.messages(messages):
        for fields in _messages(encoding, message):
            follows_results = fields["role"] == "user" and bool(body) and body[-1]["role"] == "tool"
            if follows_results and not encoding.rules.user_after_results:
                encoding.note_bridge()
                body.append({**_BRIDGE})
            body.append(fields)
    return encoding.finish({"messages": body})


def _messages(encoding: Encoding, message: Message) -> list[Fields]:
    match message.role:
        case "assistant":
            return _assistant(encoding, message)
        case "user":
            return _user(encoding, message)
        case "system":
            return _system(encoding, message)


def arguments_text(part: ToolUsePart) -> str:
    """A call's arguments as text: the exact text if OpenAI wrote it, otherwise compact JSON.

    Both of OpenAI's formats record the exact text, so each accepts the text of the other. Text that
    is not JSON is the input itself and is sent back unchanged. Text that differs from the input is
    outdated and is not sent.
    """
    data = part.provider_data or {}
    for format_ in ("openai-chat", "openai-responses"):
        text = get(data.get(format_), "arguments")
        if isinstance(text, str) and text and _is_text_of(text, part.input):
            return text
    return json.dumps(input_of(part), ensure_ascii=False, separators=(",", ":"))


def image_url(encoding: Encoding, image: ImagePart) -> str | None:
    """The image's URL in both of OpenAI's formats: over http, or a data URI of four media types.
    None if it was refused.
    """
    if image.url is None:
        if image.media_type not in _IMAGES:
            encoding.refuse(
                f"an image of the type {image.media_type!r}: OpenAI reads PNG, JPEG, WebP and GIF"
            )
            return None
        return f"data:{image.media_type};base64,{image.data}"
    if not image.url.startswith(("https://", "http://", "data:")):
        encoding.refuse(f"an image at {image.url!r}: OpenAI only fetches http and https")
        return None
    return image.url


def marked(content: list[Fields], data: Mapping[str, Any]) -> list[Fields]:
    """The content with the part's mark of the prompt cache at its end."""
    if CACHE_MARK not in data or not content:
        return content
    return [*content[:-1], {**content[-1], CACHE_MARK: data[CACHE_MARK]}]


def _is_text_of(text: str, value: Any) -> bool:
    try:
        return bool(text == value or json.loads(text) == value)
    except (ValueError, RecursionError):
        return False


def _system(encoding: Encoding, message: Message) -> list[Fields]:
    content: list[Fields] = []
    for part in encoding.parts(message):
        if isinstance(part, TextPart):
            content += marked(_text(encoding, part), encoding.provider_data(part))
        else:
            encoding.refuse(f"a system message can only hold text, not {part.type}")
    return [{"role": "system", "content": _short(content)}] if content else []


def _user(encoding: Encoding, message: Message) -> list[Fields]:
    results: list[Fields] = []
    attached: list[Fields] = []
    content: list[Fields] = []
    for part in encoding.parts(message):
        if not isinstance(part, ToolResultPart):
            content += _user_content(encoding, part)
        elif content:
            encoding.refuse(
                "a tool_result after the user's words: it must follow its call", rule="result-after-call"
            )
        else:
            results += _result(encoding, part, attached)
    content = attached + content
    return [*results, {"role": "user", "content": _short(content)}] if content else results


def _user_content(encoding: Encoding, part: Part) -> list[Fields]:
    return marked(_unmarked(encoding, part), encoding.provider_data(part))


def _unmarked(encoding: Encoding, part: Part) -> list[Fields]:
    match part:
        case TextPart():
            return _text(encoding, part)
        case ImagePart():
            url = image_url(encoding, part)
            data = encoding.provider_data(part)
            detail = {"detail": data["detail"]} if "detail" in data else {}
            return [{"type": "image_url", "image_url": {"url": url, **detail}}] if url else []
        case DocumentPart():
            return _document(encoding, part)
        case AudioPart():
            return _audio(encoding, part)
        case _:
            encoding.refuse(f"a message of the user cannot hold {part.type} parts")
            return []


def _document(encoding: Encoding, part: DocumentPart) -> list[Fields]:
    if file_id := file_of(part, "openai-chat"):
        return [{"type": "file", "file": {"file_id": file_id}}]
    if part.data is None:
        encoding.refuse("a document by reference: Chat Completions only accepts the bytes of a file")
        return []
    if is_text(part.media_type):
        return _text_document(encoding, part)
    if part.media_type != "application/pdf":
        encoding.refuse(
            f"a document of the type {part.media_type!r}: Chat Completions only reads PDF, and text in UTF-8"
        )
        return []
    name = part.name or "document"
    name = name if name.lower().endswith(".pdf") else f"{name}.pdf"
    return [
        {"type": "file", "file": {"filename": name, "file_data": f"data:application/pdf;base64,{part.data}"}}
    ]


def _text_document(encoding: Encoding, part: DocumentPart) -> list[Fields]:
    """A text file as a text: the API takes no text files, and a model reads the same words."""
    text = encoding.decoded(part)
    if text == "":
        encoding.refuse(f"a document of {part.media_type} without text")
    if not text:
        return []
    return [{"type": "text", "text": f"{part.name}:\n\n{text}" if part.name else text}]


def _audio(encoding: Encoding, part: AudioPart) -> list[Fields]:
    kind = _SOUNDS.get(part.media_type)
    if part.data is None or kind is None:
        encoding.refuse(
            f"audio at {part.url!r}: Chat Completions only accepts bytes"
            if part.data is None
            else f"audio of the type {part.media_type!r}: Chat Completions only reads WAV and MP3"
        )
        return []
    return [{"type": "input_audio", "input_audio": {"data": part.data, "format": kind}}]


def _result(encoding: Encoding, part: ToolResultPart, attached: list[Fields]) -> list[Fields]:
    """The tool message. Its media are added to `attached`, because a tool message can only hold
    text, and a message of the user may only follow the last tool message.
    """
    call = encoding.match_call(part)
    if call is None:
        return []
    media = [item for attachment in part.attachments for item in _user_content(encoding, attachment)]
    encoding.keep_part()
    if media:
        text = f"The result of {call.name} ({call.id}) contains:"
        attached += [{"type": "text", "text": text}, *media]
    content = marked([{"type": "text", "text": text_of(part.content)}], encoding.provider_data(part))
    return [{"role": "tool", "tool_call_id": call.id, "content": _short(content)}]


def _assistant(encoding: Encoding, message: Message) -> list[Fields]:
    content: list[Fields] = []
    calls: list[Fields] = []
    members: Fields = {}
    for part in encoding.parts(message):
        match part:
            case TextPart():
                content += _assistant_text(encoding, part, members)
            case ToolUsePart():
                calls.append(_call(encoding, part))
            case ThinkingPart() if data := encoding.provider_data(part):
                content += _thinking(part, data, members)
            case OpaquePart(provider="openai-chat", content=dict(block)):
                content += _items(block.get("content"))
                members |= _unknown(encoding, {name: block[name] for name in block if name != "content"})
            case _:
                encoding.refuse(f"Chat Completions has no form for {part.type} parts of the assistant")
        if isinstance(part, TextPart | ThinkingPart | ToolUsePart):
            members |= _unknown(encoding, mapping(encoding.provider_data(part).get("members")))
    if calls:
        members["tool_calls"] = calls
    if not content and not members:
        return []
    if encoding.rules.reasoning_always and not members.keys() & _REASONING:
        members["reasoning_content"] = _NO_REASONING
    # Responses have null beside calls, a refusal or sound. Beside anything else the API requires a
    # text.
    empty = None if members.keys() & {"tool_calls", "refusal", "audio"} else ""
    return [{"role": "assistant", "content": _short(content) if content else empty, **members}]


def _thinking(part: ThinkingPart, data: Fields, members: Fields) -> list[Fields]:
    """Adds reasoning to its member of the message, or returns it as a piece of the content."""
    member = str(data.get("member") or "reasoning_content")
    if member == "content":
        texts = [{"type": "text", "text": part.text}] if part.text else []
        return [{**mapping(data.get("part")), "type": "thinking", "thinking": texts}]
    members[member] = f"{members.get(member, '')}{part.text}"
    return []


def _unknown(encoding: Encoding, members: Mapping[str, Any]) -> Mapping[str, Any]:
    """The members that OpenAI's API does not have. Some of them are another form of reasoning."""
    if encoding.with_thinking:
        return members
    return {name: members[name] for name in members if name not in _REASONING}


def _assistant_text(encoding: Encoding, part: TextPart, members: Fields) -> list[Fields]:
    data = encoding.provider_data(part)
    if data.get("refusal"):
        members["refusal"] = members.get("refusal", "") + part.text
        return []
    if isinstance(sound := data.get("audio"), Mapping) and sound.get("id") and "audio" not in members:
        members["audio"] = {"id": sound["id"]}
        return []
    return marked(_text(encoding, part), data)


def _call(encoding: Encoding, part: ToolUsePart) -> Fields:
    call = encoding.call(part)
    data = encoding.provider_data(part)
    members, function = mapping(data.get("call")), mapping(data.get("function"))
    if data.get("custom") and isinstance(get(part.input, "input"), str):
        custom = {**function, "name": call.name, "input": part.input["input"]}
        return {**members, "id": call.id, "type": "custom", "custom": custom}
    function = {**function, "name": call.name, "arguments": arguments_text(part)}
    return {**members, "id": call.id, "type": "function", "function": function}


def _items(value: Any) -> list[Fields]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(encoding: Encoding, part: TextPart) -> list[Fields]:
    if not part.text:
        encoding.leave_out("an empty text", rule="text-not-blank")
        return []
    return [{"type": "text", "text": part.text}]


def _short(content: list[Fields]) -> str | list[Fields]:
    """A single text as a string, the form that every server accepts."""
    if len(content) == 1 and content[0].keys() == {"type", "text"}:
        return str(content[0]["text"])
    return content


def recognizes(response: Any) -> bool:
    """Whether this is a completion, a chunk, or an event of the SDK's stream helper."""
    kind = get(response, "type")
    return is_helper(kind) or _is_completion(get(response, "chunk") if kind == "chunk" else response)


def _is_completion(response: Any) -> bool:
    if get(response, "object") in ("chat.completion", "chat.completion.chunk"):
        return True
    # Some servers omit `object`, and Azure leaves it empty in the first chunk.
    return isinstance(get(response, "choices"), list)
