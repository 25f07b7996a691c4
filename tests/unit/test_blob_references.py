"""References to blobs: their forms, and the ledgers whose requests need their bytes."""

import base64
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.media import png

from runfold_projections.providers import Encoded, encode, validate
from runfold_projections.providers.blobs import inline, uses
from runfold_schemas.blobs import BlobString, blob_string, bytes_of, reference_in, reference_to
from runfold_schemas.errors import InexpressibleError
from runfold_schemas.messages import (
    BASE64_PATTERN,
    PROVIDERS,
    AudioPart,
    DocumentPart,
    ImagePart,
    Message,
    OpaquePart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    VideoPart,
)

PICTURE = png(bytes(range(256)))
REFERENCE = reference_to(PICTURE)
DATA = base64.b64encode(PICTURE).decode()
BLOBS = {REFERENCE.sha256: PICTURE}


def ledger(*parts) -> list[Message]:
    return [Message(role="user", parts=(TextPart(text="Look."), *parts))]


@given(st.binary(max_size=50), st.sampled_from(["", "data:image/png;base64,"]), st.booleans())
def test_a_string_is_restored_exactly(content, prefix, url_safe):
    encode_ = base64.urlsafe_b64encode if url_safe else base64.b64encode
    text = prefix + encode_(content).decode()

    found = bytes_of(text)

    assert found is not None
    read, form, begin = found
    reference = blob_string(BlobString(reference_to(read), form, begin).text)
    assert reference is not None
    assert reference.restored(read) == text


@pytest.mark.parametrize(
    "text",
    [
        "a word",
        "AAA",
        "AAAA=",
        "AAAA====",
        "AAAA\n",
        "AB==",  # the last bits are not zero
        "+-AA",  # two alphabets
        "data:text/plain,AAAA",
        "é" * 4,
    ],
)
def test_other_strings_stay_strings(text):
    assert bytes_of(text) is None


@pytest.mark.parametrize(
    "text", ["", "blob:sha256:1", REFERENCE.url + ";as=hex", "x" + REFERENCE.url, "b" * 999]
)
def test_other_texts_are_no_references(text):
    assert blob_string(text) is None
    assert reference_in(text) is None


def test_a_url_and_a_string_are_different_references():
    text = BlobString(REFERENCE).text

    assert reference_in(REFERENCE.url) == REFERENCE
    assert reference_in(text) is None
    assert blob_string(REFERENCE.url) is None


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_request_with_inlined_bytes_is_the_request_of_the_bytes_themselves(provider):
    referring = ledger(ImagePart(media_type="image/png", url=REFERENCE.url))
    holding = ledger(ImagePart(media_type="image/png", data=DATA))

    assert {use.reference for use in uses(referring, provider)} == {REFERENCE}
    assert encode(referring, provider, blobs=BLOBS).body == encode(holding, provider).body


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("options", [{}, {"blobs": {}}, {"blobs": {REFERENCE.sha256: "it was lost"}}])
def test_a_missing_blob_is_a_fault_of_its_part(provider, options):
    messages = ledger(ImagePart(media_type="image/png", url=REFERENCE.url))

    encoded = encode(messages, provider, lossy="drop", **options)

    assert [(fault.rule, fault.part_index) for fault in encoded.dropped] == [("blob-missing", 1)]
    assert encoded.body == encode(ledger(), provider).body
    assert "blob-missing" in {fault.rule for fault in validate(messages, provider)}
    with pytest.raises(InexpressibleError, match=REFERENCE.sha256):
        encode(messages, provider, **options)


def test_an_opaque_part_gets_its_string_back():
    content = {"type": "image_generation_call", "id": "ig_1", "result": DATA}
    referring = {**content, "result": BlobString(REFERENCE).text}

    def request(content, **options) -> Encoded:
        part = OpaquePart(provider="openai-responses", content=content, blobs=(REFERENCE.sha256,))
        messages = [*ledger(), Message(role="assistant", parts=(part,))]
        return encode(messages, "openai-responses", lossy="drop", **options)

    assert request(referring, blobs=BLOBS).body == request(content).body
    assert [fault.rule for fault in request(referring).dropped] == ["blob-missing"]


def test_a_result_keeps_its_reference_if_the_blob_is_missing():
    result = ToolResultPart(
        tool_use_id="c1",
        content=[{"type": "image", "data": BlobString(REFERENCE).text}],
        attachments=(ImagePart(media_type="image/png", url=REFERENCE.url),),
        blobs=(REFERENCE.sha256,),
    )
    messages = [
        *ledger(),
        Message(role="assistant", parts=(ToolUsePart(id="c1", name="look", input={}),)),
        Message(role="user", parts=(result,)),
    ]

    found = encode(messages, "anthropic", blobs=BLOBS)
    lost = encode(messages, "anthropic", lossy="drop", blobs={})

    assert DATA in json.dumps(found.body["messages"][-1]).replace("\\", "")
    assert [fault.rule for fault in lost.dropped] == ["blob-missing", "blob-missing"]
    assert BlobString(REFERENCE).text in json.dumps(lost.body["messages"][-1]).replace("\\", "")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("listed", [(), ("0" * 64,)])
