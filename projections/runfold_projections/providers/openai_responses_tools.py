"""Calls of the Responses API that the caller executes, although the API defines their tools:
computer, shell, local shell, patches, the search for tools, and the approval of a call to MCP.

Such an item is recorded as a call of a tool. So a missing result is found, is repaired, and means
the same to other providers. The payload of the call has the item's members. An ordinary result
becomes the output that the API wants for the item. A result may also be that output itself.

Older logs and the OpenAI Agents SDK hold these items as opaque parts. `opaque_call_id`,
`opaque_answer_id` and `failed_output` are for those.
"""

import sys
from collections.abc import Mapping
from typing import Any, Final

from runfold_projections.providers.encoding import text_of
from runfold_projections.providers.values import get
from runfold_schemas.messages import ImagePart, ToolResultPart

Fields = dict[str, Any]

TOOLS: Final[Mapping[str, str]] = {
    "computer_call": "computer",
    "shell_call": "shell",
    "local_shell_call": "local_shell",
    "apply_patch_call": "apply_patch",
    "tool_search_call": "tool_search",
    "mcp_approval_request": "mcp_approval",
}
"""The name of the tool by the type of its items."""

_OUTPUTS: Final[Mapping[str, str]] = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "shell_call": "shell_call_output",
    "local_shell_call": "local_shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
    "mcp_approval_request": "mcp_approval_response",
}
"""The type of the output by the type of the call."""


def is_executed_by_caller(item: Any) -> bool:
    """Whether the item is a call for which the API expects an output in the next request. OpenAI
    itself runs the shell of its containers, and searches tools unless the caller does.
    """
    match get(item, "type"):
        case "shell_call":
            return bool(get(get(item, "environment"), "type") != "container_reference")
        case "tool_search_call":
            return bool(get(item, "execution") == "client")
        case str() as kind:
            return kind in TOOLS
        case _:
            return False


def id_of(item: Any) -> Any:
    """The id that the output of the call names."""
    return get(item, "id") if get(item, "type") == "mcp_approval_request" else get(item, "call_id", "id")


def call_item(kind: str, call_id: str, members: Mapping[str, Any], payload: Mapping[str, Any]) -> Fields:
    """The item of a call. `members` are those that the payload does not have."""
    named = "id" if kind == "mcp_approval_request" else "call_id"
    return {**payload, **members, "type": kind, named: call_id}


def output_item(call: Mapping[str, Any], part: ToolResultPart, media: list[Fields]) -> Fields:
    """The output for the item `call`. `media` are the attachments of the result as content."""
    kind = call["type"]
    content = part.content
    if isinstance(content, Mapping) and content.get("type") == _OUTPUTS[kind]:
        return {**content, **_answer(call)}
    caller = {"caller": call["caller"]} if "caller" in call else {}
    return {**caller, **_answer(call), **_output(call, part, media)}


def has_screenshot(part: ToolResultPart) -> bool:
    """Whether the result can be the output of a computer call."""
    if any(isinstance(attachment, ImagePart) for attachment in part.attachments):
        return True
    return get(part.content, "type") in ("computer_call_output", "computer_screenshot")


def attachments_max(call: Mapping[str, Any]) -> int:
    """How many images and files the output of the call can hold."""
    match call["type"]:
        case "function_call" | "custom_tool_call":
            return sys.maxsize
        case "computer_call":
            return 1
        case _:
            return 0


def opaque_call_id(item: Any) -> str | None:
    """The id of the call, if the opaque item is a call that the caller executes."""
    call_id = id_of(item) if is_executed_by_caller(item) else None
    return call_id if isinstance(call_id, str) else None


def opaque_answer_id(item: Any) -> str | None:
    """The id of the call that the opaque item answers, if it is the output of a call."""
    if get(item, "type") not in _OUTPUTS.values():
        return None
    answered = get(item, "approval_request_id", "call_id", "id")
    return answered if isinstance(answered, str) else None


def failed_output(item: Mapping[str, Any], error: str) -> Fields | None:
    """The output for the opaque call `item` that failed. None for a computer call, because its
    output is an image.
    """
    if item["type"] == "computer_call":
        return None
    failed = ToolResultPart(tool_use_id="", content={"error": error}, is_error=True)
    return output_item(item, failed, [])


def _answer(call: Mapping[str, Any]) -> Fields:
    """The members by which the output names its call."""
    kind = call["type"]
    # The official type of a local shell's output names the call by `id`. OpenAI's guide and its
    # Agents SDK use `call_id`.
    named = "approval_request_id" if kind == "mcp_approval_request" else "call_id"
    return {"type": _OUTPUTS[kind], named: id_of(call)}


def _output(call: Mapping[str, Any], part: ToolResultPart, media: list[Fields]) -> Fields:
    match call["type"]:
        case "function_call" | "custom_tool_call":
            return {"output": _content(part.content, media)}
        case "computer_call":
            return {"output": _screenshot(part.content, media)}
        case "shell_call":
            limit = get(call.get("action"), "max_output_length")
            return {"output": _shell(part), **({"max_output_length": limit} if limit else {})}
        case "local_shell_call":
            return {"output": _text(part)}
        case "apply_patch_call":
            return {"status": "failed" if part.is_error else "completed", "output": _text(part)}
        case "tool_search_call":
            tools = part.content if isinstance(part.content, list) else get(part.content, "tools")
            listed = tools if isinstance(tools, list) else []
            return {"execution": "client", "status": "completed", "tools": listed}
        case _:
            return _approval(part)


def _screenshot(content: Any, media: list[Fields]) -> Fields:
    if get(content, "type") == "computer_screenshot":
        return dict(content)
    sources = (image.items() for image in media if image["type"] == "input_image")
    source = {name: value for name, value in next(sources, ()) if name in ("image_url", "file_id")}
    return {"type": "computer_screenshot", **source}


def _content(content: Any, media: list[Fields]) -> str | list[Fields]:
    text = text_of(content)
    if not media:
        return text
    return [*([] if content in (None, "") else [{"type": "input_text", "text": text}]), *media]


def _shell(part: ToolResultPart) -> list[Fields]:
    """The output of each command, with its outcome."""
    content = part.content
    if isinstance(content, Mapping) and "stdout" in content:
        content = [content]
    if isinstance(content, list) and content and all(isinstance(each, Mapping) for each in content):
        return [_shell_output(each) for each in content]
    if part.is_error:
        return [{"stdout": "", "stderr": _text(part), "outcome": {"type": "exit", "exit_code": 1}}]
    return [{"stdout": _text(part), "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]


def _shell_output(output: Mapping[str, Any]) -> Fields:
    outcome = output.get("outcome")
    if not isinstance(outcome, Mapping):
        outcome = {"type": "exit", "exit_code": output.get("exit_code", 0)}
    stdout, stderr = (text_of(output.get(name) or "") for name in ("stdout", "stderr"))
    return {"stdout": stdout, "stderr": stderr, "outcome": outcome}


def _approval(part: ToolResultPart) -> Fields:
    """The answer to a request for approval. Only `True` and `{"approve": true}` approve."""
    content = part.content
    if content is True or get(content, "approve") is True:
        return {"approve": not part.is_error}
    reason = get(content, "reason") or ("" if content is False else _text(part))
    return {"approve": False, **({"reason": reason} if isinstance(reason, str) and reason else {})}


def _text(part: ToolResultPart) -> str:
    error = get(part.content, "error") if part.is_error else None
    return text_of(part.content if error is None else error)
