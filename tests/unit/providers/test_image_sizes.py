"""Images that are too large for a provider are faults before they are paid for."""

from base64 import b64encode
from typing import Any

import pytest
from tests.media import png

from runfold_projections.providers import encode, validate
from runfold_projections.providers.image_sizes import Size, image_size
from runfold_schemas.errors import InexpressibleError
from runfold_schemas.messages import (
    PROVIDERS,
    ImagePart,
    Message,
    Part,
    Provider,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)

SIZE = Size(1234, 567)


def sized_png(width: int, height: int, content: bytes = b"") -> bytes:
    return png(b"\0\0\0\rIHDR" + width.to_bytes(4) + height.to_bytes(4) + content)


def jpeg(width: int, height: int, *, metadata: int = 0) -> bytes:
    segment = b"\xff\xe1\xff\xff" + bytes(0xFFFD)
    frame = b"\xff\xc2\0\x11\x08" + height.to_bytes(2) + width.to_bytes(2) + bytes(20)
    return b"\xff\xd8" + segment * metadata + b"\xff\xff\xdb\0\x04ab" + frame


def webp(kind: bytes, content: bytes) -> bytes:
    return b"RIFF\0\0\0\0WEBP" + kind + bytes(4) + content + bytes(20)


HEADERS = {
    "png": ("image/png", sized_png(*SIZE)),
    "jpeg": ("image/jpeg", jpeg(*SIZE)),
    "jpeg with metadata": ("image/jpeg", jpeg(*SIZE, metadata=5)),
    "gif": ("image/gif", b"GIF89a" + SIZE.width.to_bytes(2, "little") + SIZE.height.to_bytes(2, "little")),
    "webp": (
        "image/webp",
        webp(
            b"VP8 ",
            bytes(3) + b"\x9d\x01\x2a" + SIZE.width.to_bytes(2, "little") + SIZE.height.to_bytes(2, "little"),
        ),
    ),
    "webp without loss": (
        "image/webp",
        webp(b"VP8L", b"\x2f" + (SIZE.width - 1 | (SIZE.height - 1) << 14).to_bytes(4, "little")),
    ),
    "extended webp": (
        "image/webp",
        webp(
            b"VP8X",
            bytes(4) + (SIZE.width - 1).to_bytes(3, "little") + (SIZE.height - 1).to_bytes(3, "little"),
        ),
    ),
}


@pytest.mark.parametrize(("media_type", "content"), HEADERS.values(), ids=HEADERS)
def test_the_header_of_an_image_says_its_size(media_type: str, content: bytes):
    assert image_size(media_type, b64encode(content).decode()) == SIZE


@pytest.mark.parametrize(("media_type", "content"), HEADERS.values(), ids=HEADERS)
def test_a_header_that_is_cut_says_nothing(media_type: str, content: bytes):
    whole = len(content.rstrip(b"\0"))
    for length in range(min(whole, 16)):
        assert image_size(media_type, b64encode(content[:length]).decode()) is None


@pytest.mark.parametrize("data", ["", "?", "////", "A" * 101, "/9j" + "/" * 999])
@pytest.mark.parametrize("media_type", ["image/png", "image/jpeg", "image/webp", "image/tiff"])
def test_what_is_no_image_says_nothing(media_type: str, data: str):
    assert image_size(media_type, data) is None


def image(width: int, height: int, *, characters: int = 0) -> ImagePart:
    content = sized_png(width, height, bytes(characters // 4 * 3))
    return ImagePart(media_type="image/png", data=b64encode(content).decode())


def ledger(*parts: Part) -> list[Message]:
    return [Message(role="user", parts=(TextPart(text="Look:"), *parts))]


def answered(*attachments: ImagePart) -> list[Message]:
    call = ToolUsePart(id="c1", name="look", input={})
    result = ToolResultPart(tool_use_id="c1", content="seen", attachments=attachments)
    return [*ledger(), Message(role="assistant", parts=(call,)), Message(role="user", parts=(result,))]


LARGE = {
    "too wide": image(8_001, 10),
    "too high": image(10, 8_001),
    "too many bytes": image(10, 10, characters=5_250_000),
}


@pytest.mark.parametrize("provider", ["anthropic", "bedrock"])
@pytest.mark.parametrize("large", LARGE.values(), ids=LARGE)
def test_an_image_that_is_too_large_is_a_fault_with_its_place(provider: Provider, large: ImagePart):
    messages = ledger(image(8_000, 8_000), large)

    faults = validate(messages, provider)

    assert [(fault.rule, fault.message_index, fault.part_index) for fault in faults] == [("image-size", 0, 2)]
    with pytest.raises(InexpressibleError, match="are allowed"):
        encode(messages, provider)
    request = encode(messages, provider, lossy="drop")
    assert request.body == encode(ledger(image(8_000, 8_000)), provider).body
    assert [fault.rule for fault in request.dropped] == ["image-size"]


@pytest.mark.parametrize("provider", ["anthropic", "bedrock"])
def test_a_result_goes_without_an_image_that_is_too_large(provider: Provider):
    messages = answered(LARGE["too wide"], image(9, 9))

    assert [fault.rule for fault in validate(messages, provider)] == ["image-size"]
    assert encode(messages, provider, lossy="drop").body == encode(answered(image(9, 9)), provider).body


def test_more_than_twenty_images_must_be_smaller_for_anthropic():
    few = [image(2_001, 2_001), *[image(9, 9)] * 19]

    assert validate(ledger(*few), "anthropic") == []
    grown = [*ledger(*few), *answered(image(9, 9))[1:]]
    [fault] = validate(grown, "anthropic")
    assert (fault.rule, fault.message_index, fault.part_index) == ("image-size", 0, 1)
    assert "more than 20 images" in fault.text
    assert validate(ledger(*few, image(2_000, 2_000)), "bedrock") == []


@pytest.mark.parametrize("provider", [each for each in PROVIDERS if each not in ("anthropic", "bedrock")])
def test_other_providers_get_images_of_any_size(provider: Any):
    assert validate(ledger(*LARGE.values()), provider) == []
