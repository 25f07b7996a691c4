"""Dead letters of a tenant with encryption: the topic has no content, and a reader who has the key
takes it from the log of the record.
"""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from tests.commands import command
from tests.erasing import places_with
from tests.processes import until
from tests.sealed_services import sealed_api, sealed_settings

from runfold import Run, Runfold, UserMessage
from runfold.encryption.rotation import rotate
from runfold.encryption.sealing import open_sealing
from runfold.encryption.subjects import subject_of_life
from runfold.encryption.wrapping import wrapping_of
from runfold.ids import new_event_id
from runfold.log.publisher import Outgoing
from runfold.query.dead_letters import DeadLetters
from runfold.settings import Settings
from runfold_schemas.codec import encode, new_event
from runfold_schemas.topics import RECORD_BYTES_MAX


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return sealed_settings(kafka, mongo, tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
async def api(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with sealed_api(settings) as api:
        api.timeout = httpx.Timeout(60)
        yield api


@pytest.fixture(scope="module")
async def runfold(settings: Settings, api: httpx.AsyncClient) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


async def bury(
    api: httpx.AsyncClient, runfold: Runfold, run: Run, value: bytes, *headers: tuple[str, bytes]
) -> str:
    """Appends a record that cannot be decoded. Returns the path of its dead letter."""
    connection = runfold.connection
    topic = connection.topics.run(run.run_id, run.life.log_id)
    sent = await connection.publisher.send(topic, Outgoing(None, value, list(headers)))
    offset = (await connection.publisher.wait(sent)).offset
    await run.publish(UserMessage(message="behind"))
    path = f"/v1/dead-letters/{quote(f'{topic}:{offset}', safe='')}"

    async def is_there() -> bool:
        return (await api.get(path)).status_code == 200

    await until(is_there, what="the dead letter")
    return path


async def bury_sealed(api: httpx.AsyncClient, runfold: Runfold, run: Run, message: str) -> str:
    """The same for a sealed event, which a header contradicts."""
    data = UserMessage(message=message)
    event = new_event(data, event_id=new_event_id(), run_id=run.run_id, timestamp=datetime.now(UTC))
    assert runfold.connection.sealing is not None
    _, value = await runfold.connection.sealing.of_life(run.life)(event, encode(event))
    assert message.encode() not in value
    return await bury(api, runfold, run, value, ("ce_type", b"run_started"))


async def shown(api: httpx.AsyncClient, path: str) -> dict[str, Any]:
    answer = await api.get(path)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


async def last_message(run: Run) -> str | None:
    messages = [event.data.message async for event in run.events() if isinstance(event.data, UserMessage)]
    return messages[-1]


async def test_what_a_foreign_producer_sent_in_clear_is_in_its_log_alone(
    settings: Settings, api: httpx.AsyncClient, runfold: Runfold, tmp_path: Path
):
    marker, run = f"M{uuid4().hex}", await runfold.open_run(agent_id="desk")
    value = json.dumps({"type": marker, "data": {"message": marker}})

    path = await bury(api, runfold, run, value.encode(), ("x-note", marker.encode()))

    letter = await shown(api, path)
    assert (letter["value"], letter["headers"]) == (value, [["x-note", marker]])
    assert (letter["run_id"], letter["bytes"], letter["is_cut"]) == (run.run_id, len(value), False)
    assert letter["reason"] == "union_tag_invalid"
    places = {f"{settings.prefix}.run", "MongoDB pages"}

    async def is_stored() -> bool:  # dead letters are written before pages
        return await places_with(settings, marker, tmp_path) >= places

    await until(is_stored, what="the page")
    assert await places_with(settings, marker, tmp_path) == places
    own = {name: getattr(settings, name) for name in ("kafka", "mongo", "prefix", "database")}
    keyless = Settings(**own)
    code, printed = await command(keyless, "dead-letters", "show", letter["id"])
    assert (code, "[sealed]" in printed, marker in printed) == (0, True, False)
    code, printed = await command(settings, "dead-letters", "show", letter["id"])
    assert (code, marker in printed) == (0, True)
    mended = {"event": {"type": "user_message", "data": {"message": f"mended {marker}"}}}
    assert (await api.post(f"{path}/requeue", json=mended)).status_code == 200
    assert await last_message(run) == f"mended {marker}"
    assert (await shown(api, path))["value"] == value
    assert await places_with(settings, marker, tmp_path) == places

    assert (await api.delete(f"/v1/runs/{run.run_id}")).status_code in (200, 202, 204)

    async def is_gone() -> bool:
        return not await places_with(settings, marker, tmp_path)

    await until(is_gone, what="the deletion of the run")
    letter = await shown(api, path)
    assert (letter["value"], letter["headers"]) == ("[erased]", [])


async def test_a_record_of_the_largest_size_blocks_nothing(api: httpx.AsyncClient, runfold: Runfold):
    run = await runfold.open_run(agent_id="desk")
    value = b"\xff" * (RECORD_BYTES_MAX - 1024)

    path = await bury(api, runfold, run, value)

    letter = await shown(api, path)
    assert (letter["bytes"], letter["is_cut"], letter["value"]) == (len(value), False, None)
    again = await api.post(f"{path}/requeue", json={})
    assert again.status_code == 422
    assert "still cannot be decoded" in again.json()["detail"]


async def test_ciphertext_is_revealed_with_the_key_of_its_subject(
    settings: Settings, api: httpx.AsyncClient, runfold: Runfold, tmp_path: Path
):
    run = await runfold.open_run(agent_id="desk")
    first, second = [await bury_sealed(api, runfold, run, f"{name} words") for name in ("first", "second")]
    log = settings.log()
    assert log.encryption_key is not None
    wrapping, publisher = wrapping_of(log.encryption_key), runfold.connection.publisher
    await rotate(log, wrapping, publisher, report=lambda done, total: None, pause_seconds=0.1)

    letter = await shown(api, first)
    assert json.loads(letter["value"])["data"] == {"message": "first words"}
    assert (await api.post(f"{first}/requeue", json={})).status_code == 200
    assert await last_message(run) == "first words"
    other = sealed_settings(settings.kafka, settings.mongo.get_secret_value(), tmp_path)
    async with Runfold.of(other.log()) as of_other, open_sealing(other.log()) as sealing:
        await of_other.open_run(agent_id="desk")  # so that the other tenant has a key
        document = await DeadLetters(log).get(letter["id"], sealing=sealing)
        assert "words" not in document.model_dump_json()
    assert runfold.connection.sealing is not None
    assert await runfold.connection.sealing.keys.destroy(subject_of_life(run.life)) == 1

    async def is_erased() -> bool:
        return json.loads((await shown(api, second))["value"])["data"] == {"message": "[erased]"}

    await until(is_erased, what="the API's look at the keys")
    refused = await api.post(f"{second}/requeue", json={})
    assert (refused.status_code, "destroyed" in refused.text) == (422, True)


async def test_a_mended_event_has_no_ciphertext(api: httpx.AsyncClient, runfold: Runfold):
    run = await runfold.open_run(agent_id="desk")
    path = await bury(api, runfold, run, b"no event")
    for data in ({"message": "sealed:v1:made-up"}, {"message": "x", "parts": [{"text": "sealed:v1:x"}]}):
        refused = await api.post(f"{path}/requeue", json={"event": {"type": "user_message", "data": data}})
        assert refused.status_code == 422
        assert "is ciphertext" in refused.json()["detail"]
    assert await last_message(run) == "behind"
