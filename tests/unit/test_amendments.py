"""What is amended stands otherwise in the ledger, and what is repaired is accepted by every
provider.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import event, events
from tests.provider_types import check
from tests.records import modest

from runfold_projections.ledger import build_messages_from_events
from runfold_projections.providers import encode, validate
from runfold_projections.repair import BEGINNING, INTERRUPTED, repair
from runfold_schemas.data import Data
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    EventAmended,
    PlannerNote,
    ProviderPart,
    ResponseRecorded,
    StandIn,
    SystemMessage,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.messages import PROVIDERS, Message

ASKED = UserMessage(message="Is there a train?")
CALLED = ToolCall(tool_call_id="c", tool_name="trains", payload={"to": "Lyon"})


def ledger(*data: Data) -> list[Message]:
    return build_messages_from_events(events(*data))


def instead(offset: int, *data: Data) -> EventAmended:
    kinds = {UserMessage: "user_message", AssistantMessage: "assistant_message", ToolCall: "tool_call"}
    stand_ins = tuple(
        StandIn(type=kinds[type(one)], data=one.model_dump(exclude_unset=True))  # type: ignore[arg-type]
        for one in data
    )
    return EventAmended(offset=offset, stand_ins=stand_ins, reason="test")


def test_an_event_that_nothing_stands_for_is_left_out():
    assert ledger(ASKED, AssistantMessage(message="wrong"), instead(1)) == ledger(ASKED)


def test_what_stands_for_an_event_is_in_its_place():
    other = AssistantMessage(message="right")

    assert ledger(
        ASKED, AssistantMessage(message="wrong"), UserMessage(message="?"), instead(1, other)
    ) == ledger(ASKED, other, UserMessage(message="?"))


def test_an_event_may_stand_as_several():
    said = AssistantMessage(message="Hello.")

    assert ledger(said, instead(0, ASKED, said)) == ledger(ASKED, said)


def test_the_last_amendment_of_an_event_counts():
    wrong, right = AssistantMessage(message="wrong"), AssistantMessage(message="right")

    assert ledger(ASKED, wrong, instead(1), instead(1, right)) == ledger(ASKED, right)
    assert ledger(ASKED, wrong, instead(1, right), instead(1)) == ledger(ASKED)


def test_an_amendment_is_no_event_that_can_be_amended():
    assert ledger(ASKED, instead(0), instead(1, ASKED)) == []


def test_results_find_the_calls_that_remain():
    # Without the amendment the result belongs to the second call.
    calls = [CALLED, AssistantMessage(message="?"), CALLED]

    assert ledger(ASKED, *calls, ToolResult(tool_call_id="c", result=1), instead(3)) == ledger(
        ASKED, CALLED, AssistantMessage(message="?"), ToolResult(tool_call_id="c", result=1)
    )


def test_a_stand_in_says_what_its_kind_can_say():
    with pytest.raises(ValueError, match="message"):
        StandIn(type="user_message", data={"text": "hi"})


def mended(log: list[AnyEvent]) -> tuple[list[Data], list[Message]]:
    appended = repair(list(enumerate(log)))
    return appended, build_messages_from_events([*log, *events(*appended)])


def test_a_call_without_a_result_gets_one_that_says_so():
    appended, messages = mended(events(ASKED, CALLED))

    assert appended == [ToolResult(tool_call_id="c", tool_name="trains", error=INTERRUPTED)]
    assert messages == ledger(ASKED, CALLED, *appended)


def test_half_of_a_parallel_batch_keeps_the_result_that_came():
    other = CALLED.model_copy(update={"tool_call_id": "d"})
    came = ToolResult(tool_call_id="d", result="07:04")

    appended, messages = mended(events(ASKED, CALLED, other, came))

    assert appended == [ToolResult(tool_call_id="c", tool_name="trains", error=INTERRUPTED)]
    assert messages == ledger(ASKED, CALLED, other, came, *appended)


def test_arguments_that_were_cut_off_become_an_object_that_holds_them():
    cut = CALLED.model_copy(update={"payload": '{"to": "Ly'})

    appended, messages = mended(events(ASKED, cut))

    whole = cut.model_copy(update={"payload": {"arguments": '{"to": "Ly'}})
    assert messages == ledger(
        ASKED, whole, ToolResult(tool_call_id="c", tool_name="trains", error=INTERRUPTED)
    )
    assert [type(data) for data in appended] == [EventAmended, ToolResult]


def test_thinking_that_nothing_followed_is_left_out():
    thought = Thinking(text="Trains.", signature="s", final=True)

    _, messages = mended(events(ASKED, thought))

    assert messages == ledger(ASKED)
    assert mended(events(ASKED, thought, AssistantMessage(message="Yes.")))[0] == []


def test_a_conversation_that_the_assistant_begins_gets_a_beginning():
    said = AssistantMessage(message="Hello.")

    _, messages = mended(events(SystemMessage(message="Be kind."), said, ASKED))

    assert messages == ledger(SystemMessage(message="Be kind."), UserMessage(message=BEGINNING), said, ASKED)


def test_instructions_within_the_conversation_stay_for_the_models_that_take_them():
    log = events(ASKED, SystemMessage(message="Be short."))

    assert mended(log) == ([], ledger(ASKED, SystemMessage(message="Be short.")))


def test_a_result_that_no_call_waits_for_is_left_out():
    assert mended(events(ASKED, ToolResult(tool_call_id="x", result=1)))[1] == ledger(ASKED)
    assert mended(events(ASKED, ToolResult(tool_call_id="", result=1)))[1] == ledger(ASKED)


def test_an_id_that_stands_twice_in_a_message_is_told_apart():
    came = [ToolResult(tool_call_id="c", result=number) for number in (1, 2)]
    log = events(ASKED, CALLED, came[0], CALLED, came[1], message_id="m")

    appended, messages = mended(log)

    other = {"tool_call_id": "c-2"}
    second = [CALLED.model_copy(update=other), came[1].model_copy(update=other)]
    assert messages == ledger(ASKED, CALLED, second[0], came[0], second[1])
    assert [type(data) for data in appended] == [EventAmended, EventAmended]


def test_two_calls_of_one_id_in_a_message_keep_both_their_results():
    """Parallel calls of one id: their results follow both calls."""
    came = [ToolResult(tool_call_id="c", result=number) for number in (1, 2)]

    _, messages = mended(events(ASKED, CALLED, CALLED, *came, message_id="m"))

    other = {"tool_call_id": "c-2"}
    assert messages == ledger(
        ASKED, CALLED, CALLED.model_copy(update=other), came[0], came[1].model_copy(update=other)
    )


def test_of_two_calls_of_one_id_a_result_belongs_to_its_tool():
    buses = CALLED.model_copy(update={"tool_name": "buses"})
    came = ToolResult(tool_call_id="c", tool_name="buses", result=1)

    _, messages = mended(events(ASKED, CALLED, buses, came, message_id="m"))

    results = {part.tool_use_id: part.content for part in messages[-1].parts}
    assert results == {"c": {"error": INTERRUPTED}, "c-2": 1}


def test_a_call_whose_id_another_message_uses_again_is_kept():
    came = ToolResult(tool_call_id="c", result=1)

    _, messages = mended(events(ASKED, CALLED, UserMessage(message="?"), CALLED, came))

    assert [part.id for message in messages for part in message.parts if part.type == "tool_use"] == [
        "c-2",
        "c",
    ]
    assert [part.content for message in messages for part in message.parts if part.type == "tool_result"] == [
        {"error": INTERRUPTED},
        1,
    ]


def test_calls_without_ids_get_some_and_their_results_too():
    call, came = CALLED.model_copy(update={"tool_call_id": ""}), ToolResult(tool_call_id="", result=1)

    _, messages = mended(events(ASKED, call, call, came))

    assert [part.id for part in messages[1].parts] == ["call-2", "call-3"]
    assert [(part.tool_use_id, part.content) for part in messages[2].parts] == [
        ("call-2", 1),
        ("call-3", {"error": INTERRUPTED}),
    ]


def test_a_ledger_that_is_right_is_left_as_it_is():
    assert repair(list(enumerate(events(ASKED, CALLED, ToolResult(tool_call_id="c", result=1))))) == []
    assert repair([]) == []


# Few ids and texts, so that they repeat; blank, cut and missing ones among them.
_texts = st.sampled_from(["", " ", "a", "b\n"])
_ids = st.sampled_from(["", "1", "2", "an id: with signs", "x" * 70])
_data = st.one_of(
    st.builds(AssistantMessage, message=_texts, content_index=st.sampled_from([None, 0, 1])),
    st.builds(Thinking, text=_texts, signature=_texts, redacted=st.sampled_from([None, "AAEC"])),
    st.builds(
        ToolCall,
        tool_call_id=_ids,
        tool_name=st.sampled_from(["search", "a tool", ""]),
        payload=st.sampled_from([{}, {"a": 1}, '{"cut', None, 3, [1]]),
    ),
    st.builds(
        ToolResult,
        tool_call_id=_ids,
        result=st.sampled_from([None, "", "text", {"a": [1]}, 3, []]),
        error=st.sampled_from([None, "", "e", False]),
    ),
    st.builds(UserMessage, message=_texts),
    st.builds(SystemMessage, message=_texts),
    st.builds(PlannerNote, note=_texts),
    st.builds(ProviderPart, content=st.just({"type": "new"}), finished=st.just(False)),
    st.just(ResponseRecorded(finished=False)),
)
logs = st.lists(st.builds(event, _data, message_id=st.sampled_from([None, None, "m", "n"])), max_size=14)


@modest
@given(logs)
def test_every_prefix_of_a_run_that_was_repaired_is_accepted_by_every_provider(log):
    for end in range(len(log) + 1):
        appended, messages = mended(log[:end])
        thinks = any(part.type == "thinking" for message in messages for part in message.parts)
        for provider in PROVIDERS:
            faults = validate(messages, provider)
            # Thinking is for whom it was signed: that, and nothing else, may be left to the caller
            # to drop.
            assert {fault.rule for fault in faults} <= {"inexpressible"}, appended
            blamed = [messages[fault.message_index].parts[fault.part_index].type for fault in faults]
            assert set(blamed) <= {"thinking"}, (provider, appended)
            request = encode(messages, provider, lossy="drop" if thinks else "refuse")
            if request.body.get("messages") or request.body.get("contents") or request.body.get("input"):
                check(provider, request.body)


@modest
@given(logs)
def test_a_repaired_run_needs_no_repair(log):
    appended, _ = mended(log)

    assert repair(list(enumerate([*log, *events(*appended)]))) == []
