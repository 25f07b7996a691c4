"""Results of MCP servers' tools become tool results: from the package's objects and from JSON."""

from base64 import b64encode
from typing import Any

import pytest
from mcp import types
from tests.anthropic_messages import check
from tests.builders import events
from tests.media import png

from runfold import ToolResult
from runfold_projections.ledger import build_messages_from_events
from runfold_projections.providers import encode
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import ToolCall
from runfold_schemas.messages import AudioPart, DocumentPart, ImagePart

PNG = b64encode(png()).decode()
PDF = b64encode(b"%PDF-1.7").decode()
CONTENT = [
    {"type": "text", "text": "It rains."},
    {"type": "image", "data": PNG, "mimeType": "image/png"},
    {"type": "audio", "data": PNG, "mimeType": "audio/wav"},
    {
        "type": "resource",
        "resource": {"uri": "file:///a/notes.txt", "mimeType": "text/plain", "text": "It snows."},
    },
    {
        "type": "resource",
        "resource": {"uri": "file:///a/report.pdf", "mimeType": "application/pdf", "blob": PDF},
    },
    {"type": "resource_link", "uri": "https://example.com/a", "name": "the page", "description": "more"},
]
TEXT = "It rains.\nIt snows.\nthe page - https://example.com/a - more"
ATTACHMENTS = (
    ImagePart(media_type="image/png", data=PNG),
    AudioPart(media_type="audio/wav", data=PNG),
    DocumentPart(media_type="application/pdf", data=PDF, name="report.pdf"),
)


@pytest.mark.parametrize(
    "result",
    [
        {"content": CONTENT, "isError": False},
        types.CallToolResult.model_validate({"content": CONTENT}),
        types.CallToolResult.model_validate({"content": CONTENT}).content,
        CONTENT,
    ],
)
def test_texts_become_the_result_and_media_become_attachments(result: Any):
    assert ToolResult.from_mcp("1", result, tool_name="look") == ToolResult(
        tool_call_id="1", tool_name="look", result=TEXT, attachments=ATTACHMENTS
    )


def test_a_tool_that_failed_gives_an_error():
    failed = types.CallToolResult.model_validate({"content": CONTENT[:1], "isError": True})

    assert ToolResult.from_mcp("1", failed) == ToolResult(tool_call_id="1", error="It rains.")
    assert ToolResult.from_mcp("1", {"content": [], "isError": True}) == ToolResult(
        tool_call_id="1", error=""
    )


def test_structured_content_stands_in_for_texts():
    structured = {"content": [], "structuredContent": {"rain": True}}

    assert ToolResult.from_mcp("1", structured).result == {"rain": True}
    assert ToolResult.from_mcp("1", types.CallToolResult.model_validate(structured)).result == {"rain": True}
    assert ToolResult.from_mcp("1", {**structured, "content": CONTENT[:1]}).result == "It rains."


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "image", "data": "no base64!", "mimeType": "image/png"}, '"no base64!"'),
        ({"type": "resource", "resource": {"uri": "a:b"}}, '"a:b"'),
        ({"type": "hologram", "depth": 3}, '"depth": 3'),
        ("a text", '"a text"'),
        (None, "null"),
    ],
)
def test_a_block_that_cannot_be_read_is_kept_as_json(block: Any, text: str):
    assert text in ToolResult.from_mcp("1", [block]).result


@pytest.mark.parametrize("result", ["a text", None, {}, {"foo": 1}, {"content": "a text"}, 3])
def test_a_value_that_is_no_result_is_refused(result: Any):
    with pytest.raises(InvalidEventError, match="is not a result of an MCP server's tool"):
        ToolResult.from_mcp("1", result)


def test_structured_content_may_stand_alone():
    assert ToolResult.from_mcp("1", {"structuredContent": {"rain": True}}).result == {"rain": True}


def test_a_picture_alone_has_no_text_beside_it():
    result = ToolResult.from_mcp("1", CONTENT[1:2])
    ledger = build_messages_from_events(
        events(ToolCall(tool_call_id="1", tool_name="look", payload={}), result)
    )

    body = encode(ledger, "anthropic").body

    check(body)
    (block,) = body["messages"][1]["content"]
    assert [inner["type"] for inner in block["content"]] == ["image"]
