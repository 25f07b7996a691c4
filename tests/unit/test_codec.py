"""Event <-> bytes: what is published is what is read, and what is no event says why."""

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import event, event_id
from tests.records import ONE_OF_EACH, modest, record

from runfold_schemas.codec import (
    TYPE_OF,
    TYPES,
    check_new,
    decode,
    decode_record,
    encode,
    event_types,
    headers,
    new_event,
    parse_event,
)
from runfold_schemas.errors import InvalidEventError, UndecodableError
from runfold_schemas.events import AssistantMessage, ResponseRecorded, ToolCall, ToolResult, UserMessage
from runfold_schemas.messages import DocumentPart, ImagePart, TextPart
from runfold_schemas.outline import VALUES_MAX, Outline
from runfold_schemas.runs import RunLabeled

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(2**53, 2**200),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
labels = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)
zones = st.sampled_from((UTC, timezone(timedelta(hours=5, minutes=45)), timezone(-timedelta(hours=9))))
envelopes = st.fixed_dictionaries(
    {"event_id": st.integers(0, 2**32).map(event_id), "run_id": st.text(min_size=1, max_size=100)},
    optional={
        # The zones come after: without one, DTZ001 complains.
        "timestamp": st.datetimes(datetime(1900, 1, 1), datetime(9997, 12, 31), timezones=zones),  # noqa: DTZ001
        "turn_id": st.none() | st.text(max_size=20),
        "labels": labels,
        "message_id": st.none() | st.text(max_size=20),
        "expected_offset": st.none() | st.integers(-1, 2**63 - 1),
        "x-unknown": json_values,
    },
)
datas = st.one_of(
    st.sampled_from(ONE_OF_EACH),
    st.builds(UserMessage, message=st.text(), structured=json_values),
    st.builds(ToolCall, tool_call_id=st.text(), tool_name=st.text(), payload=json_values),
    st.builds(ToolResult, tool_call_id=st.text(), result=json_values, error=json_values),
    st.builds(lambda text, more: AssistantMessage(message=text, **{"x-more": more}), st.text(), json_values),
)


def test_there_is_an_example_of_every_kind():
    assert {TYPE_OF[type(data)] for data in ONE_OF_EACH} == TYPES


@pytest.mark.parametrize("data", ONE_OF_EACH, ids=lambda data: TYPE_OF[type(data)])
def test_every_kind_comes_back_as_it_was(data):
    one = event(data)

    assert decode(encode(one)) == one
    assert type(decode(encode(one)).data) is type(data)


@modest
@given(datas, envelopes)
def test_decoding_undoes_encoding(data, envelope):
    one = event(data, **envelope)

    value = encode(one)

    assert decode(value) == one
    assert encode(decode(value)) == value


@pytest.mark.parametrize(
    "payload",
    [
        2**63,
        -(10**40),
        0.1,
        5e-324,
        1.7976931348623157e308,
        1.0,
        "\0 \u2028 \U0001f9ea e\u0301 \x7f",
        {"": None, "$set": 1, "a.b": 2, "\0": 3},
        [[], {}, [[{}]], True, False, None],
    ],
)
def test_a_payload_keeps_its_exact_value_and_type(payload):
    value = encode(event(ToolCall(tool_call_id="1", tool_name="t", payload=payload)))

    assert repr(decode(value).data.payload) == repr(payload)
    assert repr(json.loads(value)["data"]["payload"]) == repr(payload)


@pytest.mark.parametrize(
    "data",
    [
        UserMessage(message="x", parts=(TextPart(text="x"), ImagePart(url="https://example.com/x.png"))),
        UserMessage(message="x", parts=(DocumentPart(url="s3://bucket/x.pdf"),)),
        ToolResult(tool_call_id="c", tool_name="n", attachments=(DocumentPart(url="https://example.com/x"),)),
    ],
)
def test_parts_that_are_made_without_their_type_come_back_as_they_were(data):
    made = event(data)

    assert decode(encode(made)) == made


def test_what_was_not_said_is_not_in_the_bytes():
    value = json.loads(encode(event(UserMessage(message="hi"))))

    assert set(value) == {"type", "event_id", "run_id", "timestamp", "data"}
    assert value["data"] == {"message": "hi"}


def test_unknown_fields_of_a_newer_writer_are_kept():
    fields = json.loads(encode(event(UserMessage(message="hi"))))
    fields["tenant"] = {"deep": [2**70, "é"]}
    fields["data"]["tone"] = "friendly"

    read = decode(json.dumps(fields).encode())

    assert json.loads(encode(read)) == fields


