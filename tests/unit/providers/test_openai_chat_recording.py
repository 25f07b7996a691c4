"""Responses of Chat Completions, whole and streamed, as events whose ledger gives back the same
messages.
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.openai_ledgers import any_json, ledger_of, split

from runfold_projections.providers import openai_chat
from runfold_schemas.events import (
    AssistantMessage,
    ProviderPart,
    ResponseRecorded,
    ToolCall,
)
from runfold_schemas.messages import Message
from runfold_schemas.usage import TokenUsage

Chat = dict[str, Any]


def function(tool_id="call_1", name="look", arguments="{}") -> Chat:
    return {"id": tool_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def completion(**said: Any) -> Chat:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": None, **said},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 4,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 5},
        },
    }


def record(response: Any) -> list[Any]:
    return list(openai_chat.ChatRecorder({}).response(response))


def again(response: Any) -> Chat:
    """What the response's message is in the next request."""
    (said,) = chats(*ledger_of(record(response), "openai-chat"))
    return said


def chats(*messages: Message) -> list[Chat]:
    return openai_chat.encode(messages, {"lossy": "refuse"}).body["messages"]


def faults(events: list[Any]) -> tuple[str, ...]:
    assert isinstance(events[-1], ResponseRecorded)
    return events[-1].faults


@pytest.mark.parametrize(
    "said",
    [
        {"content": "Hi"},
        {"content": "I look.", "tool_calls": [function(), function("call_2", arguments='{"n":  1}')]},
        {"tool_calls": [function(arguments="{broken")]},
        {"tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}]},
        {"refusal": "I must not."},
        {"content": "4", "reasoning_content": "2 + 2"},
        {
            "content": "4",
            "reasoning": "2 + 2",
            "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}],
        },
        {"content": "", "reasoning_content": "cut"},
        {"content": "x", "vendor": {"id": 1}},
        {"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "4"}]},
        {"vendor": "only this", "content": ""},
    ],
)
@pytest.mark.parametrize("as_object", [False, True])
def test_what_a_response_said_goes_back_as_it_was(said, as_object):
    response = completion(**said)

    assert again(ChatCompletion.construct(**response) if as_object else response) == {
        "role": "assistant",
        "content": None,
        **said,
    }


def test_speech_is_kept_as_its_words_and_goes_back_by_its_id():
    response = completion(audio={"id": "audio_1", "data": "UklGRg==", "expires_at": 2, "transcript": "Hi"})

    (said,) = ledger_of(record(response), "openai-chat")

    assert said.parts[0].text == "Hi"
    assert chats(said) == [{"role": "assistant", "content": None, "audio": {"id": "audio_1"}}]


def test_annotations_are_kept_and_not_sent():
    response = completion(content="As they say", annotations=[{"type": "url_citation", "url_citation": {}}])

    assert record(response)[0].provider_data == {
        "openai-chat": {"annotations": response["choices"][0]["message"]["annotations"]}
    }
    assert again(response) == {"role": "assistant", "content": "As they say"}


def test_usage_model_and_stop_reason_are_recorded():
    recorder = openai_chat.ChatRecorder({})

    *_, usage, end = recorder.response(ChatCompletion.construct(**completion(content="Hi")))

    assert recorder.blocks.response_id == "chatcmpl-1"
    assert usage == TokenUsage(model="gpt-5", input_tokens=9, output_tokens=4, cache_read_tokens=5)
    assert end == ResponseRecorded(model="gpt-5", stop_reason="stop", response_id="chatcmpl-1")


def test_an_id_that_no_event_can_carry_is_a_fault_and_no_id():
    recorder = openai_chat.ChatRecorder({})

    *_, end = recorder.response({**completion(content="Hi"), "id": "x" * 1001})

    assert recorder.blocks.response_id is None
    assert end.faults == ("the response's id has more than 1000 characters",)


def test_names_lead_back_to_the_ledgers_own():
    recorder = openai_chat.ChatRecorder({"files_read": "files.read"})

    called, *_ = recorder.response(completion(tool_calls=[function(name="files_read")]))

    assert called.tool_name == "files.read"


def test_a_function_call_of_the_old_form_is_a_call_with_an_id():
    called, *rest = record(completion(function_call={"name": "look", "arguments": '{"n":1}'}))

    assert (called.tool_name, called.payload, bool(called.tool_call_id)) == ("look", {"n": 1}, True)
    assert faults(rest) == ()


def test_further_choices_are_kept_beside_the_first():
    response = completion(content="first")
    further = {"index": 1, "message": {"role": "assistant", "content": "second"}, "finish_reason": "stop"}
    response["choices"].append({**further, "logprobs": None})

    said, *rest = record(response)

    assert said.message == "first"
    assert faults(rest) == ()
    assert rest[-1].provider_data == {"openai-chat": {"choices": [further]}}


def test_an_answer_that_is_none_is_a_fault():
    events = record({"error": {"message": "overloaded"}})

    assert faults(events) == ("the server broke off: overloaded",)
    assert not events[-1].finished


@pytest.mark.parametrize(
    "said",
    [
        {"content": 7},
        {"tool_calls": "none"},
        {"tool_calls": [{"id": 7, "function": {"name": None, "arguments": "{}"}}]},
        {"tool_calls": [function(), function()]},
        {"tool_calls": [function(arguments='{"a": NaN}')]},
    ],
)
def test_wrong_types_and_broken_arguments_are_faults(said):
    assert faults(record(completion(**said)))


def chunk(delta: Chat, finish_reason: str | None = None, **members: Any) -> Chat:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "gpt-5",
        "choices": [choice],
        **members,
    }


def chunks(said: Chat, size: int) -> list[Chat]:
    """The response as a stream: first the role, then pieces of `size` characters, last the
    usage.
    """
    deltas: list[Chat] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning_content", "content", "refusal"):
        deltas += [{name: piece} for piece in split(said.get(name) or "", size)]
    for index, one in enumerate(said.get("tool_calls") or ()):
        called = one["function"]
        deltas.append({"tool_calls": [{**one, "index": index, "function": {**called, "arguments": ""}}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in split(called["arguments"], size)
        ]
    usage = completion()["usage"]
    return [*map(chunk, deltas), chunk({}, "stop"), {**chunk({}), "choices": [], "usage": usage}]


def feed(stream: list[Any], *, finished: bool = True) -> list[Any]:
    recorder = openai_chat.ChatRecorder({})
    return [data for one in stream for data in recorder.feed(one)] + recorder.blocks.end(finished=finished)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "reasoning_content": st.text(min_size=1),
            "content": st.text(min_size=1),
            "refusal": st.text(min_size=1),
            "tool_calls": st.lists(
                st.builds(
                    function,
                    tool_id=st.uuids().map(str),
                    arguments=st.sampled_from(['{"city":  "Köln 🙂"}', "{}", "{broken", ""]),
                ),
                min_size=1,
                max_size=3,
            ),
        },
    ),
    st.integers(1, 9),
    st.booleans(),
)
def test_a_stream_gives_the_events_of_the_whole_response(said, size, as_objects):
    stream = chunks(said, size)

    events = feed([ChatCompletionChunk.construct(**one) for one in stream] if as_objects else stream)

    assert events == record(completion(**said))