def test_a_text_that_looks_like_a_reference_is_text(provider, listed):
    forged = BlobString(REFERENCE).text
    result = ToolResultPart(tool_use_id="c1", content={"title": forged, "body": [forged]}, blobs=listed)
    messages = [
        *ledger(),
        Message(role="assistant", parts=(ToolUsePart(id="c1", name="fetch", input={}),)),
        Message(role="user", parts=(result,)),
    ]

    assert list(uses(messages, provider)) == []
    assert validate(messages, provider) == validate(messages, provider, blobs=BLOBS) == []
    for options in ({}, {"blobs": BLOBS}):
        assert json.dumps(encode(messages, provider, **options).body).count(forged) == 2


def test_blobs_of_other_providers_and_makers_are_not_needed():
    reference = BlobString(REFERENCE).text
    mark = {"cache_control": {"type": "ephemeral"}}
    listed = {"blobs": (REFERENCE.sha256,)}
    text = TextPart(text="Here.", provider_data={"gemini": {"x": reference}, "anthropic": mark}, **listed)
    messages = [
        *ledger(),
        Message(
            role="assistant", parts=(OpaquePart(provider="gemini", content={"x": reference}, **listed), text)
        ),
        *ledger(),
    ]

    request = encode(messages, "anthropic", lossy="drop", blobs={REFERENCE.sha256: "it was lost"})

    assert list(uses(messages, "anthropic")) == []
    assert [use.reference for use in uses(messages, "gemini")] == [REFERENCE, REFERENCE]
    assert "blob-missing" not in {fault.rule for fault in request.dropped}
    assert request.body["messages"][1]["content"][0]["cache_control"] == mark["cache_control"]

    opaque = OpaquePart(provider="openai-chat", content={"x": reference}, **listed)
    foreign = [*ledger(), Message(role="assistant", parts=(opaque,), maker="deepseek"), *ledger()]
    assert [use.maker for use in uses(foreign, "openai-chat")] == ["deepseek"]
    faults = encode(foreign, "openai-chat", lossy="drop", maker="groq").dropped
    assert [fault.rule for fault in faults] == ["inexpressible"]


def test_provider_data_lose_only_the_providers_own_blob():
    data = {"openai-chat": {"x": BlobString(REFERENCE).text}, "gemini": {"y": 1}}
    part = TextPart(text="a", provider_data=data, blobs=(REFERENCE.sha256,))

    assert inline(part, {}, "openai-chat").part.provider_data == {"gemini": {"y": 1}}
    restored = inline(part, BLOBS, "openai-chat").part.provider_data
    assert restored == {"openai-chat": {"x": DATA}, "gemini": {"y": 1}}


@pytest.mark.parametrize(
    ("provider", "part", "expected"),
    [
        ("gemini", AudioPart(media_type="audio/mpeg", data=DATA), '"mimeType": "audio/mpeg"'),
        ("gemini", VideoPart(media_type="video/mp4", url="gs://bucket/a.mp4"), '"fileUri"'),
        ("openai-chat", AudioPart(media_type="audio/wav", data=DATA), '"format": "wav"'),
        ("bedrock", VideoPart(media_type="video/mp4", url="s3://bucket/a.mp4"), '"format": "mp4"'),
        ("bedrock", AudioPart(media_type="audio/mpeg", url="s3://bucket/a"), '"format": "mp3"'),
    ],
)
def test_audio_and_video_reach_the_providers_that_take_them(provider, part, expected):
    assert expected in json.dumps(encode(ledger(part), provider).body)


@pytest.mark.parametrize(
    ("provider", "part"),
    [
        ("anthropic", AudioPart(media_type="audio/wav", data=DATA)),
        ("anthropic", VideoPart(media_type="video/mp4", data=DATA)),
        ("openai-responses", AudioPart(media_type="audio/wav", data=DATA)),
        ("openai-chat", AudioPart(media_type="audio/ogg", data=DATA)),
        ("openai-chat", AudioPart(url="https://example.com/a.wav")),
        ("openai-chat", VideoPart(media_type="video/mp4", data=DATA)),
        ("bedrock", VideoPart(media_type="video/ogg", data=DATA)),
    ],
)
def test_other_providers_refuse_audio_and_video(provider, part):
    with pytest.raises(InexpressibleError):
        encode(ledger(part), provider)


@pytest.mark.parametrize(
    ("provider", "data", "expected"),
    [
        ("openai-chat", {"file_id": "file-1"}, '{"file_id": "file-1"}'),
        ("openai-responses", {"file_id": "file-1"}, '{"type": "input_file", "file_id": "file-1"}'),
        ("gemini", {"fileUri": "https://files/1"}, '"fileUri": "https://files/1"'),
    ],
)
def test_the_providers_own_copy_is_sent_instead_of_the_bytes(provider, data, expected):
    document = DocumentPart(media_type="application/pdf", url=REFERENCE.url, provider_data={provider: data})

    assert list(uses(ledger(document), provider)) == []
    assert expected in json.dumps(encode(ledger(document), provider).body)


@given(st.text(st.sampled_from("AZaz09+/=-_\n é"), max_size=12))
def test_base64_is_what_its_pattern_says(text):
    matches = re.fullmatch(BASE64_PATTERN, text) is not None and not text.endswith("\n")

    try:
        ImagePart(media_type="image/png", data=text)
    except ValidationError as error:
        assert not matches
        assert "String should match pattern" in str(error)  # noqa: PT017
    else:
        assert matches
