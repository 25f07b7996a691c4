"""Large bytes on real servers: where they are stored, how readers get them, and when they go."""

import asyncio
import base64
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.ingesting import opened, ready_ingest
from tests.media import png
from tests.processes import until
from tests.querying import projected, query

from runfold import (
    AssistantMessage,
    BlobNotFoundError,
    DocumentPart,
    ImagePart,
    InexpressibleError,
    InvalidEventError,
    PlannerNote,
    Run,
    Runfold,
    RunNotFoundError,
    TextPart,
    ToolCall,
    ToolResult,
    UnavailableError,
    UserMessage,
)
from runfold.blobs.store import BlobStore
from runfold.projector.rebuild import rebuild
from runfold.secret_urls import SecretUrl
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.verify.runs import verify
from runfold_schemas.blobs import BlobString, reference_to

MEBIBYTE = 1024 * 1024

PICTURE = png(os.urandom(3 * MEBIBYTE))
DIGEST = hashlib.sha256(PICTURE).hexdigest()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blobs")


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str, directory: Path) -> Settings:
    name = f"t{uuid4().hex[:8]}"
    return Settings(
        kafka=kafka,
        mongo=mongo,
        prefix=name,
        database=name,
        wait_timeout_seconds=20,
        sweep_seconds=0.5,
        blobs=f"file://{directory}",
    )


