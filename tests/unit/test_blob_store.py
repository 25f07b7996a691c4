"""What leaves an event for the blob store, and how the store fails."""

import asyncio
import base64
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import uvicorn
from pydantic import ValidationError

from runfold.blobs.settings import BYTES_MAX
from runfold.blobs.store import BlobStore
from runfold.local import free_port
from runfold.log.settings import LogSettings
from runfold.secret_urls import SecretUrl
from runfold.settings import Settings
from runfold_projections.blobs import extract
from runfold_projections.ledger import build_messages_from_events
from runfold_projections.message_tokens import ESTIMATE, count_message
from runfold_schemas.blobs import BlobString, blob_string, reference_in, reference_to
from runfold_schemas.codec import check_exact, decode, encode, new_event
from runfold_schemas.errors import BlobNotFoundError, UnavailableError
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    EventAmended,
    ProviderPart,
    ResponseRecorded,
    StandIn,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.messages import DocumentPart, ImagePart, Message, TextPart

BYTES_MIN = 30_000
LARGE = os.urandom(BYTES_MIN)
SMALL = os.urandom(BYTES_MIN - 1)
TEXT = base64.b64encode(LARGE).decode()
URL_SAFE = "data:image/png;base64," + base64.urlsafe_b64encode(LARGE).decode()
IMAGE = ImagePart(media_type="image/png", data=TEXT)
LITTLE = ImagePart(media_type="image/png", data=base64.b64encode(SMALL).decode())


def event(data: Any) -> AnyEvent:
    return new_event(
        data,
        event_id="00000000-0000-7000-8000-000000000000",
        run_id="r",
        timestamp="2026-01-01T00:00:00Z",
        provider="openai-responses",
    )


def stand_in(data: dict[str, Any]) -> EventAmended:
    return EventAmended(offset=1, reason="r", stand_ins=(StandIn(type="provider_part", data=data),))


@pytest.mark.parametrize(
    "data",
    [
        UserMessage(message="", parts=(TextPart(text="a"), IMAGE, LITTLE)),
        ToolResult(tool_call_id="c", attachments=(LITTLE, IMAGE), result="a"),
        ToolResult(tool_call_id="c", result=[{"type": "image", "data": TEXT}, 1, None]),
        ToolResult(tool_call_id="c", result=URL_SAFE),
        ToolResult(tool_call_id="c", result={"inlineData": {"mimeType": "image/png", "data": TEXT}}),
        ToolResult(tool_call_id="c", result=[{"source": {"type": "base64", "data": TEXT}}]),
        ToolResult(tool_call_id="c", result=[{"image": {"format": "png", "source": {"bytes": TEXT}}}]),
        ToolResult(tool_call_id="c", result={"resource": {"mimeType": "text/plain", "blob": TEXT}}),
        ToolCall(tool_call_id="c", tool_name="t", provider_data={"gemini": {"x": [TEXT]}}),
        ProviderPart(content={"result": TEXT, "other": "a"}),
        ProviderPart(content={"image_url": {"url": URL_SAFE}}),
        AssistantMessage(message="a", provider_data={"openai-chat": {"members": {"images": [URL_SAFE]}}}),
        ResponseRecorded(provider_data={"openai-chat": {"choices": [TEXT]}}),
        stand_in({"content": {"result": TEXT}}),
    ],
)
def test_large_bytes_leave_the_event_and_nothing_else_changes(data):
    before = event(data)
    value = encode(before)

    after, blobs = extract(before, bytes_min=BYTES_MIN)

    assert list(blobs.values()) == [LARGE]
    assert encode(before) == value
    assert len(encode(after)) < len(value) - len(LARGE)
    check_exact(after, encode(after))
    assert decode(encode(after)).data.model_fields_set - {"blobs"} == before.data.model_fields_set
    assert extract(after, bytes_min=BYTES_MIN) == (after, {})


@pytest.mark.parametrize(
    "data",
    [
        UserMessage(message=TEXT),
        UserMessage(message="", parts=(TextPart(text=TEXT), LITTLE)),
        AssistantMessage(message=TEXT, structured={"a": TEXT}),
        ToolCall(tool_call_id="c", tool_name="t", payload={"file": TEXT}),
        ToolResult(tool_call_id="c", result="a word " * BYTES_MIN),
        ToolResult(tool_call_id="c", result="ACGT" * BYTES_MIN),
        ToolResult(tool_call_id="c", result={"data": TEXT, "rows": [TEXT]}),
        ToolResult(
            tool_call_id="c", result={"source": {"type": "text", "media_type": "text/plain", "data": TEXT}}
        ),
        ProviderPart(content={"result": "-+" + TEXT}),
    ],
)
def test_text_and_small_bytes_stay(data):
    assert extract(event(data), bytes_min=BYTES_MIN) == (event(data), {})