def nested(depth: int) -> list:
    inner: list = []
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (math.nan, "finite numbers"),
        ([-math.inf], "finite numbers"),
        ((1, 2), "use lists"),
        ({"a": {1: "one"}}, "string keys"),
        ({None: 1}, "string keys"),
        (b"bytes", "would change"),
        (Decimal("1.5"), "would change"),
        (datetime(2026, 1, 1, tzinfo=UTC), "would change"),
        ({1, 2}, "would change"),
        (object(), "not JSON"),
        ("\ud800", "surrogates"),
        ({"\udfff": 1}, "surrogates"),
        (nested(250), "recursion limit"),
        (nested(100_000), "depth"),
        (10**5000, "number out of range"),
    ],
    ids=lambda each: each if isinstance(each, str) and each.isascii() else type(each).__name__,
)
def test_what_json_cannot_carry_exactly_is_refused_before_it_is_sent(payload, reason):
    one = event(ToolCall(tool_call_id="1", tool_name="t", payload=payload))

    with pytest.raises(InvalidEventError, match=reason) as refusal:
        encode(one)

    assert refusal.value.field == "data"
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("item", [b"1", b"[]", b'{"k":"[,"}'])
def test_an_event_with_more_values_than_can_be_decoded_at_once_is_none(item: bytes):
    empty = encode(event(ToolCall(tool_call_id="1", tool_name="t", payload=[])))
    outline = Outline()
    outline.feed(item)
    whole = Outline()
    whole.feed(empty)
    count = (VALUES_MAX - whole.values + 1) // (outline.values + 1)
    most, too_many = (
        empty.replace(b'"payload":[]', b'"payload":[%b]' % b",".join([item] * number))
        for number in (count, count + 1)
    )

    assert len(decode(most).data.payload) == count
    check_new(most)
    with pytest.raises(UndecodableError, match="200,000 values"):
        decode(too_many)
    with pytest.raises(InvalidEventError, match="200,000 values") as refused:
        check_new(too_many)
    assert refused.value.field == "data"


@pytest.mark.parametrize("number", [b"NaN", b"[-Infinity]", b'{"a":Infinity}'])
def test_numbers_that_json_does_not_have_are_no_event(number):
    value = encode(event(ToolCall(tool_call_id="1", tool_name="t", payload=0)))

    with pytest.raises(UndecodableError, match="Invalid JSON"):
        decode(value.replace(b'"payload":0', b'"payload":' + number))


@pytest.mark.parametrize("number", [b"1e999", b"-1E+400", b'[{"a":[1e309]}]', b"1" * 400 + b".0"])
@pytest.mark.parametrize(
    "place",
    [
        b'"data":{"tool_call_id":"1","tool_name":"t","payload":%b}',
        b'"data":{"tool_call_id":"1","tool_name":"t","unknown":%b}',
        b'"data":{"tool_call_id":"1","tool_name":"t"},"unknown":%b',
    ],
)
def test_numbers_that_no_float_can_be_are_no_event(number, place):
    value = encode(event(ToolCall(tool_call_id="1", tool_name="t")))
    data = b'"data":{"tool_call_id":"1","tool_name":"t"}'
    assert data in value

    with pytest.raises(UndecodableError, match="larger than a float can be"):
        decode(value.replace(data, place % number))


def test_a_part_of_a_part_holds_no_infinite_number_either():
    part = {"type": "text", "text": "x", "provider_data": {"bedrock": {"a": [123456.5]}}}
    value = encode(event(UserMessage(message="x", parts=(TextPart.model_validate(part),))))
    assert decode(value)

    with pytest.raises(UndecodableError, match="larger than a float can be"):
        decode(value.replace(b"123456.5", b"1e999"))


def test_numbers_of_any_form_that_a_float_can_be_are_taken():
    value = encode(event(ToolCall(tool_call_id="1", tool_name="t", payload=0)))
    numbers = b"[1e308,1E-999,-0.0," + b"1" * 400 + b',{"e999":"1e999"}]'

    assert decode(value.replace(b'"payload":0', b'"payload":' + numbers)).data.payload[-1] == {
        "e999": "1e999"
    }


