"""The usage of a run over HTTP and in a terminal, also of runs that an earlier version folded."""

import json
import os
from pathlib import Path
from subprocess import PIPE
from typing import Any

import httpx
import pytest
from tests.forking import runfold_process
from tests.processes import Projections, environment, projections, reaches, until, working
from tests.querying import Projected, query

from runfold import Run, Runfold, TokenUsage
from runfold.projector.refold import refold
from runfold.settings import Settings
from runfold.store.edition import Edition
from runfold.store.run_state import RunState, fold_fields
from runfold_projections.usage import TokenTotals
from runfold_schemas.topics import RunTopic

CLAUDE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "At 07:04."}],
    "stop_reason": "end_turn",
    "usage": {
        "input_tokens": 10,
        "cache_read_input_tokens": 1000,
        "cache_creation_input_tokens": 200,
        "output_tokens": 50,
    },
}
GPT: dict[str, Any] = {
    "id": "c-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-5",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "07:04"}}],
    "usage": {
        "prompt_tokens": 1210,
        "completion_tokens": 50,
        "total_tokens": 1260,
        "prompt_tokens_details": {"cached_tokens": 1000},
        "completion_tokens_details": {"reasoning_tokens": 30},
    },
}

PRICES: dict[str, Any] = {
    "date": "2026-11-20",
    "currency": "EUR",
    "models": [
        {"model": "claude-*", "input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75},
        {"model": "gpt-5", "maker": "openai", "input": 1.25, "output": 10, "cache_read": 0.125},
    ],
}


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(PRICES))
    return path


async def usage_of(client: httpx.AsyncClient, run: Run, **params: Any) -> dict[str, Any]:
    response = await client.get(f"/v1/runs/{run.run_id}", params=params)
    assert response.status_code == 200, response.text
    usage: dict[str, Any] = response.json()["usage"]
    return usage


@pytest.mark.parametrize("source", ["snapshot", "log"])
async def test_a_run_shows_its_usage_by_model_and_its_cost(
    settings: Settings, stored: Projected, prices: Path, source: str
) -> None:
    run = await stored.run()
    await run.record(CLAUDE)
    await run.record(GPT, maker="openai")
    await run.record(GPT, maker="openai")

    async with query(settings.model_copy(update={"prices": prices})) as client:
        end = [each.record.offset async for each in run.history()][-1]
        usage = await usage_of(client, run, min_offset=end, source=source)

    claude, gpt = usage.pop("by_model")
    assert usage == {
        "input_tokens": 3 * 1210,
        "output_tokens": 150,
        "cache_read_tokens": 3000,
        "cache_write_tokens": 200,
        "cache_write_1h_tokens": 0,
        "reasoning_tokens": 60,
        "input_audio_tokens": 0,
        "output_audio_tokens": 0,
        "server_tool_requests": {},
        "cost": {"amount": 0.0036050, "reason": None, "currency": "EUR", "prices_date": "2026-11-20"},
    }
    assert (claude["model"], claude["provider"], claude["calls"]) == ("claude-sonnet-4-5", "anthropic", 1)
    assert (gpt["model"], gpt["maker"], gpt["calls"]) == ("gpt-5", "openai", 2)
    assert (claude["input_tokens"], gpt["input_tokens"]) == (1210, 2420)
    assert (claude["cost"], gpt["cost"]) == (0.00183, 0.001775)


async def test_a_model_without_a_price_has_no_cost(
    settings: Settings, stored: Projected, prices: Path
) -> None:
    run = await stored.run(TokenUsage(model="gpt-5", input_tokens=3), TokenUsage(model="claude-x"))

    async with query(settings.model_copy(update={"prices": prices})) as client:
        usage = await usage_of(client, run)

    assert [row["cost"] for row in usage["by_model"]] == [None, 0.0]
    assert usage["cost"]["amount"] is None
    assert usage["cost"]["reason"] == "no price of model 'gpt-5'"


async def test_replay_shows_the_usage_and_the_cost(
    settings: Settings, stored: Projected, prices: Path
) -> None:
    run = await stored.run()
    await run.record(CLAUDE)
    variables = os.environ | environment(settings) | {"RUNFOLD_PRICES": str(prices)}

    async def replayed(*options: str) -> str:
        process = await runfold_process("replay", run.run_id, *options, env=variables, stdout=PIPE)
        output, _ = await process.communicate()
        assert process.returncode == 0
        return output.decode()

    shown = await replayed()
    assert "cost  0.0018 EUR, by the prices of 2026-11-20" in shown
    assert "claude-sonnet-4-5" in shown
    assert json.loads(await replayed("--json"))["run"]["usage"]["cost"]["amount"] == 0.00183