def test_an_event_with_a_text_like_its_reference_keeps_its_bytes():
    picture = {"type": "image", "data": TEXT}
    forged = BlobString(reference_to(LARGE)).text
    other = BlobString(reference_to(SMALL)).text

    hostile = event(ToolResult(tool_call_id="c", result=[picture, *[forged] * 1000]))
    harmless, blobs = extract(
        event(ToolResult(tool_call_id="c", result=[picture, other])), bytes_min=BYTES_MIN
    )

    assert extract(hostile, bytes_min=BYTES_MIN) == (hostile, {})
    assert list(blobs.values()) == [LARGE]
    assert harmless.data.blobs == (reference_to(LARGE).sha256,)
    assert harmless.data.result == [{"type": "image", "data": forged}, other]


@pytest.mark.parametrize(
    "data",
    [
        ToolResult(tool_call_id="c", result=[{"type": "image", "data": TEXT}], provider_data={"gemini": {}}),
        ToolCall(tool_call_id="c", tool_name="t", provider_data={"openai-responses": {"x": [TEXT]}}),
        ProviderPart(content={"result": TEXT}),
        AssistantMessage(message="a", provider_data={"openai-responses": {"x": TEXT}}),
    ],
)
def test_the_parts_of_the_ledger_list_what_their_events_list(data):
    after, _ = extract(event(data), bytes_min=BYTES_MIN)
    amended = event(
        EventAmended(offset=0, reason="r", stand_ins=(StandIn(type=after.type, data=dumped(after)),))
    )
    log = [event(data), extract(amended, bytes_min=BYTES_MIN)[0]]

    parts = [
        message.parts[0]
        for messages in (build_messages_from_events([after]), build_messages_from_events(log))
        for message in messages
    ]

    assert after.data.blobs == (reference_to(LARGE).sha256,)
    assert [part.blobs for part in parts] == [after.data.blobs] * 2


@pytest.mark.parametrize(
    "data",
    [
        UserMessage(message="", parts=(DocumentPart(media_type="text/plain", data=TEXT),)),
        UserMessage(message="", parts=(DocumentPart(media_type="application/json", data=TEXT),)),
        UserMessage(message="", parts=(DocumentPart(media_type="application/pdf", data=TEXT), IMAGE)),
        ToolResult(tool_call_id="c", result=[{"type": "image", "data": TEXT}, "and words"]),
        ToolResult(tool_call_id="c", result=URL_SAFE, attachments=(IMAGE,)),
        ProviderPart(content={"type": "image_generation_call", "result": TEXT}),
        AssistantMessage(message="a", provider_data={"openai-responses": {"images": [URL_SAFE]}}),
    ],
)
def test_tokens_are_the_same_with_and_without_a_store(data):
    after, blobs = extract(event(data), bytes_min=BYTES_MIN)

    [there] = build_messages_from_events([event(data)])
    [stored] = build_messages_from_events([after])

    assert blobs
    tokens = count_message(there, "openai-responses", ESTIMATE)
    assert count_message(stored, "openai-responses", ESTIMATE) == tokens
    assert tokens > 1_500


def test_base64_in_a_result_counts_as_the_text_that_the_model_gets():
    [message] = build_messages_from_events(
        [event(ToolResult(tool_call_id="c", result=[{"type": "image", "data": TEXT}]))]
    )

    assert count_message(message, "anthropic", ESTIMATE) > len(TEXT) / 2


def test_a_text_file_counts_by_its_words_also_as_json():
    def tokens(media_type: str) -> int:
        document = DocumentPart(media_type=media_type, data=TEXT)
        return count_message(Message(role="user", parts=(document,)), "anthropic", ESTIMATE)

    assert tokens("text/plain") == tokens("application/json") > BYTES_MIN / 4


def dumped(event: AnyEvent) -> dict[str, Any]:
    return event.data.model_dump(mode="json", exclude_unset=True)


def test_the_ledger_of_references_has_the_same_parts():
    events = [
        event(UserMessage(message="", parts=(IMAGE,))),
        event(ProviderPart(content={"result": TEXT})),
    ]

    [user, assistant] = build_messages_from_events(extract(each, bytes_min=BYTES_MIN)[0] for each in events)

    assert reference_in(user.parts[0].url) == reference_to(LARGE)
    found = blob_string(assistant.parts[0].content["result"])
    assert found is not None
    assert found.restored(LARGE) == TEXT


def store_at(url: str) -> BlobStore:
    return BlobStore.connect(SecretUrl(url), prefix="p", bytes_min=1, bytes_max=BYTES_MAX)


async def test_a_directory_keeps_blobs_by_their_logs(tmp_path: Path):
    store, reference = store_at(f"file://{tmp_path}/a b"), reference_to(LARGE)

    await asyncio.gather(*(store.put("l1", reference, LARGE) for _ in range(20)))
    await store_at(f"file://{tmp_path}/a b").put("l2", reference, LARGE)
    await store.delete_logs(["l1", "l1", "none"])

    assert await store.get("l2", reference) == LARGE
    with pytest.raises(BlobNotFoundError, match="not in the blob store"):
        await store.get("l1", reference)
    await store.put("l1", reference, LARGE)
    assert await store.get("l1", reference) == LARGE


