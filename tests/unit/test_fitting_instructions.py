"""Instructions within a conversation that is fitted to a budget: a quarter of the budget is for the
newest ones before the cut.
"""

from tests.fitted import LETTERS, fitted, log, step, texts, turn, turns

from runfold_projections.budget import Budget
from runfold_projections.fitting import Conversation, fit, place_messages
from runfold_projections.message_tokens import count_message
from runfold_schemas.events import SystemMessage, UserMessage


def test_instructions_within_the_conversation_stay():
    rules = SystemMessage(message="Ask before you delete.")
    entries = log(SystemMessage(message="Be kind."), *turn(0), rules, *turn(1), *turn(2), *turn(3))

    cut = fitted(entries, 200)

    assert texts(cut.messages) == ["Be kind.", "Ask before you delete.", *turns(3)]
    assert [message.role for message in cut.messages[:2]] == ["system", "system"]
    assert cut.tokens == sum(count_message(message, "anthropic", LETTERS) for message in cut.messages)
    assert texts(cut.left_out) == turns(0, 1, 2)


def test_instructions_stay_before_and_after_the_question_that_is_cut():
    entries = log(
        *turn(0),
        SystemMessage(message="early"),
        UserMessage(message="Do it"),
        SystemMessage(message="late"),
        *(data for number in range(9) for data in step(number)),
    )

    assert texts(fitted(entries, 300).messages) == ["early", "Do it", "late"]


def test_instructions_that_are_repeated_stay_once():
    conversation = Conversation()
    for run in range(6):
        place_messages(log(SystemMessage(message="Be kind."), *turn(run)), run_index=run, onto=conversation)

    cut = fit(conversation, Budget(tokens=150), "anthropic", LETTERS)

    assert texts(cut.messages) == ["Be kind.", "q4", "a4", "Be kind.", "q5", "a5"]


def test_instructions_take_a_quarter_of_the_budget_and_the_newest_stay():
    entries = log(
        *(data for number in range(9) for data in (SystemMessage(message=f"context {number}"), *turn(number)))
    )

    cut = fitted(entries, 240)

    older = [f"context {number}" for number in (0, 4, 5, 6, 7)]
    assert texts(cut.messages) == [*older, *turns(7), "context 8", *turns(8)]
    assert "context 1" in texts(cut.left_out)
    assert "context 4" not in texts(cut.left_out)


def test_the_last_exchange_is_worth_more_than_older_instructions():
    entries = log(*turn(0), SystemMessage(message="r" * 40), *turn(1), UserMessage(message="q" * 190))

    cut = fitted(entries, 200)

    assert texts(cut.messages) == ["q" * 190]
    assert "r" * 40 in texts(cut.left_out)