def test_calls_that_come_by_turns_and_before_the_text_are_put_in_order():
    def piece(index: int, arguments: str, **begun: Any) -> Chat:
        said = {"arguments": arguments} | ({"name": "look"} if begun else {})
        return chunk({"tool_calls": [{"index": index, "function": said, **begun}]})

    stream = [
        piece(0, '{"n"', id="a"),
        piece(1, '{"m"', id="b"),
        piece(0, ":1}"),
        chunk({"content": "Hi"}),
        piece(1, ":2}"),
    ]

    said, *calls = feed([*stream, chunk({}, "tool_calls")])[:3]

    assert said.message == "Hi"
    assert [one.payload for one in calls] == [{"n": 1}, {"m": 2}]


IDS: dict[str, list[Chat]] = {
    "of their own": [{"id": "a"}, {"id": "b"}],
    "empty": [{"id": ""}, {"id": ""}],
    "null": [{"id": None}, {"id": None}],
    "absent": [{}, {}],
    "of the first alone": [{"id": "a"}, {}],
    "of the second alone": [{"id": ""}, {"id": "b"}],
}
INDEXES: dict[str, list[Chat]] = {
    "right": [{"index": 0}, {"index": 1}],
    "equal": [{"index": 0}, {"index": 0}],
    "null": [{"index": None}, {"index": None}],
    "absent": [{}, {}],
}
PIECES = {
    "one": [["{}"], ['{"file": "a.txt"}']],
    "several": [['{"fi', 'le": "b.txt"}'], ['{"file": ', '"a.txt"}']],
}


def calls_of(events: list[Any]) -> list[tuple[str, Any]]:
    calls = [event for event in events if isinstance(event, ToolCall)]
    assert len({call.tool_call_id for call in calls}) == len(calls)
    return [(call.tool_name, call.payload) for call in calls]


