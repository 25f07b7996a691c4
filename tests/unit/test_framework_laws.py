"""Laws of what frameworks say: any log folds, all ways of folding agree, and what is repaired is
accepted by every provider.
"""

from typing import Any

from google.genai import types
from hypothesis import example, given
from hypothesis import strategies as st
from tests.builders import event, events
from tests.framework_events import ANSWERED, ASKED, CALLED, SPOKE, adk, call, item, mended, result, text
from tests.records import modest

from runfold_projections.amendments import expand_log
from runfold_projections.exchanges import plan_results
from runfold_projections.frameworks import expand
from runfold_projections.ledger import LedgerStream, build_messages_from_events
from runfold_projections.providers import encode, validate
from runfold_projections.repair import repair
from runfold_schemas.codec import decode
from runfold_schemas.codec import encode as encode_event
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    EventAmended,
    StandIn,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.messages import PROVIDERS
from runfold_schemas.sessions import FrameworkEvent

_NAMES = """author content role parts text thought thoughtSignature functionCall functionResponse id name args
response inlineData fileData data mimeType fileUri invocationId type call_id arguments output image_url
summary error result"""

_anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["", "a", "user", "function_call", "id"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(_NAMES.split()),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@modest
@given(
    st.dictionaries(st.sampled_from(["content", "role", "type", "author", "output", "id"]), _anything),
    st.sampled_from(["adk", "openai-agents", "vertex"]),
    st.lists(_anything, max_size=3),
)
@example({}, "adk", [{"functionCall": {"name": ["look"]}}, {"functionResponse": {"name": {}}}])
def test_no_body_raises(body: dict[str, Any], framework: Any, parts: list[Any]):
    for each in (body, body | {"content": {"parts": parts}}, body | {"content": parts, "role": "user"}):
        log = events(FrameworkEvent(framework=framework, body=each))

        repair(list(enumerate(log)))
        assert all(decode(encode_event(one)) == one for one in expand(log[0]))


# Few ids, so that they repeat; events of several parts, of both frameworks and of our own.
_ids = st.sampled_from(["", "1", "2", "adk-3"])
_tool_ids = st.one_of(st.none(), _ids)
_parts = st.one_of(
    st.builds(text, st.sampled_from(["", " ", "a", "b"])),
    st.builds(call, _tool_ids, st.sampled_from(["look", "walk"])),
    st.just(types.Part(text="t", thought=True)),
    st.just(types.Part(text="t", thought=True, thought_signature=b"s")),
)
_results = st.builds(
    result, _tool_ids, st.sampled_from([{"result": 1}, {"error": "e"}, {"output": None}, {}])
)
_of_adk = st.one_of(
    st.lists(_parts, max_size=4).map(lambda parts: adk(*parts)),
    st.lists(_results, min_size=1, max_size=4).map(lambda parts: adk(*parts, role="user")),
    st.lists(_results | st.builds(text, st.sampled_from(["", " ", "a"])), max_size=3).map(
        lambda parts: adk(*parts, author="user")
    ),
)
_of_openai = st.one_of(
    st.sampled_from([ASKED, SPOKE, CALLED, ANSWERED, item(role="assistant", content="b")]),
    st.builds(
        item,
        type=st.just("function_call"),
        call_id=_ids,
        name=st.just("look"),
        arguments=st.sampled_from(["", "{}", '{"cut', "3"]),
    ),
    st.builds(item, type=st.just("function_call_output"), call_id=_ids, output=st.sampled_from(["", "r"])),
    st.builds(
        item, role=st.sampled_from(["system", "user", "assistant"]), content=st.sampled_from(["", "a"])
    ),
)
_own = st.one_of(
    st.builds(ToolCall, tool_call_id=_ids, tool_name=st.just("look"), payload=st.just({})),
    st.builds(ToolResult, tool_call_id=_ids, result=st.integers(0, 9)),
    st.builds(UserMessage, message=st.sampled_from(["", "hi"])),
    st.builds(AssistantMessage, message=st.sampled_from(["", "hi"])),
)
_amendments = st.builds(
    EventAmended,
    offset=st.integers(0, 9),
    stand_ins=st.sampled_from(
        [
            (),
            (StandIn(type="tool_result", data={"tool_call_id": "1", "result": "other"}),) * 2,
            tuple(
                StandIn(type="tool_call", data={"tool_call_id": tool_id, "tool_name": "look", "payload": {}})
                for tool_id in "12"
            ),
        ]
    ),
    reason=st.just("test"),
)
_data = st.one_of(_of_adk, _of_openai, _own)
logs = st.lists(st.builds(event, _data), max_size=10)
amended_logs = st.lists(st.builds(event, _data | _amendments), max_size=10)


@modest
@given(amended_logs)
def test_streaming_any_prefix_gives_what_building_gives(log: list[AnyEvent]):
    for end in range(len(log) + 1):
        stand = expand_log(list(enumerate(log[:end])))
        by_place = dict(stand)
        stream = LedgerStream(plan_results(stand))
        drafts = [draft for place, each in stand for draft in stream.feed(place, each)]
        drafts += stream.finish()

        messages = [draft.message({place: by_place[place] for place in draft.late}) for draft in drafts]
        assert len(by_place) == len(stand)
        assert messages == build_messages_from_events(log[:end])


@modest
@given(logs)
def test_a_framework_says_in_the_ledger_what_its_events_say(log: list[AnyEvent]):
    spelled_out = [one for each in log for one in expand(each)]

    assert build_messages_from_events(log) == build_messages_from_events(spelled_out)


@modest
@given(logs)
def test_every_prefix_that_was_repaired_is_accepted_by_every_provider(log: list[AnyEvent]):
    for end in range(len(log) + 1):
        appended, messages = mended(log[:end])
        for provider in PROVIDERS:
            faults = validate(messages, provider)
            assert [fault for fault in faults if fault.rule != "inexpressible"] == [], (provider, appended)
            encode(messages, provider, lossy="drop")
        assert repair(list(enumerate([*log[:end], *events(*appended)]))) == []