@pytest.fixture(scope="module")
async def ingest(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with ready_ingest(**dict(settings)) as client:
        yield client


@pytest.fixture
async def run(runfold: Runfold) -> Run:
    return await runfold.open_run(agent_id="a")


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def question(content: bytes = PICTURE) -> UserMessage:
    picture = ImagePart(media_type="image/png", data=encoded(content))
    return UserMessage(message="", parts=(TextPart(text="What is this?"), picture))


def stored_of(directory: Path, run: Run) -> dict[str, bytes]:
    """The blobs of the run by their names."""
    return {path.name: path.read_bytes() for path in directory.glob(f"*/{run.life.log_id}/*")}


async def sizes_of(run: Run) -> list[int]:
    return [len(admitted.record.value or b"") async for admitted in run.history()]


def picture_in(body: dict[str, Any]) -> bytes:
    return base64.b64decode(body["messages"][0]["content"][1]["source"]["data"])


async def is_without_topic(runfold: Runfold, run: Run) -> bool:
    topic = runfold.connection.topics.run(run.run_id, run.life.log_id)
    return topic not in await runfold.connection.admin.list_run_topics()


async def test_a_large_image_is_stored_once_and_its_event_refers_to_it(run, directory):
    await run.publish(question())
    await run.publish_batch([question(), AssistantMessage(message="A picture.")])

    messages = await run.ledger()
    request = await run.ledger("anthropic")

    assert stored_of(directory, run) == {DIGEST: PICTURE}
    assert max(await sizes_of(run)) < 1000
    assert messages[0].parts[1].url == reference_to(PICTURE).url
    assert await run.read_blob(messages[0].parts[1].url) == PICTURE
    assert picture_in(request.body) == PICTURE
    assert await run.faults("anthropic") == []


async def test_many_copies_at_once_are_one_blob(runfold, directory):
    run = await runfold.open_run(agent_id="a")
    other = await runfold.open_run(agent_id="a")

    await asyncio.gather(*(each.publish(question()) for each in (run, other) for _ in range(5)))

    assert stored_of(directory, run) == stored_of(directory, other) == {DIGEST: PICTURE}
    assert len(await run.ledger()) == 5


async def test_small_bytes_and_text_stay_in_the_event(run, directory):
    text = "QUJD" * MEBIBYTE
    await run.publish(question(b"x" * 1000))
    await run.publish(AssistantMessage(message=text))
    await run.publish(ToolResult(tool_call_id="c1", result="a word " * 300_000))

    assert stored_of(directory, run) == {}
    assert (await run.ledger())[1].parts[0].text == text


async def test_the_bytes_in_results_of_tools_are_stored(run, directory):
    scan = b"%PDF-" + os.urandom(2 * MEBIBYTE)
    content = [{"type": "image", "data": encoded(PICTURE), "mimeType": "image/png"}]
    await run.publish(UserMessage(message="Scan it."))
    await run.publish(ToolCall(tool_call_id="c1", tool_name="scan", payload={}))
    attachment = DocumentPart(media_type="application/pdf", data=encoded(scan))
    await run.publish(ToolResult(tool_call_id="c1", result=content, attachments=(attachment,)))

    request = await run.ledger("anthropic")

    assert set(stored_of(directory, run).values()) == {PICTURE, scan}
    texts = str(request.body["messages"][-1])
    assert encoded(PICTURE) in texts
    assert encoded(scan) in texts


async def test_a_response_over_8_mib_is_recorded(run, directory):
    drawing = os.urandom(9 * MEBIBYTE)
    item = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": encoded(drawing)}
    response = {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": [item]}

    await run.publish(UserMessage(message="Draw."))
    await run.record(response)
    request = await run.ledger("openai-responses")

    assert stored_of(directory, run) == {hashlib.sha256(drawing).hexdigest(): drawing}
    assert request.body["input"][-1] == item
    assert max(await sizes_of(run)) < 2000


async def test_a_lost_blob_is_a_fault_and_the_ledger_stays_readable(run, directory):
    await run.publish(question())
    shutil.rmtree(next(directory.glob(f"*/{run.life.log_id}")))

    messages = await run.ledger()
    request = await run.ledger("anthropic", lossy="drop")
    faults = await run.faults("gemini")

    assert [part.type for part in messages[0].parts] == ["text", "image"]
    assert [part["type"] for part in request.body["messages"][0]["content"]] == ["text"]
    assert [fault.rule for fault in request.dropped] == [fault.rule for fault in faults] == ["blob-missing"]
    assert "not in the blob store" in faults[0].text
    with pytest.raises(InexpressibleError, match=DIGEST):
        await run.ledger("anthropic")
    with pytest.raises(BlobNotFoundError):
        await run.read_blob(messages[0].parts[1].url)


@pytest.mark.parametrize("content", [png(bytes(3 * MEBIBYTE)), b"torn"])
async def test_bytes_of_another_digest_are_never_handed_out(run, directory, content):
    await run.publish(question())
    (stored,) = directory.glob(f"*/{run.life.log_id}/*")
    stored.write_bytes(content)

    [fault] = await run.faults("anthropic")

    assert fault.rule == "blob-missing"


async def test_if_the_store_is_away_nothing_is_appended(settings, tmp_path):
    (tmp_path / "store").mkdir()
    log = settings.log().model_copy(update={"blobs": f"file://{tmp_path}/store"})
    async with Runfold.of(type(log)(**dict(log))) as runfold:
        run = await runfold.open_run(agent_id="a")
        (tmp_path / "store").rmdir()
        (tmp_path / "store").touch()

        with pytest.raises(UnavailableError, match="the blob store"):
            await run.publish(question())
        with pytest.raises(UnavailableError):
            await run.publish_batch([PlannerNote(note="n"), question()])
        await run.publish(PlannerNote(note="n"))

        assert len(await sizes_of(run)) == 2


async def test_a_blob_that_is_too_large_is_refused(settings, directory):
    limits = {"blob_bytes_max": 8 * MEBIBYTE, "blobs": f"file://{directory}"}
    async with Runfold(settings.kafka, prefix=settings.prefix, create_topics=True, **limits) as runfold:
        run = await runfold.open_run(agent_id="a")

        with pytest.raises(InvalidEventError, match="8,388,608 are allowed"):
            await run.publish(question(bytes(8 * MEBIBYTE + 1)))


async def test_only_the_newest_blobs_fit_into_a_request(runfold):
    run = await runfold.open_run(agent_id="a")
    pictures = [png(os.urandom(size * MEBIBYTE)) for size in (3, 3, 3, 3, 3, 20)]
    for picture in pictures:
        await run.publish(question(picture))

    request = await run.ledger("bedrock", lossy="drop")

    sent = [
        block["image"]["source"]["bytes"]
        for message in request.body["messages"]
        for block in message["content"]
        if "image" in block
    ]
    assert sent == pictures[1:5]
    assert [fault.message_index for fault in request.dropped] == [0, 5]
    assert "20,000,000 bytes that bedrock takes" in request.dropped[0].text


async def test_references_in_other_words_do_not_make_a_request_larger_than_its_limit(run):
    await run.publish(question())
    true = BlobString(reference_to(PICTURE)).text
    small = BlobString(reference_to(PICTURE)._replace(size=1)).text
    await run.publish(ToolCall(tool_call_id="c1", tool_name="echo", payload={}))
    await run.publish(ToolResult(tool_call_id="c1", result=[small] * 1000, blobs=[DIGEST]))
    few = await run.ledger("anthropic", lossy="drop")
    await run.publish(ToolCall(tool_call_id="c2", tool_name="echo", payload={}))
    await run.publish(ToolResult(tool_call_id="c2", result=[true] * 1000, blobs=[DIGEST]))
    many = await run.ledger("anthropic", lossy="drop")

    assert len(str(few.body)) < 2 * len(encoded(PICTURE))
    assert picture_in(few.body) == PICTURE
    assert len(str(many.body)) < MEBIBYTE
    assert {fault.rule for fault in few.dropped + many.dropped} == {"blob-missing"}


async def test_http_publishes_and_reads_blobs(ingest, client, directory):
    path = await opened(ingest)
    event = {"type": "user_message", "data": question().model_dump(mode="json")}
    published = await ingest.post(f"{path}/events", json=event)
    offset = published.json()["offset"]

    canonical = await client.get(f"{path}/ledger", params={"min_offset": offset})
    request = await client.get(f"{path}/ledger", params={"min_offset": offset, "format": "anthropic"})
    judged = await client.get(f"{path}/ledger", params={"min_offset": offset, "validate": "anthropic"})
    blob = await client.get(f"{path}/blobs/{DIGEST}")

    assert published.status_code == 201
    assert canonical.json()["messages"][0]["parts"][1]["url"] == reference_to(PICTURE).url
    assert picture_in(request.json()["request"]) == PICTURE
    assert judged.json()["faults"] == []
    assert blob.content == PICTURE
    assert blob.headers["content-type"] == "image/png"
    assert blob.headers["x-content-type-options"] == "nosniff"


async def test_http_takes_events_and_responses_over_8_mib(ingest, client):
    path, content = await opened(ingest), png(os.urandom(11 * MEBIBYTE))
    item = {"type": "image_generation_call", "id": "i", "status": "completed", "result": encoded(content)}
    response = {"id": "r", "object": "response", "status": "completed", "model": "m", "output": [item]}
    event = {"type": "user_message", "data": question(content).model_dump(mode="json")}

    published = await ingest.post(f"{path}/events", json=event)
    recorded = await ingest.post(f"{path}/responses", json=response)
    offset = recorded.json()["positions"][-1]["offset"]
    query = {"min_offset": offset, "format": "openai-responses"}
    request = (await client.get(f"{path}/ledger", params=query)).json()["request"]

    assert published.status_code == recorded.status_code == 201
    assert request["input"][0]["content"][1]["image_url"].endswith(encoded(content))
    assert request["input"][-1]["result"] == item["result"]


async def test_http_lists_a_lost_blob(runfold, client, directory):
    run = await runfold.open_run(agent_id="a")
    offset = (await run.publish(question())).offset
    shutil.rmtree(next(directory.glob(f"*/{run.life.log_id}")))
    path, query = f"/v1/runs/{run.run_id}", {"min_offset": offset}

    request = await client.get(f"{path}/ledger", params={**query, "format": "anthropic", "lossy": "drop"})
    refused = await client.get(f"{path}/ledger", params={**query, "format": "anthropic"})
    judged = await client.get(f"{path}/ledger", params={**query, "validate": "anthropic"})
    blob = await client.get(f"{path}/blobs/{DIGEST}")

    assert [fault["rule"] for fault in request.json()["dropped"]] == ["blob-missing"]
    assert refused.status_code == 422
    assert [fault["rule"] for fault in judged.json()["faults"]] == ["blob-missing"]
    assert blob.status_code == 404
    assert blob.json()["type"] == "urn:runfold:problem:BlobNotFound"
    assert (await client.get(f"{path}/blobs/{DIGEST[1:]}")).status_code == 422
    assert (await client.get(f"/v1/runs/none/blobs/{DIGEST}")).status_code == 404


async def test_a_sessions_ledger_has_the_blobs_of_all_its_runs(runfold, client, stored):
    session_id = uuid4().hex
    for content in (PICTURE, PICTURE + b"2"):
        run = await runfold.open_run(agent_id="a", session_id=session_id)
        await run.publish(question(content))

    async def has_both() -> bool:
        answer = await client.get(f"/v1/sessions/{session_id}/runs")
        return [each["next_offset"] for each in answer.json()["runs"]] == [2, 2]

    await until(has_both, what="both runs of the session")
    answer = await client.get(f"/v1/sessions/{session_id}/ledger", params={"format": "anthropic"})

    sent = [picture_in({"messages": [message]}) for message in answer.json()["request"]["messages"]]
    assert sent == [PICTURE, PICTURE + b"2"]


async def test_blobs_are_deleted_with_their_session(runfold, stored, directory):
    session = await runfold.sessions.create(app="a", user="u")
    [run] = [run async for run in runfold.session_runs(session.session_id)]
    await runfold.sessions.append(session.session_id, question())
    other = await runfold.open_run(agent_id="a")
    await other.publish(question())
    assert stored_of(directory, run) == {DIGEST: PICTURE}

    await runfold.sessions.delete(session.session_id)

    async def is_gone() -> bool:
        return not list(directory.glob(f"*/{run.life.log_id}"))

    await until(is_gone, what="the blobs of the deleted session")
    assert stored_of(directory, other) == {DIGEST: PICTURE}
    await until(lambda: is_without_topic(runfold, run), what="the topic's deletion, which is last")
    with pytest.raises(RunNotFoundError):
        await run.publish(question(PICTURE + b"2"))
    assert not list(directory.glob(f"*/{run.life.log_id}"))


async def test_a_blob_that_is_stored_during_a_deletion_does_not_stay(runfold, stored, directory, monkeypatch):
    session = await runfold.sessions.create(app="a", user="u")
    [run] = [run async for run in runfold.session_runs(session.session_id)]
    put = BlobStore.put

    async def put_late(store: BlobStore, *blob: Any) -> None:
        await runfold.sessions.delete(session.session_id)
        await until(lambda: is_without_topic(runfold, run), what="the topic's deletion")
        await put(store, *blob)

    monkeypatch.setattr(BlobStore, "put", put_late)
    with pytest.raises(RunNotFoundError):
        await run.publish(question())

    assert not list(directory.glob(f"*/{run.life.log_id}"))


async def test_a_deletion_goes_on_when_the_store_is_back(runfold, stored, directory, monkeypatch):
    session = await runfold.sessions.create(app="a", user="u")
    [run] = [run async for run in runfold.session_runs(session.session_id)]
    await runfold.sessions.append(session.session_id, question())
    delete_logs, attempts = BlobStore.delete_logs, 0

    async def delete_later(store: BlobStore, log_ids: Sequence[str]) -> None:
        nonlocal attempts
        attempts += bool(log_ids)
        if attempts < 3:
            raise UnavailableError("the blob store", reason="a test")
        await delete_logs(store, log_ids)

    monkeypatch.setattr(BlobStore, "delete_logs", delete_later)
    await runfold.sessions.delete(session.session_id)

    async def is_gone() -> bool:
        return not list(directory.glob(f"*/{run.life.log_id}"))

    await until(is_gone, what="the blobs of the deleted session")
    assert attempts >= 3


async def test_a_rebuild_needs_no_blob_store(kafka, mongo, tmp_path):
    name = f"t{uuid4().hex[:8]}"
    without = Settings(
        kafka=kafka, mongo=mongo, prefix=name, database=name, retire_seconds=0.5, wait_timeout_seconds=20
    )
    settings = without.model_copy(update={"blobs": SecretUrl(f"file://{tmp_path}")})
    async with projected(settings), query(settings) as client, Runfold.of(settings.log()) as runfold:
        run = await runfold.open_run(agent_id="a")
        offset = (await run.publish_batch([question(), question()]))[-1].offset
        path = f"/v1/runs/{run.run_id}/ledger"
        before = (await client.get(path, params={"min_offset": offset})).raise_for_status().json()
        shutil.rmtree(tmp_path)

        await rebuild(without, report=lambda _: None, switched=lambda: None)
        async with connect(mongo, name) as database:
            edition = Edition.of(database, await Editions(database).current_or_first())
            found = [differences async for _, differences in verify(without.log(), edition)]

        assert found == [[]]
        assert (await client.get(path)).json() == before


async def test_a_fork_has_attachments_of_its_own(runfold, stored, directory):
    source = await runfold.open_run(agent_id="a")
    await source.publish(question())

    fork = await source.fork()
    await runfold.delete_run(source.run_id)

    async def is_gone() -> bool:
        return not stored_of(directory, source)

    await until(is_gone, what="the blobs of the deleted source")
    assert picture_in((await fork.ledger("anthropic")).body) == PICTURE
    assert stored_of(directory, fork) == {DIGEST: PICTURE}


async def test_a_client_without_a_blob_store_forks_no_attachments(settings, runfold, kafka):
    source = await runfold.open_run(agent_id="a")
    await source.publish(question())

    async with Runfold(kafka, prefix=settings.prefix) as without:
        run = await without.get_run(source.run_id)
        with pytest.raises(BlobNotFoundError, match="no blob store is configured"):
            await run.fork(run_id=f"{source.run_id}-f")
        with pytest.raises(RunNotFoundError):
            await runfold.get_run(f"{source.run_id}-f")
