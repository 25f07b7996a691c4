"""Recorded histories still mean what they meant: see README.md beside them. They are never
edited.
"""

import base64
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.records import admit

from runfold.store.pages import pack, unpack
from runfold_projections.admission import Admission, Admitted
from runfold_projections.budget import Budget
from runfold_projections.fitting import fit, place_messages
from runfold_projections.ledger import build_messages_from_events
from runfold_projections.message_tokens import TokenCounter
from runfold_projections.run import RunRecord, fold
from runfold_projections.usage import ModelUsage, RunUsage, fold_usage
from runfold_schemas.codec import Record
from runfold_schemas.messages import Message

FOLDER = Path(__file__).parent
HISTORIES = sorted(FOLDER.glob("*.jsonl"))

every_history = pytest.mark.parametrize("history", HISTORIES, ids=lambda path: path.stem)


def read(history: Path) -> list[Record]:
    return [
        Record(
            offset=line["offset"],
            log_time=line["log_time"],
            key=_bytes(line["key"]),
            headers=tuple((name, _bytes(value)) for name, value in line["headers"]),
            value=_bytes(line["value"]),
        )
        for line in map(json.loads, history.read_text("utf-8").split("\n")[:-1])
    ]


def expected(history: Path) -> dict[str, Any]:
    return json.loads(history.with_suffix(".expected.json").read_text("utf-8"))


@every_history
def test_every_record_has_the_outcome_that_it_had(history):
    admitted = admit(read(history), expected(history)["run"]["run_id"])

    assert {str(one.record.offset): one.outcome for one in admitted} == expected(history)["outcomes"]


@every_history
def test_the_run_record_is_what_it_was(history):
    run = RunRecord.model_validate_json(json.dumps(expected(history)["run"]))

    assert fold(RunRecord(run_id=run.run_id), admit(read(history), run.run_id)) == run


def test_tokens_have_one_meaning_whichever_version_recorded_them():
    history = FOLDER / "token-usage.jsonl"
    rows = [ModelUsage.model_validate(row) for row in expected(history)["usage"]]

    usage = fold_usage(RunUsage(), admit(read(history), "run-1"))

    assert list(usage.models) == rows
    assert usage.totals == RunRecord.model_validate(expected(history)["run"]).usage
    # Five providers as two versions recorded them, and three ways of a caller's own: each has the
    # one prompt of 1,210 tokens, and a last call has 300,000.
    assert usage.totals.input_tokens == (5 * 2 + 3) * 1210 + 300_000


def test_a_long_talk_is_fitted_as_it_was():
    history = FOLDER / "long-talk.jsonl"
    admitted = admit(read(history), "run-1")
    conversation = place_messages(
        (one.record.offset, one.event) for one in admitted if one.counts and one.event is not None
    )

    for tokens, shown in expected(history)["fitted"].items():
        fitted = fit(conversation, Budget(tokens=int(tokens)), "anthropic", TokenCounter("letters", len))
        texts = [message.parts[0].text for message in fitted.messages if _is_of_user(message)]
        assert shown == {
            "tokens": fitted.tokens,
            "messages": len(fitted.messages),
            "user": texts,
            "left_out": len(fitted.left_out),
            "end_offset": fitted.end_offset,
        }


@every_history
def test_the_messages_are_what_they_were(history):
    assert _messages(admit(read(history), expected(history)["run"]["run_id"])) == _exact(
        expected(history)["messages"]
    )


@every_history
def test_a_history_that_was_paged_and_read_back_one_by_one_is_the_same(history):
    run_id = expected(history)["run"]["run_id"]
    admission, run = Admission(run_id), RunRecord(run_id=run_id)
    admitted = []

    for record in unpack(pack(read(history))):
        admitted.append(admission.admit(record))
        run = fold(run, admitted[-1:])

    assert run.model_dump(mode="json") == expected(history)["run"]
    assert _messages(admitted) == _exact(expected(history)["messages"])


def test_no_history_was_edited_and_none_is_missing():
    sums = dict(
        reversed(line.split("  ")) for line in (FOLDER / "SHA256SUMS").read_text("utf-8").splitlines()
    )

    found = {path.name: path for path in FOLDER.iterdir() if path.suffix in (".jsonl", ".json")}

    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items()} == sums
    assert len(HISTORIES) >= 3


def _is_of_user(message: Message) -> bool:
    return message.role == "user" and message.parts[0].type == "text"


def _messages(admitted: Iterable[Admitted]) -> list[str]:
    events = [one.event for one in admitted if one.counts and one.event is not None]
    return _exact([json.loads(message.model_dump_json()) for message in build_messages_from_events(events)])


def _exact(messages: list[Any]) -> list[str]:
    """As text, because Python takes 1, 1.0 and true for equal."""
    return [json.dumps(message, sort_keys=True) for message in messages]


def _bytes(value: str | dict[str, str] | None) -> bytes | None:
    if value is None:
        return None
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value.encode()
