"""A user with a marker in every kind of field, and a search for markers in all stored data."""

import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from runfold import (
    AssistantMessage,
    EventAmended,
    PlannerNote,
    ProviderPart,
    ResponseRecorded,
    Run,
    Runfold,
    Summary,
    SystemMessage,
    Thinking,
    TokenUsage,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold.ids import new_event_id, new_log_id, uuid7
from runfold.log.admin import LogAdmin
from runfold.log.ends import LogEnds
from runfold.log.partition_counts import partition_counts
from runfold.log.publisher import Outgoing
from runfold.log.reader import LogGoneError, read
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.searching import collections, texts
from runfold_schemas.catalog import Life
from runfold_schemas.codec import Record, new_data, new_event
from runfold_schemas.data import Data
from runfold_schemas.events import StandIn
from runfold_schemas.messages import Citation, DocumentPart, ImagePart, TextPart
from runfold_schemas.runs import RunCanceled, RunFailed, RunLabeled, RunOpened, RunPaused
from runfold_schemas.sessions import FrameworkEvent, StateChanged
from runfold_schemas.topics import Partition

BLOB_BYTES_MIN = 20_000
"""For settings: contents of this size are stored as blobs."""


def name_of(marker: str) -> str:
    """Another marker, for names that are never encrypted."""
    return f"N{marker[1:]}"


def events_with(marker: str) -> Iterator[tuple[Data, dict[str, Any]]]:
    """Events of every kind that a conversation has, with the marker in every text of theirs. Each
    has what goes into its envelope.
    """
    provider = {"x": {"marker": marker}}
    media = base64.b64encode(marker.encode() + bytes(BLOB_BYTES_MIN)).decode()
    picture = ImagePart(media_type="image/png", data=media, provider_data=None)
    citation = Citation(cited_text=marker, url=f"https://x/{marker}", title=marker)
    parts = (TextPart(text=marker), picture)
    text = base64.b64encode(marker.encode()).decode()
    envelope = {"labels": {marker: marker}, "turn_id": marker, "message_id": marker}
    yield SystemMessage(message=marker, provider_data=provider), envelope
    yield UserMessage(message=marker, structured={marker: [marker]}, parts=parts), {}
    yield AssistantMessage(message=marker, structured=marker, citations=(citation,)), envelope
    yield Thinking(text=marker, signature=marker), {}
    yield ToolCall(tool_call_id=marker, tool_name=marker, payload={marker: marker}), {}
    attached = DocumentPart(media_type="text/plain", data=text, name=marker)
    yield ToolResult(tool_call_id=marker, result={marker: 1}, error=marker, attachments=(attached,)), {}
    yield PlannerNote(note=marker), {"state_delta": {"own": marker, f"user:{name_of(marker)}": marker}}
    yield TokenUsage(model=marker, input_tokens=1), {}
    yield ProviderPart(content={marker: marker}), {}
    yield ResponseRecorded(model=marker, stop_reason=marker, faults=(marker,)), {}
    stand_in = StandIn(type="user_message", data={"message": marker})
    yield EventAmended(offset=1, stand_ins=(stand_in,), reason=marker), {}
    yield Summary(text=marker, end_offset=1), {}
    body = {"author": "user", "content": {"parts": [{"text": marker}]}, "custom_metadata": {"m": marker}}
    yield FrameworkEvent(framework="adk", body=body), {}
    yield StateChanged(), {"state_delta": {name_of(marker): {marker: marker}, "user:k": marker}}
    yield RunLabeled(labels={"l": marker}, metadata={marker: marker}), {}


async def publish_user(runfold: Runfold, api: httpx.AsyncClient, user: str, marker: str) -> list[str]:
    """Publishes data of a user in every way. Returns the ids of the runs."""
    session = await _session(api, user, marker)
    path = f"/v1/sessions/{session['session_id']}/events"
    for data, envelope in events_with(marker):
        event = {"type": _kind(data), "data": data.model_dump(mode="json", exclude_unset=True), **envelope}
        await _sent(api, "POST", path, event)
    runs = [await _named_run(runfold, session["session_id"], marker), await _own_run(runfold, user, marker)]
    runs.append(await (await runfold.get_run(session["run_id"])).fork())
    await _memories(api, user, marker, session["session_id"])
    return [session["run_id"], *(run.run_id for run in runs)]


async def _session(api: httpx.AsyncClient, user: str, marker: str) -> dict[str, Any]:
    body = {
        "app": "shop",
        "user": user,
        "labels": {"l": marker},
        "display_name": marker,
        "state": {"own": marker, "user:k": marker},
    }
    response = await _sent(api, "POST", "/v1/sessions", body)
    document: dict[str, Any] = response.json()
    await _sent(api, "PATCH", f"/v1/sessions/{document['session_id']}", {"labels": {"m": marker}})
    return document


async def _named_run(runfold: Runfold, session_id: str, marker: str) -> Run:
    """A run that names the session, with a record that cannot be decoded."""
    run = await runfold.open_run(agent_id="shop", session_id=session_id, labels={"l": marker})
    await run.publish(UserMessage(message=marker))
    publisher = runfold.connection.publisher
    topic = runfold.connection.topics.run(run.run_id, run.life.log_id)
    await publisher.wait(await publisher.send(topic, Outgoing(None, f"not JSON: {marker}".encode())))
    await run.publish(RunPaused(reason=marker))
    await run.publish(RunFailed(error=marker))
    return run


async def _own_run(runfold: Runfold, user: str, marker: str) -> Run:
    """A run that a foreign producer opened for the user, without a session."""
    life = Life(run_id=str(uuid7()), log_id=new_log_id(), agent_id="shop", user_id=user)
    opened = new_data(RunOpened, agent_id="shop", log_id=life.log_id, user_id=user, labels={"l": marker})
    event = new_event(opened, event_id=new_event_id(), run_id=life.run_id, timestamp=datetime.now(UTC))
    await runfold.connection.open_topic(runfold.connection.topics.run(life.run_id, life.log_id), event)
    await runfold.connection.announce(life)
    run = await runfold.get_run(life.run_id)
    for data, envelope in events_with(marker):
        await run.publish(data, **envelope)
    await run.publish(RunCanceled(reason=marker))
    return run


async def _memories(api: httpx.AsyncClient, user: str, marker: str, session_id: str) -> None:
    bank = "/v1/banks/tastes"
    if (await api.get(bank)).status_code == 404:
        await _sent(api, "POST", "/v1/banks", {"bank_id": "tastes"})
    memory = {
        "fact": marker,
        "scope": {"user_id": user},
        "topics": [{"custom": name_of(marker)}],
        "metadata": {"m": marker},
        "display_name": marker,
        "description": marker,
    }
    made = (await _sent(api, "POST", f"{bank}/memories", memory)).json()
    await _sent(api, "PATCH", f"{bank}/memories/{made['memory_id']}", {"fact": f"{marker} again"})
    gone = (await _sent(api, "POST", f"{bank}/memories", memory)).json()
    await _sent(api, "DELETE", f"{bank}/memories/{gone['memory_id']}")
    content = {"content": {"role": "user", "parts": [{"text": marker}]}}
    await _sent(
        api,
        "POST",
        f"{bank}/memories/ingest",
        {"scope": {"user": user}, "stream_id": "s", "contents": [content]},
    )
    await _sent(api, "POST", f"{bank}/memories/generate", {"session": {"session_id": session_id}})


def _kind(data: Data) -> str:
    name = type(data).__name__
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


async def _sent(api: httpx.AsyncClient, method: str, path: str, body: Any = None) -> httpx.Response:
    response = await api.request(method, path, json=body)
    assert response.is_success, f"{method} {path}: {response.status_code} {response.text[:500]}"
    return response


async def places_with(settings: Settings, marker: str, blobs: Path) -> set[str]:
    """Where the marker is, in whatever form: topics by name, collections without their edition."""
    needle = marker.encode()
    encoded = base64.b64encode(needle)[:-4]
    found = set()
    async for topic, record in every_record(settings):
        parts = [record.key, record.value, *(part for _, part in record.headers)]
        whole = b"\n".join(part or b"" for part in parts)
        if needle in whole or encoded in whole:
            found.add(topic if topic.count(".") == 1 else f"{settings.prefix}.run")
    async with connect(settings.mongo, settings.database) as database:
        for collection in await collections(database):
            async for document in texts(database, collection):
                if needle in document.text or encoded in document.text:
                    found.add(f"MongoDB {collection.partition('.')[0]}")
    if any(needle in path.read_bytes() for path in blobs.rglob("*") if path.is_file()):
        found.add("blobs")
    return found


async def every_record(settings: Settings) -> AsyncIterator[tuple[str, Record]]:
    """All records of a prefix in Kafka, each with its topic."""
    log = settings.log()
    async with LogAdmin.connect(log) as admin, LogEnds.connect(log) as ends:
        counts = await partition_counts(ends.leaders.client, await admin.list_topics())
        partitions = [Partition(topic, number) for topic, count in counts.items() for number in range(count)]
        for at, end in (await ends.ends_of(partitions)).items():
            reading = read(log, at.topic, partition=at.partition, end=end, leaders=ends.leaders)
            with suppress(LogGoneError):
                async for records in reading:
                    for record in records:
                        yield at.topic, record
