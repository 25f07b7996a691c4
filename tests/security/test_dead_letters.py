"""What publishing the event of a dead letter again does for an encrypted tenant, and which effects
it may have.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from tests.ingesting import is_ready
from tests.principals import As, authenticated
from tests.processes import until
from tests.querying import served
from tests.sealed_services import sealed_settings

from runfold import Run, Runfold, UserMessage
from runfold.api.app import build_app
from runfold.ids import new_event_id
from runfold.log.effect_keys import add_effect_key, read_effect_keys
from runfold.log.publisher import Outgoing
from runfold.log.reader import read
from runfold.settings import Settings
from runfold_schemas.codec import encode, new_event
from runfold_schemas.data import Data
from runfold_schemas.memories import BankDeleted


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder: Path = tmp_path_factory.mktemp("keys")
    add_effect_key(folder / "effects")
    keys = read_effect_keys(folder / "effects")
    return sealed_settings(kafka, mongo, folder).model_copy(update={"effect_keys": keys})


@pytest.fixture(scope="module")
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


@pytest.fixture(scope="module")
async def client(settings: Settings, runfold: Runfold) -> AsyncIterator[httpx.AsyncClient]:
    async with served(authenticated(build_app(settings))) as client:
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        yield client


async def bury(runfold: Runfold, run: Run, data: Data, *, is_signed: bool = False) -> str:
    """Makes a dead letter of a sealed event. Returns the path of its route."""
    connection = runfold.connection
    event = new_event(data, event_id=new_event_id(), run_id=run.run_id, timestamp=datetime.now(UTC))
    assert connection.sealing is not None
    assert connection.settings.effect_keys is not None
    _, value = await connection.sealing.of_life(run.life)(event, encode(event))
    topic = connection.topics.run(run.run_id, run.life.log_id)
    signature = [connection.settings.effect_keys.header(topic, value)] if is_signed else []
    headers = [*signature, ("runfold-origin-topic", topic.encode()), ("runfold-reason", b"a later version's")]
    letter = Outgoing(key=f"{topic}:7".encode(), value=value, headers=headers)
    await connection.publisher.wait(
        await connection.publisher.send(connection.topics.dead_letters, letter, partition=0)
    )
    return f"/v1/dead-letters/{quote(f'{topic}:7', safe='')}/requeue"


async def test_the_content_of_a_sealed_event_is_published(
    settings: Settings, client: httpx.AsyncClient, runfold: Runfold
):
    run = await runfold.open_run(agent_id="desk")
    path = await bury(runfold, run, UserMessage(message="what the user said"))

    answer = await As(client, "administer")("POST", path, {})

    assert answer.status_code == 200, answer.text
    events = [event async for event in run.events()]
    assert events[-1].data == UserMessage(message="what the user said")
    [*_, letter] = [
        record
        async for records in read(settings.log(), runfold.connection.topics.dead_letters)
        for record in records
    ]
    assert letter.value == b""  # the copy with the trace has no content
    assert {"runfold-requeued", "runfold-record-bytes"} < {name for name, _ in letter.headers}
    forged = {"type": "user_message", "data": {"message": "[sealed]"}, "sealed": "sealed:v1:x"}
    other = await bury(runfold, await runfold.open_run(agent_id="desk"), UserMessage(message="hi"))
    assert (await As(client, "administer")("POST", other, {"event": forged})).status_code == 422


async def test_an_effect_needs_its_scope(client: httpx.AsyncClient, runfold: Runfold):
    run = await runfold.open_run(agent_id="desk")
    path = await bury(runfold, run, UserMessage(message="hi"))
    deletion = {"event": {"type": "bank_deleted", "data": {"bank_id": "bank-1"}}}

    refused = await As(client, "administer")("POST", path, deletion)
    allowed = await As(client, "everything")("POST", path, deletion)

    assert (refused.status_code, allowed.status_code) == (403, 200), (refused.text, allowed.text)


async def test_an_effect_that_nobody_signed_is_not_signed(client: httpx.AsyncClient, runfold: Runfold):
    unsigned, signed = [await runfold.open_run(agent_id="desk") for _ in range(2)]
    deletion = BankDeleted(bank_id="bank-1")
    paths = [
        await bury(runfold, unsigned, deletion),
        await bury(runfold, signed, deletion, is_signed=True),
    ]

    answers = [await As(client, "everything")("POST", path, {}) for path in paths]

    assert [answer.status_code for answer in answers] == [422, 200], [answer.text for answer in answers]
    assert "no valid signature" in answers[0].json()["detail"]
