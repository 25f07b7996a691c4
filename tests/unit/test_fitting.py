"""A ledger that is fitted to a budget: what is left out, what a summary replaces, and what never
changes.
"""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import event
from tests.fitted import LETTERS, Log, fitted, log, step, texts, turn, turns
from tests.ledgers import ledgers, wild_ledgers
from tests.records import modest

from runfold_projections.budget import Budget, Fitted
from runfold_projections.fitting import HEADING, Conversation, fit, place_messages
from runfold_projections.message_tokens import ESTIMATE, IMAGE_TOKENS, count_message
from runfold_projections.providers import validate
from runfold_schemas.codec import decode, encode
from runfold_schemas.data import Data
from runfold_schemas.errors import BudgetExceededError
from runfold_schemas.events import (
    AssistantMessage,
    EventAmended,
    ProviderPart,
    SystemMessage,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.messages import (
    PROVIDERS,
    DocumentPart,
    ImagePart,
    Message,
    Provider,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)
from runfold_schemas.summaries import Summary


def test_a_ledger_within_its_budget_stays_whole():
    whole = fitted(log(SystemMessage(message="Be kind."), *turn(0), *turn(1)), 1000)

    assert texts(whole.messages) == ["Be kind.", *turns(0, 1)]
    assert whole.tokens == 12 + 100
    assert whole.counted_by == "letters"
    assert (whole.left_out, whole.end_offset) == ([], None)


def test_a_longer_ledger_keeps_its_instructions_and_its_last_turns():
    entries = log(SystemMessage(message="Be kind."), *turn(0), *turn(1), *turn(2), *turn(3))

    cut = fitted(entries, 200)

    assert texts(cut.messages) == ["Be kind.", *turns(2, 3)]
    assert cut.tokens == 112
    assert texts(cut.left_out) == turns(0, 1)
    assert cut.end_offset == 5


def test_the_cut_stays_until_the_budget_is_exceeded_again():
    entries = log(*(data for number in range(12) for data in turn(number)))
    requests = [texts(fitted(entries[: 2 * count], 300).messages) for count in range(1, 13)]
    begins = [request[0] for request in requests]

    assert begins == ["q0"] * 6 + ["q3"] * 3 + ["q6"] * 3
    assert all(
        after[: len(before)] == before for before, after in pairwise(requests) if before[0] == after[0]
    )


def test_a_long_answer_to_the_last_question_loses_its_beginning_and_keeps_the_question():
    entries = log(
        *turn(0), UserMessage(message="Do it"), *(data for number in range(9) for data in step(number))
    )

    cut = fitted(entries, 300)

    assert texts(cut.messages) == ["Do it"]
    assert [
        part.id for message in cut.messages for part in message.parts if isinstance(part, ToolUsePart)
    ] == [
        part.tool_use_id
        for message in cut.messages
        for part in message.parts
        if isinstance(part, ToolResultPart)
    ]
    assert cut.messages[-1].parts[0].tool_use_id == "c8"
    assert validate(cut.messages, "anthropic") == []
    assert texts(cut.left_out) == ["q0", "a0", "Do it"]


def test_a_long_answer_is_cut_rather_than_left_out_whole():
    steps = [data for number in range(9) for data in step(number)]
    entries = log(UserMessage(message="Do it"), *steps, *turn(1), *turn(2))

    cut = fitted(entries, 600)

    assert texts(cut.messages) == ["Do it", *turns(1, 2)]
    assert 180 <= cut.tokens <= 360 + 50


def test_thinking_stays_with_its_calls():
    def thoughtful(number: int) -> list[tuple[Data, dict[str, Any]]]:
        said = {"provider": "anthropic", "message_id": f"m{number}"}
        call, result = step(number)
        return [
            (Thinking(text="hm", signature="c2ln", final=True), said),
            (call, said),
            (result, {}),
        ]

    entries = log(UserMessage(message="Do it"), *(data for number in range(9) for data in thoughtful(number)))

    cut = fitted(entries, 300)

    assert len(cut.messages) < 19
    assert validate(cut.messages, "bedrock", thinking=True) == []


def test_an_answer_that_begins_with_thinking_does_so_in_each_request():
    said: dict[str, Any] = {"provider": "anthropic", "message_id": "m0"}
    thinking = (Thinking(text="hm", signature="c2ln", final=True), said)
    call, result = step(0)
    steps = [data for number in range(1, 9) for data in step(number)]
    entries = log(UserMessage(message="Do it"), thinking, (call, said), (result, {}), *steps)

    cut = fitted(entries, 300)

    assert len(cut.messages) < 17
    assert cut.messages[:3] == place_messages(entries).messages[:3]
    assert validate(cut.messages, "anthropic", thinking=True) == []


def test_the_last_exchange_is_never_left_out():
    entries = log(SystemMessage(message="Be kind."), *turn(0), *turn(1, length=500))

    with pytest.raises(BudgetExceededError, match=r"have 5\d\d tokens") as refused:
        fitted(entries, 100)

    assert (refused.value.budget, refused.value.counted_by) == (100, "letters")
    assert refused.value.tokens > 500


def test_a_message_that_is_too_long_is_left_out_when_it_is_not_the_last():
    entries = log(*turn(0), *turn(1, length=500), *turn(2))

    assert texts(fitted(entries, 100).messages) == turns(2)


def test_a_summary_takes_the_place_of_what_it_covers():
    entries = log(SystemMessage(message="Be kind."), *turn(0), *turn(1), *turn(2), *turn(3))
    due = fitted(entries, 200)
    assert due.end_offset == 5

    entries = [*entries, (9, event(Summary(text="They met.", end_offset=due.end_offset)))]
    cut = fitted(entries, 200)

    assert texts(cut.messages) == ["Be kind.", f"{HEADING}\nThey met.", *turns(2, 3)]
    assert (cut.left_out, cut.end_offset) == ([], None)
    assert texts(place_messages(entries).messages) == ["Be kind.", *turns(0, 1, 2, 3)]


def test_a_summary_is_not_used_while_everything_fits():
    entries = [*log(*turn(0), *turn(1)), (4, event(Summary(text="They met.", end_offset=2)))]

    assert texts(fitted(entries, 1000).messages) == turns(0, 1)


def test_what_follows_a_summary_is_summarized_together_with_it():
    entries = log(*(data for number in range(4) for data in turn(number)), Summary(text="Old.", end_offset=4))
    more = log(*(data for number in range(4, 10) for data in turn(number)))
    entries += [(9 + offset, event) for offset, event in more]

    cut = fitted(entries, 260)

    assert texts(cut.messages)[0] == f"{HEADING}\nOld."
    assert texts(cut.left_out)[:2] == [f"{HEADING}\nOld.", "q2"]
    assert (
        cut.end_offset
        == {f"q{number}": 9 + 2 * (number - 4) for number in range(4, 10)}[texts(cut.messages)[1]]
    )


def test_a_later_summary_that_covers_less_is_not_used():
    entries = log(
        *turn(0),
        *turn(1),
        *turn(2),
        Summary(text="Much.", end_offset=4),
        Summary(text="Little.", end_offset=2),
    )

    assert texts(fitted(entries, 120).messages) == [f"{HEADING}\nMuch.", "q2", "a2"]


def test_a_summary_covers_nothing_that_follows_it():
    entries = log(*turn(0), *turn(1), Summary(text="All.", end_offset=2**40), *turn(2))

    assert texts(fitted(entries, 120).messages) == [f"{HEADING}\nAll.", *turns(2)]


def test_a_summary_of_what_nobody_has_seen_hides_no_other():
    entries = log(*turn(0), *turn(1), Summary(text="Wrong.", end_offset=99_999), *turn(2))
    right = [(7, event(Summary(text="Right.", end_offset=2)))]
    again = [(8, event(Summary(text="Wrong again.", end_offset=99_999)))]

    assert texts(fitted([*entries, *right], 120).messages) == [f"{HEADING}\nRight.", *turns(2)]
    assert texts(fitted([*entries, *right], 120).left_out) == [f"{HEADING}\nRight.", *turns(1)]
    assert fitted([*entries, *right, *again], 120) == fitted([*entries, *right], 120)


def test_a_summary_can_be_amended_away():
    entries = log(*turn(0), *turn(1), *turn(2), Summary(text="Wrong.", end_offset=4))
    entries.append((7, event(EventAmended(offset=6, reason="wrong"))))

    assert texts(fitted(entries, 120).messages) == turns(2)


@pytest.mark.parametrize(
    ("provider", "block"),
    [
        ("anthropic", {"type": "compaction", "content": "They met."}),
        ("openai-responses", {"type": "compaction", "id": "cmp_1", "encrypted_content": "c2Vj"}),
    ],
)
def test_what_precedes_the_providers_own_compaction_is_left_out(provider: Provider, block: dict[str, str]):
    said = {"provider": provider, "message_id": "m"}
    compacted = [(ProviderPart(content=block), said), (AssistantMessage(message="So."), said)]
    entries = log(*turn(0), *turn(1), UserMessage(message="go on"), *compacted, *turn(2))

    cut = fitted(entries, 10_000, provider)
    foreign = fitted(entries, 10_000, "bedrock")

    assert texts(cut.messages) == ["go on", "So.", *turns(2)]
    assert (cut.left_out, cut.end_offset) == ([], None)
    assert texts(foreign.messages) == [*turns(0, 1), "go on", "So.", *turns(2)]


def test_a_compaction_of_another_maker_replaces_nothing():
    said = {"provider": "openai-responses", "maker": "openai", "message_id": "m"}
    block = ProviderPart(content={"type": "compaction", "encrypted_content": "c2Vj"})
    entries = log(
        *turn(0), UserMessage(message="go on"), (block, said), (AssistantMessage(message="So."), said)
    )
    conversation = place_messages(entries)

    ours, theirs = (
        fit(conversation, Budget(tokens=1000), "openai-responses", LETTERS, maker=maker)
        for maker in ("OpenAI", "api.groq.com")
    )

    assert texts(ours.messages) == ["go on", "So."]
    assert texts(theirs.messages) == [*turns(0), "go on", "So."]


def test_a_compaction_that_failed_replaces_nothing():
    failed = (
        ProviderPart(content={"type": "compaction", "content": None}),
        {"provider": "anthropic", "message_id": "m"},
    )

    assert texts(fitted(log(*turn(0), failed, *turn(1)), 10_000).messages) == turns(0, 1)


def test_messages_that_no_log_holds_are_always_kept():
    conversation = place_messages(log(*turn(0), *turn(1)))
    conversation.add([Message(role="user", parts=(TextPart(text="now"),))], (0, 4))

    cut = fit(conversation, Budget(tokens=60), "anthropic", LETTERS)

    assert texts(cut.messages)[-1] == "now"


def test_a_session_is_fitted_as_one_conversation():
    conversation = place_messages(log(*turn(0), *turn(1)))
    place_messages(log(*turn(2), *turn(3)), run_index=1, onto=conversation)

    cut = fit(conversation, Budget(tokens=120), "anthropic", LETTERS)

    assert texts(cut.messages) == turns(2, 3)
    assert (cut.run_index, cut.end_offset) == (1, 0)
    assert cut.run_indexes == [1] * len(cut.messages)


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"tokens": 1, "cut_to": 0}, {"tokens": 1, "cut_to": 1.1}])
def test_a_budget_without_a_meaning_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match=r"budget|cut_to"):
        Budget(**wrong)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Conversations with tools, late and missing results, streams, and summaries of any range."""
    entries: list[tuple[Data, dict[str, Any]]] = []
    open_calls: list[str] = []
    for number in range(draw(st.integers(0, 25))):
        said = {"provider": "anthropic", "message_id": f"m{number}"} if draw(st.booleans()) else {}
        match draw(
            st.sampled_from(["user", "text", "call", "call", "calls", "result", "late", "summary", "system"])
        ):
            case "user":
                entries.append((UserMessage(message="u" * draw(st.integers(0, 30))), {}))
            case "text":
                entries.append((AssistantMessage(message="t" * draw(st.integers(0, 60))), said))
            case "call" | "calls":
                if said:
                    entries.append((Thinking(text="hm", signature="c2ln", final=True), said))
                for call in range(draw(st.integers(1, 2))):
                    open_calls.append(f"c{number}-{call}")
                    entries.append((ToolCall(tool_call_id=open_calls[-1], tool_name="t", payload={}), said))
                if draw(st.booleans()):
                    entries += [(ToolResult(tool_call_id=call_id, result="r"), {}) for call_id in open_calls]
                    open_calls.clear()
            case "result":
                entries += [(ToolResult(tool_call_id=call_id, result="r" * 20), {}) for call_id in open_calls]
                open_calls.clear()
            case "late" if open_calls:
                entries.append((ToolResult(tool_call_id=open_calls.pop(0), result="late"), {}))
            case "summary":
                end = draw(st.integers(0, len(entries) + 3))
                entries.append((Summary(text="s" * draw(st.integers(1, 30)), end_offset=end), {}))
            case "system":
                entries.append((SystemMessage(message="be kind"), {}))
    return log(*entries)


budgets = st.builds(Budget, tokens=st.integers(40, 400), cut_to=st.sampled_from([0.3, 0.6, 1.0]))


def fit_or_none(conversation: Conversation, budget: Budget, provider: Provider) -> Fitted | None:
    try:
        return fit(conversation, budget, provider, LETTERS)
    except BudgetExceededError as error:
        assert error.tokens > budget.tokens  # noqa: PT017  # else the error is wrong
        return None


@modest
@given(logs(), budgets, st.sampled_from(PROVIDERS), st.booleans())
def test_a_fitted_ledger_has_no_fault_that_the_whole_had_not(
    entries: Log, budget: Budget, provider: Provider, thinking: bool
):
    conversation = place_messages(entries)
    cut = fit_or_none(conversation, budget, provider)
    if cut is None:
        return
    whole, left = (
        Counter((fault.rule, fault.tool_use_id) for fault in validate(messages, provider, thinking=thinking))
        for messages in (conversation.messages, cut.messages)
    )

    assert left - whole == Counter()


@modest
@given(logs(), budgets, st.sampled_from(PROVIDERS))
def test_a_fitted_ledger_keeps_its_budget_and_is_the_end_of_the_whole(
    entries: Log, budget: Budget, provider: Provider
):
    conversation = place_messages(entries)
    cut = fit_or_none(conversation, budget, provider)
    if cut is None:
        return
    counted = sum(count_message(message, provider, LETTERS) for message in cut.messages)
    rest = [message for message in cut.messages if not _is_summary(message)]

    assert counted == cut.tokens <= budget.tokens
    assert conversation.messages[-1:] == rest[-1:]
    assert _is_subsequence(rest, conversation.messages)
    assert bool(cut.left_out) == (cut.end_offset is not None)


@modest
@given(logs(), budgets)
def test_a_summary_of_what_was_left_out_leaves_nothing_to_summarize(entries: Log, budget: Budget):
    cut = fit_or_none(place_messages(entries), budget, "anthropic")
    if cut is None or cut.end_offset is None:
        return
    made = (len(entries), event(Summary(text="s", end_offset=cut.end_offset)))

    again = fit_or_none(place_messages([*entries, made]), budget, "anthropic")

    if again is not None and any(map(_is_summary, again.messages)):
        assert again.left_out == [] or again.end_offset > cut.end_offset
        assert f"{HEADING}\ns" in texts(again.messages)


@modest
@given(logs(), budgets)
def test_a_replay_fits_the_same(entries: Log, budget: Budget):
    replayed = [(offset, decode(encode(event))) for offset, event in entries]

    assert fit_or_none(place_messages(replayed), budget, "anthropic") == fit_or_none(
        place_messages(entries), budget, "anthropic"
    )


@modest
@given(st.lists(st.integers(1, 3), min_size=3, max_size=12), st.integers(100, 500))
def test_a_growing_request_begins_with_the_request_before_until_a_cut(steps: list[int], tokens: int):
    """Each turn is a question and some calls with their results, and every step is a request."""
    entries: list[Data] = [SystemMessage(message="Be kind.")]
    requests: list[Fitted] = []
    for number, count in enumerate(steps):
        entries.append(UserMessage(message=f"question {number}"))
        for call in range(count):
            requests.append(fitted(log(*entries), tokens))
            entries += step(100 * number + call)
        entries.append(AssistantMessage(message="done"))

    moves = [
        after.messages[: len(before.messages)] != before.messages for before, after in pairwise(requests)
    ]
    lengths = [len(request.left_out) for request in requests]

    for moved, (before, after) in zip(moves, pairwise(lengths), strict=True):
        assert after > before if moved else after >= before


@modest
@given(st.lists(st.integers(0, 3), min_size=3, max_size=12), st.integers(250, 500), st.integers(1, 40))
def test_the_beginning_changes_with_a_cut_or_a_summary_only(steps: list[int], tokens: int, length: int):
    """The caller summarizes whatever is left out before it sends a request."""
    entries: list[Data] = []
    requests: list[Fitted] = []
    changes: list[bool] = []
    for number, count in enumerate(steps):
        entries.append(UserMessage(message=f"question {number}"))
        for call in range(count):
            entries += step(100 * number + call)
        due = fitted(log(*entries), tokens)
        if due.end_offset is not None:
            entries.append(Summary(text="s" * length, end_offset=due.end_offset))
        requests.append(fitted(log(*entries), tokens))
        changes.append(due.end_offset is not None)
        entries.append(AssistantMessage(message="done"))

    for (before, after), changed in zip(pairwise(requests), changes[1:], strict=True):
        assert changed or after.messages[: len(before.messages)] == before.messages


@modest
@given(ledgers | wild_ledgers, budgets, st.sampled_from(PROVIDERS))
def test_any_messages_are_fitted_or_refused(messages: list[Message], budget: Budget, provider: Provider):
    conversation = Conversation()
    for index, message in enumerate(messages):
        conversation.add([message], (0, index))

    cut = fit_or_none(conversation, budget, provider)

    assert cut is None or _is_subsequence(cut.messages, messages)


def test_media_count_as_what_providers_count_at_most():
    image = Message(role="user", parts=(ImagePart(url="https://example.com/a.png"),))
    text = Message(role="user", parts=(DocumentPart(media_type="text/plain", data="YWJj" * 100),))

    assert count_message(image, "anthropic", ESTIMATE) == 4 + IMAGE_TOKENS
    assert count_message(text, "anthropic", ESTIMATE) == 4 + 100


def test_an_estimate_counts_bytes():
    assert [ESTIMATE.count(text) for text in ("", "a", "abcd", "日本", "\ud83d")] == [0, 1, 2, 2, 1]


def _is_summary(message: Message) -> bool:
    part = message.parts[0] if message.parts else None
    return isinstance(part, TextPart) and part.text.startswith(HEADING)


def _is_subsequence(messages: list[Message], of: list[Message]) -> bool:
    remaining = iter(of)
    return all(any(message == each for each in remaining) for message in messages)
