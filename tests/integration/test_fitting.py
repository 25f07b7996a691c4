"""A ledger that is fitted to a budget, from every face of Runfold: the same request, and the same
messages that wait for a summary.
"""

import asyncio

import httpx
import pytest
from tests.commands import command
from tests.provider_types import check
from tests.querying import Projected

from runfold import AssistantMessage, Budget, BudgetExceededError, Run, Summary, UserMessage
from runfold.settings import Settings
from runfold.sync import Runfold as SyncRunfold
from runfold_schemas.messages import PROVIDERS, TextPart

TOKENS = 230


async def long_run(stored: Projected, **options: str) -> Run:
    """Ten turns of 48 tokens each, by the estimate. Four of them fit."""
    turns = [
        data
        for number in range(10)
        for data in (
            UserMessage(message=f"{number:30}"),
            AssistantMessage(message=f"{number:90}"),
        )
    ]
    return await stored.run(*turns, **options)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("source", ["snapshot", "log"])
async def test_http_fits_as_the_client_does(
    client: httpx.AsyncClient, stored: Projected, provider: str, source: str
):
    run = await long_run(stored)
    path = f"/v1/runs/{run.run_id}/ledger"
    parameters = {"format": provider, "validate": provider, "fit_tokens": TOKENS, "source": source}

    request = await run.ledger(provider, fit=Budget(tokens=TOKENS))
    await run.publish(Summary(text="They counted.", end_offset=request.fitted.end_offset))
    answer = (await client.get(path, params=parameters | {"as_of_offset": 20})).json()
    summarized = (await client.get(path, params=parameters | {"min_offset": 21})).json()
    after = await run.ledger(provider, fit=Budget(tokens=TOKENS))

    assert answer["request"] == request.body
    assert answer["faults"] == []
    assert answer["fitted"] == {
        "tokens": request.fitted.tokens,
        "counted_by": "an estimate",
        "left_out": len(request.fitted.left_out),
        "end_offset": request.fitted.end_offset,
        "run_index": 0,
    }
    assert summarized["request"] == after.body
    assert "They counted." in str(after.body)
    assert after.fitted.left_out == []
    assert len(await run.ledger()) == 20
    check(provider, after.body)


async def test_new_messages_count_and_stay(client: httpx.AsyncClient, stored: Projected):
    run = await long_run(stored)
    new = {"messages": [{"role": "user", "parts": [{"type": "text", "text": "x " * 150}]}]}
    path = f"/v1/runs/{run.run_id}/ledger?format=anthropic"

    fitted = await client.post(f"{path}&fit_tokens={TOKENS}", json=new)
    refused = await client.post(f"{path}&fit_tokens=50", json=new)

    assert fitted.json()["request"]["messages"][-1]["content"][0]["text"] == "x " * 150
    assert fitted.json()["fitted"]["tokens"] <= TOKENS
    assert refused.status_code == 422
    assert (refused.json()["tokens"], refused.json()["budget"]) == (104, 50)


async def test_a_budget_needs_a_format(client: httpx.AsyncClient, stored: Projected):
    run = await long_run(stored)

    refused = await client.get(f"/v1/runs/{run.run_id}/ledger?fit_tokens=100")

    assert (refused.status_code, refused.json()["field"]) == (422, "fit_tokens")


async def test_a_session_is_fitted_over_its_runs(client: httpx.AsyncClient, stored: Projected):
    first = await long_run(stored, session_id="fitted")
    second = await long_run(stored, session_id="fitted")

    answer = (await client.get(f"/v1/sessions/fitted/ledger?format=gemini&fit_tokens={TOKENS}")).json()

    assert [one["run_id"] for one in answer["runs"]] == [first.run_id, second.run_id]
    assert answer["fitted"]["run_index"] == 1
    assert answer["fitted"]["left_out"] > 20
    assert len(answer["request"]["contents"]) < 10


async def test_the_synchronous_client_fits(settings: Settings, stored: Projected):
    run = await long_run(stored)

    def read() -> tuple[object, object]:
        with SyncRunfold(settings.kafka, prefix=settings.prefix) as runfold:
            same = runfold.get_run(run.run_id)
            with pytest.raises(BudgetExceededError):
                same.ledger("anthropic", fit=Budget(tokens=10))
            return same.ledger("anthropic", fit=Budget(tokens=TOKENS)).fitted, same.ledger()

    fitted, whole = await asyncio.to_thread(read)

    assert fitted == (await run.ledger("anthropic", fit=Budget(tokens=TOKENS))).fitted
    assert len(whole) == 20
    assert isinstance(fitted.left_out[0].parts[0], TextPart)


async def test_the_command_fits(settings: Settings, stored: Projected):
    run = await long_run(stored)

    code, fitted = await command(
        settings, "replay", run.run_id, "--format=anthropic", f"--fit-tokens={TOKENS}"
    )
    refused = await command(settings, "replay", run.run_id, "--format=anthropic", "--fit-tokens=10")
    formless = await command(settings, "replay", run.run_id, "--fit-tokens=10")

    assert code == 0
    assert "messages before offset" in fitted
    assert refused[0] == 1
    assert "the budget has 10" in refused[1]
    assert formless[0] == 2