@pytest.mark.parametrize(
    ("data", "envelope", "field"),
    [
        ({}, {"turn_id": "t" * 201}, "turn_id"),
        ({}, {"message_id": "m" * 1001}, "message_id"),
        ({}, {"labels": {str(number): "" for number in range(65)}}, "labels"),
        ({}, {"labels": {"k": "v" * 513}}, "labels.k"),
        ({"labels": {"k" * 65: "v"}}, {}, f"data.labels.{'k' * 64}.[key]"),
        ({"labels": {"k" * 3_500_000: "v"}}, {}, f"data.labels.{'k' * 64}.[key]"),
        ({"labels": {"k": "v" * 3_500_000}}, {}, "data.labels.k"),
    ],
    ids=range(7),
)
def test_what_would_swell_a_run_record_is_refused_by_its_field(data, envelope, field):
    fields = json.loads(encode(event(RunLabeled(labels={}))))
    fields["data"] |= data
    fields |= envelope

    with pytest.raises(InvalidEventError) as refusal:
        parse_event(fields)
    with pytest.raises(UndecodableError):
        decode(json.dumps(fields).encode())

    assert refusal.value.field == field
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    ("time", "is_one"),
    [
        ("9997-12-31T23:59:59.999999Z", True),
        ("9997-12-31T23:59:59.999999-12:00", False),
        ("9999-12-31T23:59:59-12:00", False),
        ("0001-01-02T00:00:00Z", True),
        ("0001-01-01T00:00:00+14:00", False),
    ],
)
def test_a_time_is_so_far_from_the_calendars_ends_that_it_can_be_reckoned_with(time, is_one):
    memory = {"fact": "likes tea", "scope": {"user": "ann"}}
    created = {"bank_id": "b", "memory_id": "m", "memory": memory | {"expires_at": time}}
    fields = json.loads(encode(event(UserMessage(message="hi"))))
    for said in (fields | {"timestamp": time}, fields | {"type": "memory_created", "data": created}):
        if is_one:
            decode(json.dumps(said).encode())
        else:
            with pytest.raises(UndecodableError, match="between the years"):
                decode(json.dumps(said).encode())


def test_labels_and_ids_may_be_as_long_as_their_bounds():
    labels = {str(number).ljust(64, "é"): "é" * 512 for number in range(64)}
    one = event(RunLabeled(labels=labels), labels=labels, turn_id="é" * 200, message_id="é" * 1000)

    assert decode(encode(one)) == one


def test_the_words_nan_and_infinity_may_be_said():
    one = event(UserMessage(message="NaN, -Infinity", structured={"Infinity": ["NaN"]}))

    assert decode(encode(one)) == one


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no value"),
        (b"", "Invalid JSON: EOF"),
        (b"{", "Invalid JSON"),
        (b"[]", "should be an object"),
        (b"\xff\xfe", "Invalid JSON"),
        (b'"\\ud800"', "Invalid JSON"),
        (b"[" * 100_000, "recursion limit"),
    ],
)
def test_bytes_that_are_no_event_say_why(value, reason):
    with pytest.raises(UndecodableError, match=reason) as fault:
        decode(value)

    assert fault.value.reason == str(fault.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"type": "dream"}, "Input tag 'dream' found using 'type'"),
        ({"type": None}, ".*'type'"),
        ({"schema_version": 2}, "schema_version: Input should be 1"),
        ({"event_id": "7"}, "event_id: "),
        ({"event_id": event_id(1) + "\n"}, "event_id: "),
        ({"event_id": "0198C0DE-0000-7000-8000-000000000000"}, "event_id: "),
        ({"run_id": ""}, "run_id: "),
        ({"run_id": "x" * 101}, "run_id: "),
        ({"timestamp": "2026-01-01T00:00:00"}, "timestamp: .*timezone"),
        ({"labels": {"a": 1}}, "labels.a: Input should be a valid string"),
        ({"labels": {"thinking": 1}}, "labels.thinking: Input should be a valid string"),
        ({"expected_offset": -2}, "expected_offset: "),
        ({"data": {}}, "data.message: Field required"),
        ({"data": {"message": 5}}, "data.message: Input should be a valid string"),
        ({"data": "hi"}, "data: "),
        ({"type": "thinking", "data": {"redacted": "not base64!"}}, "data.redacted: "),
        ({"type": "token_usage", "data": {"input_tokens": -1}}, "data.input_tokens: "),
        ({"type": "token_usage", "data": {"input_tokens": 2**63}}, "data.input_tokens: "),
        (
            {"type": "run_opened", "data": {"agent_id": "a", "log_id": "l", "status": "paused"}},
            "data.status: ",
        ),
        ({"type": "phase_changed", "data": {"phase": "dreaming"}}, "data.phase: "),
    ],
)
def test_an_event_that_breaks_the_contract_is_refused_with_the_field(change, reason):
    fields = json.loads(encode(event(UserMessage(message="hi")))) | change

    with pytest.raises(UndecodableError, match=f"^{reason}"):
        decode(json.dumps(fields).encode())
    with pytest.raises(InvalidEventError) as refusal:
        parse_event(fields)
    assert str(refusal.value).startswith(refusal.value.field)


