"""The usage of a run: one meaning of the numbers, totals by model, and what each version stores."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import event
from tests.records import admit, portions, record

from runfold.store.run_state import RunState, document_of, read_document, state_of
from runfold_projections.admission import Admitted
from runfold_projections.run import RunRecord, fold
from runfold_projections.usage import (
    MODELS_MAX,
    ModelUsage,
    RunUsage,
    TokenTotals,
    add,
    fold_usage,
    tokens_of,
)
from runfold_schemas.codec import Record, encode
from runfold_schemas.runs import RunOpened
from runfold_schemas.usage import TokenUsage

OPENED = event(RunOpened(agent_id="agent-1", log_id="log-1"))

CACHED = {"output_tokens": 50, "cache_read_tokens": 1000, "cache_write_tokens": 200}
"""Of a prompt with 1,210 tokens, of which 10 are new."""


def logged(*usages: tuple[TokenUsage, dict[str, Any]]) -> list[Record]:
    events = [OPENED, *(event(usage, **envelope) for usage, envelope in usages)]
    return [record(each, offset) for offset, each in enumerate(events)]


def usage_of(*usages: tuple[TokenUsage, dict[str, Any]]) -> RunUsage:
    return fold_usage(RunUsage(), admit(logged(*usages)))


@pytest.mark.parametrize(
    ("tokens", "provider"),
    [
        ({"input_tokens": 10, **CACHED}, "anthropic"),
        ({"input_tokens": 10, **CACHED}, "bedrock"),
        ({"input_tokens": 1210, **CACHED}, "openai-chat"),
        ({"input_tokens": 1210, **CACHED}, "openai-responses"),
        ({"input_tokens": 1210, **CACHED}, "gemini"),
        ({"input_tokens": 1210, **CACHED}, None),
        ({"input_tokens": 1210, "input_includes_cache": True, **CACHED}, "anthropic"),
        ({"input_tokens": 1210, "input_includes_cache": True, **CACHED}, "bedrock"),
        ({"input_tokens": 10, "input_includes_cache": False, **CACHED}, None),
        ({"input_tokens": 10, "input_includes_cache": False, **CACHED}, "openai-chat"),
    ],
)
def test_events_of_every_version_and_provider_have_one_meaning(tokens: dict[str, Any], provider: Any):
    usage = usage_of((TokenUsage(**tokens), {"provider": provider}))

    assert usage.totals == TokenTotals(
        input_tokens=1210, output_tokens=50, cache_read_tokens=1000, cache_write_tokens=200
    )


def test_other_data_under_newer_names_leave_an_event_valid():
    """An event of an earlier version may have any further data."""
    data = {"input_tokens": 7, "reasoning_tokens": None, "input_audio_tokens": "many"}
    data |= {"server_tool_requests": 3, "input_includes_cache": "perhaps"}
    written = json.loads(encode(event(TokenUsage()))) | {"data": data}

    [opened, used] = admit([record(OPENED, 0), Record(1, 0, None, (), json.dumps(written).encode())])

    assert (opened.outcome, used.outcome) == ("accepted", "accepted")
    assert fold_usage(RunUsage(), [used]).totals == TokenTotals(input_tokens=7)


def test_each_model_of_each_maker_has_its_totals():
    usage = usage_of(
        (TokenUsage(model="llama", input_tokens=1), {"maker": "Groq"}),
        (TokenUsage(model="llama", input_tokens=2), {"maker": "groq", "provider": "openai-chat"}),
        (TokenUsage(model="llama", input_tokens=3), {"maker": "together"}),
        (TokenUsage(model="llama", input_tokens=4), {"maker": "groq"}),
        (TokenUsage(input_tokens=5), {}),
    )

    assert usage.models == (
        ModelUsage(model="llama", maker="groq", input_tokens=5, calls=2),
        ModelUsage(model="llama", maker="groq", provider="openai-chat", input_tokens=2, calls=1),
        ModelUsage(model="llama", maker="together", input_tokens=3, calls=1),
        ModelUsage(input_tokens=5, calls=1),
    )


def test_large_requests_have_totals_of_their_own():
    """Their tokens cost more. The size is that of the request, and not that of the run."""
    usage = usage_of(
        *[(TokenUsage(model="m", input_tokens=size), {}) for size in (150_000, 200_000, 200_001)]
    )

    assert [(row.over, row.calls) for row in usage.models] == [(128_000, 2), (200_000, 1)]


def test_further_models_and_tools_share_one_entry():
    tools = {f"tool_{number}": 1 for number in range(10)}
    more = {f"more_{number}": 2 for number in range(10)}

    usage = usage_of(
        *[(TokenUsage(model=f"m-{number}", input_tokens=1), {}) for number in range(60)],
        (TokenUsage(model="x" * 201, input_tokens=1), {}),
        (TokenUsage(model="m-0", server_tool_requests=tools), {}),
        (TokenUsage(model="m-0", server_tool_requests={"Not a tool": 5, **more}), {}),
    )

    assert len(usage.models) == MODELS_MAX + 1
    assert usage.models[-1] == ModelUsage(is_others=True, input_tokens=11, calls=11)
    assert usage.models[0].server_tool_requests["others"] == 5 + 5 * 2
    assert usage.totals.input_tokens == 61
    assert sum(usage.totals.server_tool_requests.values()) == 10 + 5 + 20


counts = st.integers(0, 2**63 - 1) | st.integers(0, 300_000)
usages = st.builds(
    TokenUsage,
    model=st.sampled_from(["a", "b", "c", None]),
    input_tokens=counts,
    output_tokens=counts,
    cache_read_tokens=counts,
    cache_write_tokens=counts,
    cache_write_1h_tokens=counts,
    reasoning_tokens=counts,
    input_audio_tokens=counts,
    output_audio_tokens=counts,
    server_tool_requests=st.dictionaries(st.sampled_from(["web_search", "web_fetch"]), counts),
    input_includes_cache=st.none() | st.booleans(),
)
envelopes = st.fixed_dictionaries(
    {"provider": st.sampled_from([None, "anthropic", "bedrock", "gemini"])},
    optional={"maker": st.sampled_from(["x", "y"])},
)
usage_logs = st.lists(st.tuples(usages, envelopes), max_size=12)


@given(usage_logs, st.randoms(use_true_random=False))
def test_the_order_of_the_calls_changes_no_total(calls: list[Any], random: Any):
    shuffled = list(calls)
    random.shuffle(shuffled)

    one, other = usage_of(*calls), usage_of(*shuffled)

    assert one.totals == other.totals
    assert sorted(one.models, key=_order) == sorted(other.models, key=_order)


def _order(row: ModelUsage) -> tuple[str, ...]:
    return str(row.model), str(row.maker), str(row.provider), str(row.over)


@given(usage_logs, st.data())
def test_any_division_of_a_log_gives_the_same_usage_and_the_records_totals(calls: list[Any], data: Any):
    admitted = admit(logged(*calls))
    usage, run = RunUsage(), RunRecord(run_id="run-1")

    for portion in data.draw(portions(admitted)):
        usage, run = fold_usage(usage, portion), fold(run, portion)

    assert usage == fold_usage(RunUsage(), admitted)
    assert usage.totals == run.usage
    assert RunUsage.model_validate_json(usage.model_dump_json(exclude_defaults=True)) == usage


@given(usage_logs)
def test_totals_are_the_sums_of_the_calls(calls: list[Any]):
    expected: Counter[str] = Counter()
    totals = TokenTotals()
    for usage, envelope in calls:
        tokens = tokens_of(event(usage, **envelope), usage)
        totals = add(totals, tokens)
        expected.update({name: count for name, count in tokens._asdict().items() if isinstance(count, int)})

    assert {name: getattr(totals, name) for name in expected} == expected
    assert usage_of(*calls).totals == totals


def test_the_usage_of_any_log_is_small():
    wide = "\0"  # six bytes of JSON
    calls = [
        (
            TokenUsage(
                model=f"{number}".ljust(200, wide),
                **dict.fromkeys(("input_tokens", "output_tokens", "cache_read_tokens"), 2**63 - 1),
                server_tool_requests={f"{tool}".ljust(64, "x"): 2**63 - 1 for tool in range(16)},
            ),
            {"maker": wide * 200},
        )
        for number in range(100)
    ]

    usage = usage_of(*calls)
    run = fold(RunRecord(run_id="run-1"), admit(logged(*calls)))

    assert len(usage.model_dump_json()) < 256_000
    assert len(run.model_dump_json()) < 4_000


# What is stored


def state_after(admitted: list[Admitted]) -> RunState:
    run = fold(RunRecord(run_id="run-1"), admitted)
    return RunState("log-1", 0, active=True, record=run, usage=fold_usage(RunUsage(), admitted))


ANTHROPIC = logged((TokenUsage(model="claude", input_tokens=10, **CACHED), {"provider": "anthropic"}))


def test_a_stored_state_has_the_usage_by_model():
    state = state_after(admit(ANTHROPIC))

    assert state_of({"_id": "run-1", **document_of(state)}) == state


def test_a_run_that_used_no_model_stores_no_usage():
    state = state_after(admit([record(OPENED)]))

    assert "usage" not in document_of(state)
    assert state_of({"_id": "run-1", **document_of(state)}) == state


def test_a_state_that_an_earlier_version_saved_has_no_usage():
    """That version leaves the field `usage` as it was, or never wrote it."""
    state = state_after(admit(ANTHROPIC))
    later = document_of(
        RunState(
            "log-1", 0, active=True, record=state.record.model_copy(update={"next_offset": 9}), usage=None
        )
    )

    never = state_of({"_id": "run-1", **later})
    left = state_of({"_id": "run-1", **later, "usage": document_of(state)["usage"]})

    assert (never.usage, left.usage) == (None, None)


@pytest.mark.parametrize("change", ["of another log", "damaged"])
def test_usage_that_does_not_belong_to_the_state_is_not_used(change: str):
    document = {"_id": "run-1", **document_of(state_after(admit(ANTHROPIC)))}
    if change == "of another log":
        document["log_id"] = "log-2"
    else:
        position, text, checksum = document["usage"]
        document["usage"] = [position, text.replace("1210", "1211"), checksum]

    assert read_document(document).usage is None
