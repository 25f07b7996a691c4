"""What is live of an ADK session after rewinds, compactions and speech: the ledger has what ADK
would send, by ADK's own rules.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.flows.llm_flows.contents import _get_contents
from google.genai.types import Content, FunctionCall, FunctionResponse, Part, Transcription
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import event

from runfold.adk.events import framework_event
from runfold_projections.amendments import expand_log, offset_of
from runfold_projections.ledger import build_messages_from_log
from runfold_projections.repair import repair
from runfold_schemas.events import AnyEvent, EventAmended, UserMessage
from runfold_schemas.messages import TextPart, ToolResultPart, ToolUsePart
from runfold_schemas.sessions import FrameworkEvent

AGENT = "agent"

Said = list[tuple[str, str]]
"""Roles and what they say, in their order."""


def said(text: str, invocation: str, *, by: str = "user", at: float = 0.0, **more: Any) -> Event:
    role = "user" if by == "user" else "model"
    return Event(
        author=by,
        invocation_id=invocation,
        timestamp=at,
        content=Content(role=role, parts=[Part(text=text)]),
        **more,
    )


def rewind(before: str, invocation: str, *, at: float = 0.0) -> Event:
    actions = EventActions(rewind_before_invocation_id=before)
    return Event(author="user", invocation_id=invocation, timestamp=at, actions=actions)


def compaction(text: str, start: float, end: float, *, at: float) -> Event:
    content = Content(role="model", parts=[Part(text=text)])
    actions = EventActions(
        compaction=EventCompaction(start_timestamp=start, end_timestamp=end, compacted_content=content)
    )
    return Event(author="user", invocation_id=f"c{at}", timestamp=at, actions=actions)


def speech(text: str | None, *, by: str, at: float = 0.0, invocation: str = "v") -> Event:
    pieces = {"input_transcription" if by == "user" else "output_transcription": Transcription(text=text)}
    return Event(author=by, invocation_id=invocation, timestamp=at, **pieces)


def call(name: str, id_: str, *, at: float) -> Event:
    parts = [Part(function_call=FunctionCall(id=id_, name=name, args={}))]
    return Event(author=AGENT, invocation_id="i", timestamp=at, content=Content(role="model", parts=parts))


def answer(name: str, id_: str, *, at: float) -> Event:
    parts = [Part(function_response=FunctionResponse(id=id_, name=name, response={"r": id_}))]
    return Event(author=AGENT, invocation_id="i", timestamp=at, content=Content(role="user", parts=parts))


def logged(events: Sequence[Event], *, raw: bool = False) -> list[tuple[int, AnyEvent]]:
    """The log of a session with these events, behind its opening."""
    return [(offset, event(_stored(each, raw=raw))) for offset, each in enumerate(events, start=1)]


def _stored(adk: Event, *, raw: bool) -> FrameworkEvent:
    stored = framework_event(adk, {})
    if not raw:
        return stored
    body = {"author": adk.author, "invocationId": adk.invocation_id, "rawEvent": stored.body}
    return FrameworkEvent(framework="vertex", body=body)


def sent_by_adk(events: Sequence[Event]) -> Said:
    contents = _get_contents(None, list(events), AGENT)
    return [
        (content.role or "", part.text or "")
        for content in contents
        for part in content.parts or []
        if part.text
    ]


def sent_by_runfold(log: Sequence[tuple[int, AnyEvent]]) -> Said:
    roles = {"user": "user", "assistant": "model"}
    return [
        (roles[message.role], part.text)
        for message in build_messages_from_log(log)
        for part in message.parts
        if isinstance(part, TextPart)
    ]


def texts(log: Sequence[tuple[int, AnyEvent]]) -> list[str]:
    return [text for _, text in sent_by_runfold(log)]


def test_a_rewound_turn_is_undone():
    events = [
        said("one", "i1"),
        said("two", "i2"),
        said("three", "i3"),
        rewind("i2", "r1"),
        said("four", "i4"),
    ]

    assert texts(logged(events)) == ["one", "four"] == [text for _, text in sent_by_adk(events)]
    assert texts(logged(events)[:3]) == ["one", "two", "three"]  # as of an earlier moment


def test_a_rewind_can_undo_another_one():
    events = [said("one", "i1"), said("two", "i2"), rewind("i2", "r1"), rewind("r1", "r2"), said("x", "i3")]

    assert texts(logged(events)) == ["one", "two", "x"] == [text for _, text in sent_by_adk(events)]


def test_a_rewind_to_nowhere_undoes_nothing():
    assert texts(logged([said("one", "i1"), rewind("unknown", "r1")])) == ["one"]


def test_a_summary_stands_where_the_events_were_that_it_covers():
    events = [
        said("one", "i1", at=1),
        said("two", "i1", by=AGENT, at=2),
        said("three", "i2", at=3),
        compaction("summary", 1, 2, at=4),
        said("four", "i3", at=5),
    ]

    assert texts(logged(events)) == ["summary", "three", "four"] == [text for _, text in sent_by_adk(events)]


def test_an_amended_summary_stays_amended():
    log = logged([said("one", "i1", at=1), said("two", "i1", at=2), compaction("summary", 1, 2, at=3)])
    stand_in: Any = {"type": "user_message", "data": {"message": "better"}}
    [(place, _)] = expand_log(log)

    amendment = EventAmended(offset=offset_of(place), stand_ins=(stand_in,), reason="wrong")
    amended = [*log, (4, event(amendment))]

    assert (texts(log), texts(amended)) == (["summary"], ["better"])


def test_the_call_of_a_result_that_no_summary_covers_stays():
    events = [
        said("one", "i1", at=1),
        call("slow", "f1", at=2),
        compaction("summary", 1, 2, at=3),
        answer("slow", "f1", at=4),
    ]

    parts = [part for message in build_messages_from_log(logged(events)) for part in message.parts]

    assert [part.id for part in parts if isinstance(part, ToolUsePart)] == ["f1"]
    assert [part.tool_use_id for part in parts if isinstance(part, ToolResultPart)] == ["f1"]
    assert [part.text for part in parts if isinstance(part, TextPart)] == ["summary"]


def test_speech_before_and_after_a_call_is_two_messages_also_behind_a_summary():
    events = [
        said("one", "i1", at=1),
        compaction("summary", 1, 1, at=2),
        speech("before", by=AGENT, at=3),
        call("f", "f1", at=4),
        answer("f", "f1", at=5),
        speech("after", by=AGENT, at=6),
    ]

    assert texts(logged(events)) == ["summary", "before", "after"]


def test_a_compaction_that_is_a_call_as_well_is_a_compaction():
    odd = compaction("summary", 1, 2, at=2)
    odd.content = call("slow", "f1", at=2).content

    assert texts(logged([odd, answer("slow", "f1", at=4)])) == ["summary"]


def test_speech_is_a_message_of_all_its_pieces():
    pieces = [("user", "How is "), ("user", "Lyon?"), (AGENT, "It "), (AGENT, "rains."), ("user", "Oh.")]
    events = [speech(text, by=by) for by, text in pieces]

    sent = sent_by_runfold(logged(events))

    assert sent == [("user", "How is Lyon?"), ("model", "It rains."), ("user", "Oh.")] == sent_by_adk(events)


def test_what_is_not_adks_stays_as_it_is():
    log = [*logged([said("one", "i1"), rewind("i1", "r1")])]

    assert texts([(0, event(UserMessage(message="ours"))), *log]) == ["ours"]


@pytest.mark.parametrize(
    "actions",
    [
        {"rewindBeforeInvocationId": 7},
        {"compaction": {"startTimestamp": "x", "endTimestamp": None, "compactedContent": []}},
        {"compaction": {"startTimestamp": 10**400, "endTimestamp": 1, "compactedContent": {"parts": [1]}}},
        [1],
        "actions",
    ],
)
def test_actions_of_unknown_forms_have_no_effect(actions: Any):
    odd = event(FrameworkEvent(framework="adk", body={"actions": actions, "timestamp": "now"}))

    assert texts([*logged([said("one", "i1")]), (5, odd)]) == ["one"]


INVOCATIONS = [f"i{number}" for number in range(4)]


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    events: list[Event] = []
    for number in range(draw(st.integers(1, 14))):
        at = float(number)
        invocation = draw(st.sampled_from(INVOCATIONS))
        by = draw(st.sampled_from(["user", AGENT]))
        match draw(
            st.sampled_from(["said", "said", "speech", "speech", "rewind", "compaction", "state", "blank"])
        ):
            case "said":
                events.append(said(f"s{number}", invocation, by=by, at=at))
            case "speech":
                events.append(speech(f"p{number}", by=by, at=at, invocation=invocation))
            case "blank":
                events.append(speech(draw(st.sampled_from([None, ""])), by=by, at=at, invocation=invocation))
            case "state":
                events.append(Event(author=by, invocation_id=invocation, timestamp=at))
            case "rewind":
                before = draw(st.sampled_from([*INVOCATIONS, *{each.invocation_id for each in events}]))
                events.append(rewind(before, f"r{number}", at=at))
            case _ if events:
                # ADK covers what was said before, up to one of the live events.
                start, end = sorted(draw(st.tuples(st.integers(0, number - 1), st.integers(0, number - 1))))
                events.append(compaction(f"c{number}", float(start), float(end), at=at))
    return events


@given(histories(), st.booleans())
def test_the_ledger_has_what_adk_would_send(history: list[Event], raw: bool):
    log = logged(history, raw=raw)

    assert sent_by_runfold(log) == sent_by_adk(history)


@given(histories())
def test_a_repair_of_what_is_live_ends(history: list[Event]):
    log = logged(history)

    changes = repair(log)

    appended = [*log, *((offset, event(data)) for offset, data in enumerate(changes, start=len(log) + 1))]
    assert repair(appended) == []
