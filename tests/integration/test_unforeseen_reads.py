"""An error that nobody foresaw while one run is read is a problem of that run alone."""

import logging
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.processes import Projections, projections, reaches, until, working
from tests.querying import Sent, ready_api, sent_events

from runfold import Run, Runfold, UserMessage
from runfold.settings import Settings
from runfold_projections import admission
from runfold_schemas.codec import Record
from runfold_schemas.events import AnyEvent

MARKED = "the-fault-is-here"


@pytest.fixture(scope="module")
async def stored(settings: Settings) -> AsyncIterator[Projections]:
    async with projections(settings) as stored:
        yield stored


@pytest.fixture(scope="module")
async def api(settings: Settings, stored: Projections) -> AsyncIterator[httpx.AsyncClient]:
    async with ready_api(settings) as client:
        yield client


@pytest.fixture
async def runs(
    settings: Settings, stored: Projections, runfold: Runfold, monkeypatch: pytest.MonkeyPatch
) -> tuple[Run, Run]:
    """Two runs. In the first, the record at offset 2 cannot be decoded, and is not projected."""
    bad, good = [await runfold.open_run(agent_id="a") for _ in range(2)]
    async with working(settings, stored.edition):
        for run in (bad, good):
            await run.publish(UserMessage(message="hi"))
            await until(lambda run=run: reaches(stored, run, 1), what="the state of the run")
    await bad.publish(UserMessage(message=MARKED))
    await good.publish(UserMessage(message="more"))
    decode_record = admission.decode_record

    def failing(record: Record) -> AnyEvent:
        if MARKED.encode() in (record.value or b""):
            raise RecursionError("too deep for this test")
        return decode_record(record)

    monkeypatch.setattr(admission, "decode_record", failing)
    return bad, good


async def test_a_read_of_the_run_is_refused_with_its_place_and_logged_once(
    api: httpx.AsyncClient, runs: tuple[Run, Run], caplog: pytest.LogCaptureFixture
):
    bad, good = runs
    with caplog.at_level(logging.ERROR, logger="runfold.query.unforeseen"):
        refused = [
            await api.get(f"/v1/runs/{bad.run_id}{path}", params={"source": "log"})
            for path in ("", "/events", "/ledger")
        ]

    for answer in refused:
        problem = answer.json()
        assert (answer.status_code, problem["type"]) == (409, "urn:runfold:problem:Quarantined")
        assert (problem["entry_id"], problem["offset"]) == (f"run:{bad.run_id}", 2)
        assert problem["reason"] == "RecursionError: too deep for this test"
    logged = [record for record in caplog.records if record.name == "runfold.query.unforeseen"]
    assert [record.exc_info is not None for record in logged] == [True]
    assert (await api.get(f"/v1/runs/{bad.run_id}")).status_code == 200
    assert (await api.get(f"/v1/runs/{good.run_id}/ledger", params={"source": "log"})).status_code == 200


async def test_following_the_run_ends_with_an_event_and_others_follow_on(
    api: httpx.AsyncClient, runs: tuple[Run, Run]
):
    bad, good = runs
    await good.complete()

    async def followed(run: Run) -> list[Sent]:
        async with api.stream("GET", f"/v1/runs/{run.run_id}/follow", params={"until_end": True}) as answer:
            return [sent async for sent in sent_events(answer)]

    broken, whole = await followed(bad), await followed(good)

    assert [(sent.name, sent.id) for sent in broken] == [
        ("run_opened", 0),
        ("user_message", 1),
        ("quarantined", None),
    ]
    assert broken[-1].data["entry_id"] == f"run:{bad.run_id}"
    assert whole[-1].name == "end"