@pytest.mark.parametrize("names", [("read", "delete"), ("read", "read")])
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("indexes", INDEXES)
def test_calls_of_a_whole_answer_are_as_many_as_it_has(names, ids, indexes):
    calls = [
        {"type": "function", "function": {"name": name, "arguments": arguments}} | id_ | index
        for name, arguments, id_, index in zip(
            names, ["{}", '{"file": "a.txt"}'], IDS[ids], INDEXES[indexes], strict=True
        )
    ]

    events = record(completion(tool_calls=calls))

    assert calls_of(events) == [(names[0], {}), (names[1], {"file": "a.txt"})]


@pytest.mark.parametrize("names", [("read", "delete"), ("read", "read")])
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("indexes", INDEXES)
@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("repeats", [False, True], ids=["a name once", "a name in each piece"])
def test_calls_of_a_stream_are_as_many_as_began(names, ids, indexes, pieces, repeats):
    deltas = [
        {"function": ({"name": name} if repeats or not number else {}) | {"arguments": piece}}
        | index
        | (id_ if not number else {})
        for name, of_call, id_, index in zip(names, PIECES[pieces], IDS[ids], INDEXES[indexes], strict=True)
        for number, piece in enumerate(of_call)
    ]

    events = feed([*(chunk({"tool_calls": [delta]}) for delta in deltas), chunk({}, "tool_calls")])

    expected = [json.loads("".join(of_call)) for of_call in PIECES[pieces]]
    assert calls_of(events) == list(zip(names, expected, strict=True))


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("indexes", INDEXES)
def test_calls_in_one_chunk_are_apart(ids, indexes):
    calls = [
        {"function": {"name": "read", "arguments": "{}"}} | id_ | index
        for id_, index in zip(IDS[ids], INDEXES[indexes], strict=True)
    ]

    events = feed([chunk({"tool_calls": calls}), chunk({}, "tool_calls")])

    assert calls_of(events) == [("read", {})] * 2


def test_a_stream_that_breaks_off_in_a_call_leaves_its_text_and_no_call():
    stream = chunks({"content": "I look.", "tool_calls": [function(arguments='{"city": "Köln"}')]}, 4)[:-4]

    said, part, end = feed(stream)

    assert said == AssistantMessage(message="I look.", content_index=0)
    assert isinstance(part, ProviderPart)
    assert not part.finished
    assert not end.finished
    (left,) = ledger_of([said, part, end], "openai-chat")
    assert chats(left) == [{"role": "assistant", "content": "I look."}]


def test_an_error_within_a_stream_is_a_fault():
    events = feed([chunk({"content": "Hi"}), {"error": {"message": "gone"}, "choices": []}])

    assert faults(events) == ("the server broke off: gone",)
    assert not events[-1].finished


NAMES = [
    "id",
    "model",
    "choices",
    "index",
    "delta",
    "message",
    "finish_reason",
    "usage",
    "prompt_tokens",
    "prompt_tokens_details",
    "cached_tokens",
    "error",
    "role",
    "content",
    "type",
    "text",
    "refusal",
    "reasoning",
    "reasoning_content",
    "tool_calls",
    "function",
    "custom",
    "name",
    "arguments",
    "input",
    "function_call",
    "audio",
    "transcript",
    "annotations",
    "vendor",
]


@given(any_json(NAMES, ["text", "refusal", "custom", "stop", "assistant"]))
def test_no_response_raises_and_every_event_goes_into_the_log(said):
    ledger_of(record(said), "openai-chat")
    events = record({"choices": [{"message": said, "finish_reason": "stop"}]})

    messages = ledger_of(events, "openai-chat")

    json.dumps(openai_chat.encode(messages, {"lossy": "drop"}).body)


@given(st.lists(any_json(NAMES, ["text", "custom", "stop", 0]), max_size=4), st.booleans())
def test_no_stream_raises_and_every_event_goes_into_the_log(deltas, finished):
    stream = [*deltas, *(chunk(delta) for delta in deltas)]

    ledger_of(feed(stream, finished=finished), "openai-chat")


def test_it_knows_its_own():
    assert openai_chat.recognizes(ChatCompletion.construct(**completion(content="Hi")))
    assert openai_chat.recognizes(ChatCompletionChunk.construct(**chunk({"content": "Hi"})))
    assert openai_chat.recognizes({"object": "", "choices": [], "prompt_filter_results": []})
    assert not openai_chat.recognizes({"object": "response", "output": []})
    assert not openai_chat.recognizes({"candidates": []})