async def test_errors_of_the_store_are_retriable_and_show_no_secret(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "K3Y")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S3CRET")
    store = store_at("s3://bucket/path")

    with pytest.raises(UnavailableError) as raised:
        await store.put("l", reference_to(LARGE), LARGE)

    assert "the blob store is not available" in str(raised.value)
    assert "S3CRET" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["memory:///", "ftp://a/b", "s3://", "file://relative", "/a", "https://S3CRET@a/b"]
)
def test_only_stores_that_all_processes_share_are_accepted(url):
    for settings in (LogSettings, Settings):
        with pytest.raises(ValidationError, match="a blob store is") as raised:
            settings(blobs=url)
        assert "S3CRET" not in str(raised.value)


def test_the_settings_of_the_services_reach_the_log():
    log = Settings(blobs="s3://bucket/path?token=S3CRET", blob_bytes_min=5_000).log()

    assert log.blobs is not None
    assert log.blobs.get_secret_value() == "s3://bucket/path?token=S3CRET"
    assert "S3CRET" not in repr(log)
    assert log.blob_bytes_min == 5_000


def test_without_obstore_the_error_says_what_to_install(tmp_path: Path):
    program = f"""
import sys
sys.modules["obstore"] = None
from runfold import ConfigurationError, Runfold
from runfold.client.connection import blob_store_of
runfold = Runfold(blobs="file://{tmp_path}")
try:
    blob_store_of(runfold.connection.settings)
except ConfigurationError as error:
    print(error)
"""

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert "install 'runfold[blobs]'" in said


def test_a_file_of_the_provider_leaves_too():
    document = DocumentPart(
        media_type="application/pdf", data=TEXT, provider_data={"gemini": {"fileUri": "u"}}
    )

    after, blobs = extract(event(UserMessage(message="", parts=(document,))), bytes_min=BYTES_MIN)

    assert list(blobs.values()) == [LARGE]
    assert after.data.parts[0].provider_data == {"gemini": {"fileUri": "u"}}


class FakeS3:
    """The part of Amazon's protocol that the store uses, as an ASGI application."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.status = 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        status, answer = self._answer(
            scope["method"], scope["path"], parse_qs(scope["query_string"].decode()), body
        )
        headers = [
            (b"content-length", str(len(answer)).encode()),
            (b"etag", b"e"),
            (b"last-modified", b"Sun, 22 Nov 2026 00:00:00 GMT"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer if scope["method"] != "HEAD" else b""})

    def _answer(self, method: str, path: str, query: dict[str, list[str]], body: bytes) -> tuple[int, bytes]:
        if self.status != 200:
            return self.status, b"<Error><Code>AccessDenied</Code></Error>"
        match method:
            case "PUT":
                self.objects[path.removeprefix("/bucket/")] = body
                return 200, b""
            case "GET" if "list-type" in query:
                keys = [key for key in self.objects if key.startswith(query["prefix"][0])]
                time = "2026-11-22T00:00:00.000Z"
                listed = "".join(
                    f"<Contents><Key>{key}</Key><LastModified>{time}</LastModified><ETag>e</ETag>"
                    f"<Size>{len(self.objects[key])}</Size></Contents>"
                    for key in keys
                )
                text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>"
                return 200, text.encode()
            case "GET":
                found = self.objects.get(path.removeprefix("/bucket/"))
                return (404, b"<Error><Code>NoSuchKey</Code></Error>") if found is None else (200, found)
            case "POST":
                keys = re.findall("<Key>(.*?)</Key>", body.decode())
                for key in keys:
                    self.objects.pop(key, None)
                deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
                return 200, f"<DeleteResult>{deleted}</DeleteResult>".encode()
            case _:
                self.objects.pop(path.removeprefix("/bucket/"), None)
                return 204, b""


async def test_an_object_store_keeps_blobs_by_their_logs(monkeypatch: pytest.MonkeyPatch):
    s3 = FakeS3()
    async with listening(s3) as url:
        monkeypatch.setenv("AWS_ENDPOINT", url)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "K3Y")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S3CRET")
        large = os.urandom(7_000_000)
        store, reference = store_at("s3://bucket/path"), reference_to(large)

        await store.put("l1", reference, large)
        await store.put("l2", reference, large)
        assert s3.objects == {f"path/p/{log_id}/{reference.sha256}": large for log_id in ("l1", "l2")}
        assert await store.get("l1", reference) == large
        await store.delete_logs(["l1"])
        assert list(s3.objects) == [f"path/p/l2/{reference.sha256}"]
        with pytest.raises(BlobNotFoundError):
            await store.get("l1", reference)
        s3.status = 403
        with pytest.raises(UnavailableError) as raised:
            await store.get("l2", reference)
        assert "S3CRET" not in str(raised.value)


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """The URL of an application that listens on loopback."""
    server = uvicorn.Server(uvicorn.Config(app, port=free_port(), log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.config.port}"
    finally:
        server.should_exit = True
        await serving