@pytest.mark.parametrize("field", ["event_id", "run_id", "timestamp", "data"])
def test_a_missing_field_is_named(field):
    fields = json.loads(encode(event(UserMessage(message="hi"))))
    del fields[field]

    with pytest.raises(UndecodableError, match=f"^{field}: Field required$"):
        decode(json.dumps(fields).encode())


def test_a_fault_of_a_new_event_names_its_dotted_path():
    with pytest.raises(InvalidEventError) as refusal:
        parse_event({"type": "run_labeled", "data": {"labels": {"tool_call": 1}}} | base())

    assert refusal.value.field == "data.labels.tool_call"


@pytest.mark.parametrize("change", [{"event_id": "x"}, {"turn_id": 5}, {"expected_offset": "soon"}])
def test_a_wrong_envelope_of_a_new_event_is_named(change):
    with pytest.raises(InvalidEventError) as refusal:
        new_event(UserMessage(message="hi"), **(base() | change))

    assert refusal.value.field == next(iter(change))


def test_a_reason_is_one_line_of_bearable_length_however_long_the_fault():
    fields = base() | {"type": "long\n" * 1_000_000, "data": {}}
    foreign = record(event(UserMessage(message="hi")), headers=(("ce_id", b"\0" * 1_000_000),))

    for decoding in (lambda: decode(json.dumps(fields).encode()), lambda: decode_record(foreign)):
        with pytest.raises(UndecodableError) as fault:
            decoding()
        assert len(fault.value.reason) <= 1000
        assert len(fault.value.reason.splitlines()) == 1


def test_headers_repeat_the_envelope_as_cloudevents():
    one = event(UserMessage(message="hi"), timestamp="2026-01-01T00:00:00.000001+02:00")

    assert dict(headers(one, source="runfold/test")) == {
        "ce_specversion": b"1.0",
        "ce_id": one.event_id.encode(),
        "ce_type": b"user_message",
        "ce_source": b"runfold/test",
        "ce_time": b"2026-01-01T00:00:00.000001+02:00",
        "content-type": b"application/json",
    }


@pytest.mark.parametrize(
    "given_headers", [(), (("ce_type", None),), (("traceparent", b"00-1"), ("ce_other", b"x"))]
)
def test_a_record_without_routing_headers_or_with_more_is_read(given_headers):
    one = event(UserMessage(message="hi"))

    assert decode_record(record(one, headers=given_headers)) == one
    assert decode_record(record(one, headers=(*given_headers, *headers(one, source="x")))) == one


@pytest.mark.parametrize("wrong", [("ce_id", event_id(1).encode()), ("ce_type", b"thinking")])
def test_headers_that_contradict_the_event_make_it_undecodable(wrong):
    one = event(UserMessage(message="hi"))

    with pytest.raises(UndecodableError, match=f"header {wrong[0]} "):
        decode_record(record(one, headers=(*headers(one, source="x"), wrong)))


def test_names_of_kinds_are_checked_together():
    assert event_types(["thinking", "tool_call", "thinking"]) == {"thinking", "tool_call"}

    with pytest.raises(
        InvalidEventError, match="unknown event type 'dream'; the types are assistant_message, "
    ):
        event_types(["thinking", "dream"])


def base() -> dict:
    return {"event_id": event_id(1), "run_id": "run-1", "timestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize("name", ["response_id", "provider_data", "next_request"])
def test_a_field_that_an_earlier_version_did_not_know_makes_no_event_of_it_invalid(name):
    value = encode(event(ResponseRecorded(model="m"), provider="gemini"))
    document = json.loads(value)
    document["data"][name] = 7
    document["maker"] = [7]

    decoded = decode(json.dumps(document).encode())

    assert getattr(decoded.data, name) is None
    assert decoded.maker is None
