"""What is folded without models has the outcomes of `Admission.admit`, whatever the bytes are."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import event, event_id
from tests.records import ONE_OF_EACH, logs, record

from runfold_projections.admission import Admission
from runfold_projections.tally import Tally, admit_all, tally_of
from runfold_schemas.codec import Record, decode_record, encode
from runfold_schemas.errors import UndecodableError
from runfold_schemas.event_fields import fields_of
from runfold_schemas.events import AssistantMessage, UserMessage
from runfold_schemas.outline import VALUES_MAX

JSON = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(
        (
            "2026-11-22T10:00:00Z",
            "0001-01-01T00:00:00+14:00",
            "9998-01-01T00:00:00Z",
            "9997-12-31T23:59:59-01:00",
            "1e999",
            1e400,
            {},
            [],
            [{}],
            {"data": 1},
        )
    ),
)


def _is_event(each: Record) -> bool:
    try:
        decode_record(each)
    except UndecodableError:
        return False
    return True


def _sums(tally: Tally) -> dict[str, object]:
    return {name: getattr(tally, name) for name in Tally.__slots__ if name != "whole"}


@given(logs(), st.integers(0, 14))
def test_a_log_has_the_same_sums_with_and_without_models(log: list[Record], cut: int) -> None:
    whole, apart = Admission("run-1"), Admission("run-1")

    expected = [tally_of([whole.admit(each) for each in part]) for part in (log[:cut], log[cut:])]
    tallies = [admit_all(apart, part) for part in (log[:cut], log[cut:])]

    assert [_sums(tally) for tally in tallies] == [_sums(tally) for tally in expected]
    assert (apart.opened, apart.ended, apart.last_offset) == (whole.opened, whole.ended, whole.last_offset)


@pytest.mark.parametrize("data", ONE_OF_EACH, ids=lambda data: type(data).__name__)
def test_an_event_of_every_kind_has_fields(data: object) -> None:
    each = record(event(data))

    fields = fields_of(each)

    assert fields is not None
    known = decode_record(each)
    assert (fields["event_id"], fields["run_id"]) == (known.event_id, known.run_id)
    assert (fields["type"], fields["timestamp"]) == (known.type, known.timestamp)


@given(st.sampled_from(ONE_OF_EACH), st.randoms(use_true_random=False), JSON)
def test_a_changed_event_has_fields_only_if_it_is_an_event(
    data: object, choice: random.Random, value: object
) -> None:
    fields = json.loads(encode(event(data, turn_id="t", labels={"a": "b"}, expected_offset=3)))
    place = fields["data"] if choice.random() < 0.5 and fields["data"] else fields
    place[choice.choice([*place, "provider", "maker", "state_delta", "turn_id", "new"])] = value
    changed = record(json.dumps(fields).encode())

    found = fields_of(changed)

    assert found is None or _is_event(changed)
    if found is not None:
        known = decode_record(changed)
        assert found.get("expected_offset") == known.expected_offset
        assert found.get("turn_id") == known.turn_id
        assert (found.get("state_delta") is None) == (known.state_delta is None)
        assert found["timestamp"] == known.timestamp


@given(st.sampled_from(ONE_OF_EACH), st.randoms(use_true_random=False))
def test_changed_bytes_have_fields_only_if_they_are_an_event(data: object, choice: random.Random) -> None:
    value = bytearray(encode(event(data)))
    for _ in range(choice.randint(1, 3)):
        value[choice.randrange(len(value))] = choice.choice(b'"{}[],:0e9N\\a\xff')

    changed = record(bytes(value))

    assert fields_of(changed) is None or _is_event(changed)


@pytest.mark.parametrize(
    "text",
    [
        b'{"x":1e999}',
        b'{"x":[{"y":-1e999}]}',
        b'{"x":NaN}',
        b'{"x":Infinity}',
    ],
)
def test_numbers_that_json_does_not_have_are_not_accepted(text: bytes) -> None:
    value = encode(event(UserMessage(message="", structured={"place": True})))

    assert fields_of(record(value.replace(b'{"place":true}', text))) is None


def test_too_many_values_are_not_accepted() -> None:
    value = encode(event(UserMessage(message="", structured={"place": True})))
    most, too_many = (
        record(value.replace(b'{"place":true}', b'{"x":[%b]}' % b",".join([b"[]"] * count)))
        for count in (VALUES_MAX // 2 - 20, VALUES_MAX // 2)
    )

    assert fields_of(most) is not None
    assert fields_of(too_many) is None


def test_a_name_that_comes_twice_counts_as_for_the_model() -> None:
    value = encode(event(UserMessage(message="")))
    twice = record(value.replace(b'{"event_id"', b'{"event_id":"none","event_id"', 1))
    last = record(value[:-1] + b',"event_id":"none"}')

    for each in (twice, last):
        assert (fields_of(each) is not None) == _is_event(each)


@pytest.mark.parametrize(
    "headers", [(("ce_id", b"other"),), (("ce_type", b"other"),), (("ce_id", b""), ("ce_type", b""))]
)
def test_a_header_that_contradicts_leaves_the_decision_to_the_model(
    headers: tuple[tuple[str, bytes], ...],
) -> None:
    assert fields_of(record(event(UserMessage(message="")), headers=headers)) is None


def test_a_text_with_the_word_nan_is_still_an_event() -> None:
    log = [record(event(AssistantMessage(message="NaN and Infinity"), event_id=event_id(1)), 0)]

    tally = admit_all(Admission("run-1"), log)

    assert tally.counts == {"assistant_message": 1}
