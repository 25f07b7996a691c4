"""Events that are decoded for a ledger alone have all that the ledger needs of the whole events."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import event
from tests.histories.test_histories import every_history, expected, read
from tests.records import ONE_OF_EACH, admit, modest

from runfold.api.app import build_app
from runfold.settings import Settings
from runfold_projections.amendments import EXPANDED_TYPES, expand_events, replacements_of
from runfold_projections.exchanges import plan_results
from runfold_projections.ledger import LedgerStream, build_messages_from_log
from runfold_schemas import ledger_events
from runfold_schemas.codec import Record, decode, encode
from runfold_schemas.errors import UndecodableError
from runfold_schemas.events import AnyEvent, ToolCall, UserMessage
from runfold_schemas.ledger_events import (
    LedgerEvent,
    decode_for_ledger,
    tool_event,
    tool_events,
    whole_event,
)

NEEDED = ("type", "data", "message_id", "provider", "maker")

envelopes = st.fixed_dictionaries(
    {},
    optional={
        "turn_id": st.none() | st.text(max_size=20),
        "message_id": st.none() | st.text(max_size=20),
        "provider": st.none() | st.sampled_from(("anthropic", "gemini")),
        "maker": st.none() | st.sampled_from(("deepseek", "api.groq.com")),
        "x-unknown": st.integers(),
    },
)


def needed(of: LedgerEvent) -> list[object]:
    return [getattr(of, name) for name in NEEDED]


@modest
@given(st.lists(st.sampled_from(ONE_OF_EACH).map(event), max_size=20))
def test_every_kind_is_read_as_from_the_whole_event(log):
    values = [encode(one) for one in log]

    assert list(map(needed, decode_for_ledger(values))) == [needed(decode(value)) for value in values]


@modest
@given(st.sampled_from(ONE_OF_EACH), envelopes)
def test_the_envelope_has_what_a_ledger_needs(data, envelope):
    value = encode(event(data, **envelope))

    [read_event] = decode_for_ledger([value])

    assert needed(read_event) == needed(decode(value))
    assert read_event.type not in EXPANDED_TYPES or whole_event(read_event) == decode(value)


@pytest.mark.parametrize(
    "changes",
    [
        {"maker": 7},
        {"data": {"message": "hi", "content_index": "3"}},
        {"data": {"message": "hi", "content_index": 3.0, "refusal": "yes"}},
        {"data": {"message": "hi", "blobs": "none"}},
        {"data": {"message": "hi", "citations": [{"url": "https://a.example", "start": "1"}]}},
        {"labels": {}, "turn_id": "t" * 200},
    ],
    ids=str,
)
def test_values_of_another_form_are_read_alike(changes):
    fields = json.loads(encode(event(UserMessage(message="hi"))))
    value = json.dumps(fields | {"type": "assistant_message"} | changes).encode()

    assert needed(decode_for_ledger([value])[0]) == needed(decode(value))


def test_an_event_as_deep_as_can_be_is_read():
    nested: object = 0
    for _ in range(196):
        nested = [nested]
    value = json.dumps(
        json.loads(encode(event(ToolCall(tool_call_id="c", tool_name="t", payload=1))))
        | {"data": {"tool_call_id": "c", "tool_name": "t", "payload": nested}}
    ).encode()

    assert needed(decode_for_ledger([value])[0]) == needed(decode(value))


def test_a_value_that_has_changed_since_is_refused():
    with pytest.raises(UndecodableError):
        decode_for_ledger([b'{"type": "user_message"}'])


@every_history
def test_a_history_has_the_ledger_of_its_whole_events(history):
    admitted = [
        one for one in admit(read(history), expected(history)["run"]["run_id"]) if one.counts and one.event
    ]
    log = [(one.record.offset, one.event) for one in admitted if one.event]
    replacements = replacements_of(log)
    excerpts = decode_for_ledger([one.record.value or b"" for one in admitted])
    events: list[tuple[int, LedgerEvent]] = [
        (offset, whole if offset in replacements else excerpt)
        for (offset, whole), excerpt in zip(log, excerpts, strict=True)
    ]

    expanded = list(expand_events(events, replacements))
    stream = LedgerStream(plan_results(expanded))
    drafts = [draft for place, one in expanded for draft in stream.feed(place, one)]
    messages = [draft.message(dict(expanded)) for draft in [*drafts, *stream.finish()]]

    assert messages == build_messages_from_log(log)


def test_excerpts_are_not_taken_for_whole_events():
    [excerpt] = decode_for_ledger([encode(event(UserMessage(message="hi")))])

    assert not isinstance(excerpt, AnyEvent)
    with pytest.raises(AssertionError):
        whole_event(excerpt)


@modest
@given(st.lists(st.sampled_from(ONE_OF_EACH).map(event), max_size=20))
def test_calls_and_results_are_found_among_all_kinds(log):
    records = [Record(offset, 0, None, (), encode(one)) for offset, one in enumerate(log)]

    expected_tools = [tool_event(offset, one) for offset, one in enumerate(log)]

    assert tool_events(records) == [tool for tool in expected_tools if tool is not None]


@pytest.mark.parametrize("text", ["tool_", "a text", "\\u0074ool_", "with tool_call_id in it"])
def test_texts_about_tools_are_no_tool_events(text):
    one = event(UserMessage(message=text))

    assert tool_events([Record(0, 0, None, (), encode(one))]) == []


def test_a_tool_event_is_found_whose_type_is_written_with_escapes():
    value = encode(event(ToolCall(tool_call_id="c", tool_name="t"))).replace(b"tool_", b"t\\u006fol\\u005f")

    assert b"tool_" not in value
    assert decode(value).type == "tool_call"
    assert tool_events([Record(3, 0, None, (), value)]) == [(3, True, "c")]


def test_a_service_is_prepared_for_its_first_ledger():
    for made_once in (ledger_events._adapter, ledger_events._tool_validator):
        made_once.cache_clear()

    build_app(Settings())

    assert ledger_events._adapter.cache_info().currsize == 1
    assert ledger_events._tool_validator.cache_info().currsize == 1
