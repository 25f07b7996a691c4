"""Media types have one spelling in requests, and any text can be a document."""

from base64 import b64encode
from typing import Any

import pytest
from tests.anthropic_messages import assistant, check, user, valid
from tests.bedrock import valid as valid_for_bedrock

from runfold_projections.providers import encode
from runfold_schemas.errors import InexpressibleError
from runfold_schemas.messages import (
    PROVIDERS,
    AudioPart,
    DocumentPart,
    ImagePart,
    Provider,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)

JPEG = b64encode(b"\xff\xd8\xff").decode()
JSON = DocumentPart(media_type="application/json", data=b64encode(b'{"a": 1}').decode(), name="a.json")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("spelling", ["image/jpg", "IMAGE/JPEG", "image/pjpeg", "image/jpeg; a=1"])
def test_a_jpeg_is_sent_as_a_jpeg_however_it_is_spelled(provider: Provider, spelling: str):
    picture = ImagePart(media_type=spelling, data=JPEG)

    assert encode([user(picture)], provider) == encode([user(jpeg())], provider)


@pytest.mark.parametrize("provider", ["anthropic", "bedrock"])
def test_a_jpeg_in_a_result_of_a_tool_too(provider: Provider):
    assert encode(answered(ImagePart(media_type="image/jpg", data=JPEG)), provider) == encode(
        answered(jpeg()), provider
    )


@pytest.mark.parametrize("provider", ["openai-chat", "bedrock", "gemini"])
@pytest.mark.parametrize("spelling", ["audio/x-wav", "audio/wave", "audio/vnd.wave", "audio/wav; codecs=1"])
def test_a_sound_has_one_spelling_too(provider: Provider, spelling: str):
    wave, spelled = (AudioPart(media_type=each, data=JPEG) for each in ("audio/wav", spelling))

    assert encode([user(spelled)], provider) == encode([user(wave)], provider)


def test_raw_sound_keeps_its_rate():
    sound = AudioPart(media_type="audio/L16; rate=24000", data=JPEG)

    (part,) = encode([user(sound)], "gemini").body["contents"][0]["parts"]
    assert part["inlineData"]["mimeType"] == "audio/l16; rate=24000"


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "application/x-yaml", "text/x-c"])
def test_every_provider_takes_text_of_any_type(provider: Provider, media_type: str):
    text = DocumentPart(media_type=media_type, data=JSON.data, name="a")

    assert not encode([user(TextPart(text="see"), text)], provider).dropped


def test_chat_names_what_is_wrong_with_a_text_file():
    for data, reason in (("", "without text"), (JPEG, "that is not UTF-8")):
        empty = DocumentPart(media_type="text/plain", data=data)

        with pytest.raises(InexpressibleError, match=reason):
            encode([user(empty)], "openai-chat")


@pytest.mark.parametrize(
    "media_type", ["application/json", "text/html; charset=utf-8", "application/ld+json"]
)
def test_any_text_is_a_document(media_type: str):
    text = JSON.model_copy(update={"media_type": media_type})

    (document,) = valid(user(text))["messages"][0]["content"]
    assert document["source"] == {"type": "text", "media_type": "text/plain", "data": '{"a": 1}'}
    content: Any = valid_for_bedrock(user(TextPart(text="see"), text))["messages"][0]["content"]
    assert content[1]["document"]["format"] == ("html" if "html" in media_type else "txt")


def test_a_text_file_can_be_in_a_result_of_a_tool():
    body = encode(answered(JSON), "anthropic").body

    check(body)
    (result,) = body["messages"][1]["content"]
    assert [block["type"] for block in result["content"]] == ["text", "document"]


@pytest.mark.parametrize(
    "part",
    [
        ImagePart(url="blob:unread", provider_data={"anthropic": {"file_id": "file_1"}}),
        DocumentPart(url="blob:unread", provider_data={"anthropic": {"file_id": "file_1"}}),
        DocumentPart(
            media_type="application/zip", data=JPEG, provider_data={"anthropic": {"file_id": "file_1"}}
        ),
    ],
)
def test_a_file_that_anthropic_has_is_named_by_its_id(part: ImagePart | DocumentPart):
    (block,) = encode([user(part)], "anthropic").body["messages"][0]["content"]

    assert block == {"type": part.type, "source": {"type": "file", "file_id": "file_1"}}


def jpeg() -> ImagePart:
    return ImagePart(media_type="image/jpeg", data=JPEG)


def answered(attachment: Any) -> Any:
    result = ToolResultPart(tool_use_id="1", content="seen", attachments=(attachment,))
    return [assistant(ToolUsePart(id="1", name="look", input={})), user(result)]
