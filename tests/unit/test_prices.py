"""The cost of tokens by a table of prices: exact, or unknown with the reason."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from runfold.prices import PriceTable, read_prices
from runfold.query.folded_run import FoldedRun
from runfold.query.run_document import run_document
from runfold.settings import Settings, fault_of
from runfold_projections.activity import NO_ACTIVITY
from runfold_projections.run import RunRecord
from runfold_projections.usage import ModelUsage, RunUsage

TABLE: dict[str, Any] = {
    "date": "2026-11-20",
    "models": [
        {
            "model": "claude-*",
            "input": 3,
            "output": 15,
            "cache_read": 0.3,
            "cache_write": 3.75,
            "cache_write_1h": 6,
            "over": [{"tokens": 200000, "input": 6, "output": 22.5, "cache_read": 0.6}],
            "server_tools": {"web_search": 0.01, "web_fetch": 0},
        },
        {"model": "llama", "maker": "groq", "input": 0.05, "output": 0.08},
        {"model": "llama", "maker": "openai-chat", "input": 1, "output": 1},
        {"model": "odd", "input": 1, "output": 1, "over": [{"tokens": 100000, "input": 2, "output": 2}]},
        {"model": "voice", "input": 4, "output": 16, "cache_read": 2, "input_audio": 32},
        {"model": "claude-never-reached", "input": 1000, "output": 1000},
    ],
}
PRICES = PriceTable.model_validate_json(json.dumps(TABLE))


def used(model: str | None = "claude-x", **fields: Any) -> ModelUsage:
    return ModelUsage(model=model, **fields)


def test_each_kind_of_token_has_its_price():
    usage = used(
        input_tokens=1_350,
        cache_read_tokens=1_000,
        cache_write_tokens=250,
        cache_write_1h_tokens=50,
        output_tokens=40,
        reasoning_tokens=30,
        server_tool_requests={"web_search": 2, "web_fetch": 9},
    )

    tokens = 100 * Decimal(3) + 1_000 * Decimal("0.3") + 200 * Decimal("3.75") + 50 * 6 + 40 * 15
    assert PRICES.cost([usage]) == (tokens / 1_000_000 + Decimal("0.02"), None)


def test_large_requests_have_the_price_of_their_size():
    rows = [used(input_tokens=150_000, over=128_000), used(input_tokens=300_000, over=200_000)]

    assert PRICES.cost(rows).amount == Decimal("0.45") + Decimal("1.8")


def test_a_maker_has_prices_of_its_own():
    def cost(**fields: Any) -> Decimal | None:
        return PRICES.cost([used("llama", input_tokens=1_000_000, **fields)]).amount

    assert cost(maker="groq", provider="openai-chat") == Decimal("0.05")
    assert cost(provider="openai-chat") == 1
    assert cost(maker="other", provider="openai-chat") is None
    # A run has its maker in lower case, and the table may have another spelling.
    upper = PriceTable.model_validate(TABLE | {"models": [TABLE["models"][1] | {"maker": "Groq"}]})
    assert upper.cost([used("llama", maker="groq", input_tokens=1_000_000)]).amount == Decimal("0.05")


@pytest.mark.parametrize(
    ("usage", "reason"),
    [
        (used("gpt"), "no price of model 'gpt'"),
        (used(None, provider="bedrock"), "no price of a model without a name, of bedrock"),
        (used(None, is_others=True), "no price of the further models"),
        (used("llama", maker="groq", input_tokens=2, cache_read_tokens=1), "no price of cache_read of model"),
        (used(server_tool_requests={"code": 1}), "no price of requests to code, with 'claude-*'"),
        (used("odd", input_tokens=1), "the prices of 'odd' change at 100000 tokens"),
        (used(input_tokens=1, cache_read_tokens=2), "the numbers of model 'claude-x' contradict each other"),
        (
            used("voice", input_tokens=9, cache_read_tokens=2, input_audio_tokens=3),
            "the provider does not say how much of the cached input is audio",
        ),
    ],
)
def test_what_has_no_price_makes_the_cost_unknown(usage: ModelUsage, reason: str):
    cost = PRICES.cost([used(input_tokens=1), usage])

    assert cost.amount is None
    assert cost.reason is not None
    assert cost.reason.startswith(reason)


def test_audio_is_charged_by_its_own_price():
    cost = PRICES.cost([used("voice", input_tokens=10, input_audio_tokens=4)])

    assert cost.amount == Decimal(6 * 4 + 4 * 32) / 1_000_000


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), max_size=6))
def test_the_cost_of_a_run_is_that_of_its_parts(parts: list[tuple[int, int]]):
    rows = [used(input_tokens=tokens, output_tokens=more) for tokens, more in parts]

    assert PRICES.cost(rows).amount == sum(PRICES.cost([row]).amount or 0 for row in rows)


def folded(record: RunRecord, usage: RunUsage) -> FoldedRun:
    return FoldedRun(record, usage, NO_ACTIVITY, log_id="log-1")


def test_a_run_shows_its_cost_and_that_of_each_model():
    rows = (
        used(input_tokens=1_000, calls=1),
        used(input_tokens=300_000, over=200_000, calls=2),
        used("gpt", output_tokens=5, calls=1),
    )
    usage = RunUsage(models=rows)

    shown = run_document(folded(RunRecord(run_id="r", usage=usage.totals), usage), PRICES).model_dump(
        mode="json"
    )

    assert shown["usage"]["input_tokens"] == 301_000
    assert shown["usage"]["reasoning_tokens"] == 0
    assert [(row["model"], row["calls"], row["cost"]) for row in shown["usage"]["by_model"]] == [
        ("claude-x", 3, 1.803),
        ("gpt", 1, None),
    ]
    assert shown["usage"]["cost"] == {
        "amount": None,
        "reason": "no price of model 'gpt'",
        "currency": "USD",
        "prices_date": "2026-11-20",
    }


def test_without_a_table_no_cost_is_known():
    shown = run_document(folded(RunRecord(run_id="r"), RunUsage()), None).model_dump(mode="json")

    assert shown["usage"]["cost"] == {
        "amount": None,
        "reason": "no prices are set: see RUNFOLD_PRICES",
        "currency": None,
        "prices_date": None,
    }


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "cannot be read: No such file or directory"),
        ("{", "is no table of prices: "),
        ('{"date": "2026-11-20", "models": [{"model": "m", "input": 1}]}', "models.0.output: Field required"),
        ('{"date": "2026-11-20", "models": [], "modles": []}', "modles: Extra inputs are not permitted"),
        (
            '{"date": "2026-11-20", "models": [{"model": "m", "input": -1, "output": 1}]}',
            "models.0.input: Input should be greater than or equal to 0",
        ),
    ],
)
def test_settings_refuse_a_file_that_has_no_prices(tmp_path: Path, text: str | None, fault: str):
    path = tmp_path / "prices.json"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ValidationError) as refused:
        Settings(prices=path)

    name, sentence = fault_of(refused.value)
    assert name == "prices"
    assert str(path) in sentence
    assert fault in sentence


def test_settings_read_the_prices_in_the_file(tmp_path: Path):
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(TABLE))

    assert Settings(prices=path).price_table() == read_prices(path) == PRICES
