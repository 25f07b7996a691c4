"""Recorded cases of Goa-AI 0.38.0: what our ledger keeps from it, it keeps exactly."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.builders import event

from runfold_projections.ledger import Ledger, build_messages_from_events
from runfold_projections.validation import validate_bedrock
from runfold_schemas.codec import TYPE_OF
from runfold_schemas.messages import Message

VECTORS = Path(__file__).parents[1] / "vectors" / "ledger.jsonl"
CASES = [json.loads(line) for line in VECTORS.read_text().splitlines()]
DATA_OF = {name: data for data, name in TYPE_OF.items()}


def _cases(*kinds: str) -> Any:
    cases = [case for case in CASES if case["kind"] in kinds]
    return pytest.mark.parametrize("case", cases, ids=[case["id"] for case in cases])


@_cases("ledger", "events")
def test_the_messages_are_those_of_the_model(case):
    assert _built(case) == _expected(case["expect_messages"])


@_cases("ledger", "events")
def test_the_first_bedrock_fault_of_what_was_built_is_the_models(case):
    messages = _built(case)

    assert _first_fault(messages, thinking=True) == case["expect_fault_thinking_on"]
    assert _first_fault(messages, thinking=False) == case["expect_fault_thinking_off"]


@_cases("validate")
def test_the_first_bedrock_fault_is_the_models(case):
    assert _first_fault(_expected(case["messages"]), thinking=case["thinking"]) == case["expect_fault"]


def _built(case: dict[str, Any]) -> list[Message]:
    if case["kind"] == "events":
        return build_messages_from_events(
            [event(DATA_OF[each["type"]](**each["data"])) for each in case["events"]]
        )
    ledger = Ledger()
    for op in case["ops"]:
        arguments = {name: value for name, value in op.items() if name != "op"}
        getattr(ledger, op["op"])(**arguments)
    return ledger.build_messages()


def _expected(messages: list[dict[str, Any]]) -> list[Message]:
    return [Message.model_validate(message) for message in messages]


def _first_fault(messages: list[Message], *, thinking: bool) -> str | None:
    faults = validate_bedrock(messages, thinking=thinking)
    return faults[0].text if faults else None
