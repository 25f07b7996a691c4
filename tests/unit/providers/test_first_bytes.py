"""Media whose bytes are not what their media type says: the true type is sent, and what no provider
reads is a fault before it is paid for.
"""

import json
from base64 import b64encode
from typing import Any

import pytest
from tests.media import png

from runfold_projections.providers import encode, validate
from runfold_projections.providers.first_bytes import true_type
from runfold_schemas.errors import InexpressibleError
from runfold_schemas.messages import (
    PROVIDERS,
    DocumentPart,
    ImagePart,
    MediaPart,
    Message,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)

each_provider = pytest.mark.parametrize("provider", PROVIDERS)

TRUE_TYPES = {
    "image/png": png(b"content"),
    "image/jpeg": b"\xff\xd8\xff\xe0" + bytes(40),
    "image/gif": b"GIF89a" + bytes(40),
    "image/webp": b"RIFF\x10\0\0\0WEBPVP8 " + bytes(40),
}
HTML = b"<!doctype html><title>404</title>" * 3
UNREADABLE = {
    "HTML as an image": ImagePart(media_type="image/png", data=b64encode(HTML).decode()),
    "HTML as a PDF": DocumentPart(media_type="application/pdf", data=b64encode(HTML).decode(), name="a"),
    "a cut PNG": ImagePart(media_type="image/png", data=b64encode(png(bytes(300))[:200]).decode()),
    "nearly nothing": ImagePart(media_type="image/jpeg", data="/w=="),
}


def ledger(*parts: Any) -> list[Message]:
    return [Message(role="user", parts=(TextPart(text="Look:"), *parts))]


def answered(*attachments: MediaPart) -> list[Message]:
    call = ToolUsePart(id="c1", name="look", input={})
    result = ToolResultPart(tool_use_id="c1", content="seen", attachments=attachments)
    return [
        *ledger(),
        Message(role="assistant", parts=(call,)),
        Message(role="user", parts=(result,)),
    ]


@pytest.mark.parametrize("declared", TRUE_TYPES)
@pytest.mark.parametrize(("shown", "content"), TRUE_TYPES.items(), ids=TRUE_TYPES)
def test_the_bytes_of_an_image_show_its_type(declared: str, shown: str, content: bytes):
    assert true_type(declared, b64encode(content).decode()) == shown


@pytest.mark.parametrize(
    "media_type", ["image/heic", "image/svg+xml", "audio/wav", "text/plain", "video/mp4"]
)
def test_other_types_are_not_looked_at(media_type: str):
    assert true_type(media_type, b64encode(HTML).decode()) == media_type


def test_a_pdf_may_begin_with_other_bytes():
    assert true_type("application/pdf", b64encode(bytes(900) + b"%PDF-1.7").decode()) == "application/pdf"
    assert true_type("application/pdf", b64encode(bytes(1_100) + b"%PDF-1.7").decode()) is None


@each_provider
def test_an_image_is_sent_with_its_true_type(provider: Any):
    data = b64encode(TRUE_TYPES["image/png"]).decode()
    wrong, right = (ImagePart(media_type=f"image/{kind}", data=data) for kind in ("jpeg", "png"))

    for messages, expected in ((ledger(wrong), ledger(right)), (answered(wrong), answered(right))):
        assert encode(messages, provider).body == encode(expected, provider).body
        assert validate(messages, provider) == []


@each_provider
@pytest.mark.parametrize("part", UNREADABLE.values(), ids=UNREADABLE)
def test_what_no_provider_reads_is_a_fault_with_its_place(provider: Any, part: MediaPart):
    faults = validate(ledger(part), provider)

    assert [(fault.rule, fault.message_index, fault.part_index) for fault in faults] == [
        ("media-is-readable", 0, 1)
    ]
    with pytest.raises(InexpressibleError, match="are not whole or not of that type"):
        encode(ledger(part), provider)
    request = encode(ledger(part), provider, lossy="drop")
    assert [fault.rule for fault in request.dropped] == ["media-is-readable"]
    assert part.data not in json.dumps(request.body, default=repr)


@each_provider
def test_a_result_goes_without_what_no_provider_reads(provider: Any):
    whole = ImagePart(media_type="image/png", data=b64encode(png()).decode())
    messages = answered(UNREADABLE["HTML as an image"], whole)

    request = encode(messages, provider, lossy="drop")

    assert [fault.rule for fault in validate(messages, provider)] == ["media-is-readable"]
    assert request.body == encode(answered(whole), provider).body
    assert request.omitted == frozenset()