# Runs that an earlier version folded


@pytest.fixture
def own(kafka: str, mongo: str, prefix: str, database: str) -> Settings:
    return Settings(kafka=kafka, mongo=mongo, prefix=prefix, database=database, wait_timeout_seconds=20)


OLDER = TokenUsage(
    model="claude", input_tokens=10, output_tokens=50, cache_read_tokens=1000, cache_write_tokens=200
)
ONE = {"input_tokens": 1210, "output_tokens": 50, "cache_read_tokens": 1000, "cache_write_tokens": 200}


async def folded_by_an_earlier_version(stored: Projections, run: Run, *, leaves_usage: bool) -> None:
    """Makes the state what that version would have saved: tokens as the provider counts them, and
    the newer field as it was.
    """
    state = await stored.runs.get(run.run_id)
    assert state is not None
    numbers = {name: getattr(OLDER, name) for name in ONE}
    record = state.record.model_copy(update={"usage": TokenTotals(**numbers)})
    older = RunState(
        **{name: getattr(state, name) for name in ("log_id", "partition", "active", "opened", "ended")},
        last_offset=state.last_offset,
        record=record,
        usage=None,
    )
    at, text, checksum = (await stored.runs.document(run.run_id))["usage"]
    rest = {"$set": {"usage": [at - 1, text, checksum]}} if leaves_usage else {"$unset": {"usage": ""}}
    runs = stored.database[f"runs.{stored.edition}"]
    await runs.update_one({"_id": run.run_id}, {"$set": fold_fields(older)})
    await runs.update_one({"_id": run.run_id}, rest)


@pytest.mark.parametrize("leaves_usage", [False, True])
async def test_a_run_that_an_earlier_version_folded_has_one_meaning(
    own: Settings, leaves_usage: bool
) -> None:
    async with projections(own) as stored, Runfold.of(own.log()) as runfold, query(own) as client:
        async with working(own, stored.edition):
            run = await runfold.open_run(agent_id="a")
            end = (await run.publish(OLDER, provider="anthropic")).offset
            await until(lambda: reaches(stored, run, end), what="the state of the run")
        await folded_by_an_earlier_version(stored, run, leaves_usage=leaves_usage)

        # A read folds the usage from the pages, and a list shows what is stored.
        usage = await usage_of(client, run)
        assert {name: usage[name] for name in ONE} == ONE
        assert [row["input_tokens"] for row in usage["by_model"]] == [1210]
        [listed] = (await client.get("/v1/runs")).json()["runs"]
        assert listed["usage"]["input_tokens"] == 10
        assert await stored.differences(wait_seconds=0) == []

        # A projector goes on with the run.
        async with working(own, stored.edition):
            end = (await run.publish(OLDER, provider="anthropic")).offset
            await until(lambda: reaches(stored, run, end), what="the state of the run")
        usage = await usage_of(client, run)
        assert (usage["input_tokens"], usage["by_model"][0]["calls"]) == (2420, 2)
        assert await stored.differences(wait_seconds=0) == []

        # Folded anew, the run has one meaning in lists too.
        await refold(
            Edition.of(stored.database, stored.edition), own.log(), RunTopic(run.run_id, run.life.log_id)
        )
        [listed] = (await client.get("/v1/runs")).json()["runs"]
        assert listed["usage"]["input_tokens"] == 2420
        assert (await stored.runs.document(run.run_id))["usage"][0] == end + 1
        assert await stored.differences(wait_seconds=0) == []


async def test_verify_compares_the_usage_by_model(own: Settings) -> None:
    async with projections(own) as stored, Runfold.of(own.log()) as runfold:
        async with working(own, stored.edition):
            run = await runfold.open_run(agent_id="a")
            end = (await run.publish(OLDER, provider="anthropic")).offset
            await until(lambda: reaches(stored, run, end), what="the state of the run")
        state = await stored.runs.get(run.run_id)
        assert state is not None
        assert state.usage is not None
        assert await stored.differences(wait_seconds=0) == []

        [row] = state.usage.models
        wrong = state.usage.model_copy(update={"models": (row.model_copy(update={"calls": 7}),)})
        fields = fold_fields(
            RunState(state.log_id, state.partition, active=True, record=state.record, usage=wrong)
        )
        runs = stored.database[f"runs.{stored.edition}"]
        await runs.update_one({"_id": run.run_id}, {"$set": {"usage": fields["usage"]}})

        [difference] = await stored.differences(wait_seconds=0)
    assert difference.detail == "the usage by model differs from the fold of the log"
