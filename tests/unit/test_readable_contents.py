"""Which stored records have something that can be read."""

import json
from typing import Any

import pytest

from runfold.encryption.cipher import new_key_id
from runfold.erasure.contents import Readable, of_event, of_record, of_value

LIVING, DESTROYED = new_key_id(), new_key_id()
KEYS = {LIVING}
OPEN, SHUT = f"sealed:v1:{LIVING}:YQ==", f"sealed:v1:{DESTROYED}:YQ=="
MESSAGE = {"type": "user_message", "turn_id": "t", "data": {"message": "[sealed]"}, "sealed": SHUT}
CREATED = {"session_id": "s", "app": "shop", "user": "ann", "labels": {}, "display_name": None}
SCOPE = {"scope": {"user": "ann"}, "topics": ["USER_PREFERENCES"]}


def event(kind: str, data: dict[str, Any], **envelope: Any) -> dict[str, Any]:
    return {"event_id": "e", "type": kind, "data": data, **envelope}


@pytest.mark.parametrize(
    "stored",
    [
        MESSAGE,
        event("session_created", CREATED),
        event("session_updated", {"session_id": "s", "labels": {"l": SHUT}}),
        event("session_deleted", {"session_id": "s", "erased": "x"}),
        event("state_changed", {}, state_delta={"user:k": SHUT, "gone": None}),
        event("provider_part", {"content": "[sealed]", "finished": False}, sealed=SHUT),
        event("memory_created", {"memory": {"fact": "[sealed]", "sealed": SHUT, **SCOPE}}),
        event("memories_generated", {"created": [{"memory": {"fact": "[sealed]", "sealed": SHUT, **SCOPE}}]}),
        event(
            "event_amended",
            {"stand_ins": [{"type": "user_message", "data": {"message": "[sealed]"}}], "reason": "[sealed]"},
            sealed=SHUT,
        ),
        event(
            "framework_event",
            {
                "framework": "adk",
                "body": {"author": "user", "content": {"role": "user", "parts": [{"text": "[sealed]"}]}},
            },
            sealed=SHUT,
        ),
        {"type": "of a later version", "sealed": SHUT},
    ],
)
def test_an_event_that_a_destroyed_key_has_sealed_is_not_readable(stored: dict[str, Any]) -> None:
    text = json.dumps(stored)

    assert of_event(text.encode(), KEYS) is Readable.NO
    opens = text.replace(DESTROYED, LIVING)
    assert of_event(opens.encode(), KEYS) is (Readable.BY_KEY if opens != text else Readable.NO)


@pytest.mark.parametrize(
    "stored",
    [
        event("user_message", {"message": "hi"}),
        {**MESSAGE, "labels": {"team": "red"}},
        {**MESSAGE, "data": {"message": "[sealed]", "a later field": 1}},
        event("session_created", {**CREATED, "labels": {"l": SHUT, "team": "red"}}),
        event("state_changed", {}, state_delta={"user:k": SHUT, "app:k": False}),
        event("memory_created", {"memory": {"fact": "likes tea", **SCOPE}}),
        event(
            "memory_created", {"memory": {"fact": "[sealed]", "sealed": SHUT}, "revision_labels": {"l": "x"}}
        ),
        event("memories_generated", {"updated": [{"memory": {"fact": "likes tea", **SCOPE}}]}),
        event("event_amended", {"stand_ins": [{"type": "user_message", "data": {"message": "hi"}}]}),
        event("framework_event", {"body": {"author": "user", "content": {"parts": [{"text": "hi"}]}}}),
        event("bank_created", {"bank_id": "b", "config": {"description": "of Ann"}}),
        {"type": "of a later version", "data": {}},
    ],
)
def test_clear_text_beside_a_ciphertext_is_readable(stored: dict[str, Any]) -> None:
    assert of_event(json.dumps(stored).encode(), KEYS) is Readable.CLEAR


def test_bytes_that_are_no_event_are_readable_without_a_ciphertext() -> None:
    assert of_event(b"not JSON", KEYS) is Readable.CLEAR
    assert of_event(b'not JSON: "%b"' % OPEN.encode(), KEYS) is Readable.BY_KEY
    assert of_event(b'not JSON: "%b"' % SHUT.encode(), KEYS) is Readable.NO
    assert of_event(None, KEYS) is Readable.NO


@pytest.mark.parametrize(
    ("stored", "readable"),
    [
        ({"run_id": "r", "user_id": "ann", "status": "failed", "labels": {}, "error": None}, Readable.NO),
        ({"run_id": "r", "labels": {"l": SHUT}, "error": "no"}, Readable.CLEAR),
        ({"session_id": "s", "labels": {"l": OPEN, "m": SHUT}}, Readable.BY_KEY),
        ({"memory": {"fact": "[sealed]", "sealed": SHUT, **SCOPE}, "labels": {}}, Readable.NO),
        ({"memory": None, "labels": {}, "extracted": [{"fact": "likes tea"}]}, Readable.CLEAR),
        ({"bank_id": "b", "config": {"labels": {"l": "x"}}}, Readable.CLEAR),
    ],
)
def test_a_record_of_a_fold_is_readable_by_its_contents(stored: dict[str, Any], readable: Readable) -> None:
    assert of_record(json.dumps(stored).encode(), KEYS) is readable


def test_a_value_of_state_is_readable_unless_it_is_sealed() -> None:
    values = [SHUT, OPEN, "tea", [0], {}]

    assert [of_value(json.dumps(value).encode(), KEYS) for value in values] == [
        *(Readable.NO, Readable.BY_KEY, Readable.CLEAR, Readable.CLEAR, Readable.NO)
    ]
