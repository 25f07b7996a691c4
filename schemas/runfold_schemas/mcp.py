"""Results of tools of the Model Context Protocol: their content as a text and attachments."""

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from runfold_schemas.errors import InvalidEventError
from runfold_schemas.messages import AudioPart, DocumentPart, ImagePart, Medium, VideoPart


def mcp_fields(result: Any) -> dict[str, Any]:
    """The fields of a `tool_result` event. Texts become the result, or the error if the tool
    failed; without texts, the structured content does. Images, audio and embedded files become
    attachments. Raises `InvalidEventError` for a value that is no result of a tool.
    """
    content = result if isinstance(result, list | tuple) else _get(result, "content")
    structured = _get(result, "structuredContent", "structured_content")
    if not isinstance(content, list | tuple) and (content is not None or structured is None):
        raise InvalidEventError(
            f"{result!r:.100} is not a result of an MCP server's tool: a CallToolResult, its JSON or a list"
            " of content blocks is expected",
            field="result",
        )
    texts: list[str] = []
    attachments: list[Medium] = []
    for block in content or ():
        found = _read(block)
        if isinstance(found, str):
            texts.append(found)
        else:
            attachments.append(found)
    answer: Any = "\n".join(texts)
    if not texts:
        answer = "" if structured is None else _plain(structured)
    failed = _get(result, "isError", "is_error") is True
    return {"error" if failed else "result": answer, "attachments": tuple(attachments)}


def _read(block: Any) -> str | Medium:
    """The text of a block of the content, or the attachment."""
    match _get(block, "type"):
        case "text" if isinstance(text := _get(block, "text"), str):
            return text
        case "image" | "audio":
            return _medium(_get(block, "data"), _media_type(block)) or _json(block)
        case "resource":
            return _resource(_get(block, "resource")) or _json(block)
        case "resource_link":
            named = (_get(block, "title", "name"), str(_get(block, "uri") or ""), _get(block, "description"))
            return " - ".join(part for part in named if isinstance(part, str) and part)
        case _:
            return _json(block)


def _resource(resource: Any) -> str | Medium | None:
    text = _get(resource, "text")
    if isinstance(text, str):
        return text
    name = str(_get(resource, "uri") or "").rstrip("/").rpartition("/")[2]
    return _medium(_get(resource, "blob"), _media_type(resource), name=name)


def _medium(data: Any, media_type: str, *, name: str = "") -> Medium | None:
    """The attachment. None if its bytes are not base64."""
    try:
        # Base64 may be broken into lines.
        encoded = b64encode(b64decode("".join(data.split()), validate=True)).decode()
    except (binascii.Error, ValueError, AttributeError):
        return None
    kinds: dict[str, type[ImagePart | AudioPart | VideoPart]] = {
        "image": ImagePart,
        "audio": AudioPart,
        "video": VideoPart,
    }
    kind = kinds.get(media_type.partition("/")[0])
    if kind is not None:
        return kind(media_type=media_type, data=encoded)
    return DocumentPart(media_type=media_type, data=encoded, name=name)


def _media_type(value: Any) -> str:
    media_type = _get(value, "mimeType", "mime_type")
    return media_type if isinstance(media_type, str) and media_type else "application/octet-stream"


def _json(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, default=str)


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return value


def _get(value: Any, *names: str) -> Any:
    """The first of these members that is present, of the package's object or of decoded JSON."""
    for name in names:
        member = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if member is not None:
            return member
    return None
