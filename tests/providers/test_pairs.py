"""Conversations that change the provider: what a provider said comes back to it as it was, after
another one has answered too.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import event
from tests.provider_types import check
from tests.providers.corpus import CONVERSATION, OPENING, Found, comparable, corpus, official
from tests.providers.order_rules import assert_in_order

from runfold_projections.ledger import build_messages_from_events
from runfold_projections.providers import Encoded, encode
from runfold_schemas.events import AnyEvent, AssistantMessage, UserMessage
from runfold_schemas.messages import PROVIDERS, Provider

PAIRS = [pytest.param(first, other, id=f"{first}-{other}") for first in PROVIDERS for other in PROVIDERS]

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9).filter(str.strip)


@pytest.mark.parametrize(("first", "other"), PAIRS)
@settings(max_examples=50)
@given(data=st.data())
def test_what_a_provider_said_comes_back_after_another_one_has_answered(
    first: Provider, other: Provider, data: st.DataObject
):
    one = data.draw(cases_of(first).filter(lambda found: not is_paused(found.case.request)))
    two = data.draw(cases_of(other).filter(lambda found: found != one))
    log = [*one.log(one.record(data.draw(st.sampled_from(list(one.ways())))))]

    request = second_to(two, log, [one])
    log += [event(UserMessage(message=data.draw(WORDS)))]
    way = data.draw(st.sampled_from(list(two.ways())))
    answer = two.recorded(two.record(way, tool_names=request.tool_names), "m-2")
    log += [*answer, *two.after()]

    assert begins_with(second_to(one, log, [one, two]), one)
    assert_words_are_in(answer, second_to(one, log, [one, two]))
    assert contains_answer(second_to(two, log, [one, two]), two)


def cases_of(provider: Provider) -> st.SearchStrategy[Found]:
    cases = {found.name: found for found in corpus() if found.provider == provider}
    return st.sampled_from(sorted(cases)).map(cases.__getitem__)


def is_paused(request: Any) -> bool:
    """Whether the provider's own tool still works on its answer. Only that provider goes on with
    such a turn, and the call is left out if another one has answered.
    """
    calls: set[str] = set()
    answered: set[str] = set()
    waiting = [request]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if str(value.get("type")) in ("server_tool_use", "mcp_tool_use"):
                calls.add(value.get("id") or value.get("toolUseId"))
            elif result_of := value.get("tool_use_id") or value.get("toolUseId"):
                answered.add(result_of)
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not calls <= answered


def second_to(found: Found, log: Sequence[AnyEvent], said: Sequence[Found]) -> Encoded:
    """The log as the request of the case's provider and maker, which the package accepts."""
    options = {"maker": found.case.maker or "another", **found.case.options, "lossy": "drop"}
    request = encode(build_messages_from_events(log), found.provider, **options)
    extensions = [name for each in said for name in each.case.extensions]
    check(found.provider, official(request.body, extensions), beta=any(each.case.beta for each in said))
    assert_in_order(found.provider, request.body)
    return request


def begins_with(request: Encoded, found: Found) -> bool:
    """Whether the request begins with the one that the file expects. Its last message may have
    grown, where roles must alternate.
    """
    expected, messages = expected_messages(found), conversation(request, found)
    *before, last = expected
    return messages[: len(before)] == before and grew_from(messages[len(before)], last)


def grew_from(message: Any, last: Any) -> bool:
    longer, shorter = (each.get("content", each.get("parts")) for each in (message, last))
    if isinstance(longer, list) and isinstance(shorter, list):
        return longer[: len(shorter)] == shorter
    return bool(message == last)


def contains_answer(request: Encoded, found: Found) -> bool:
    """Whether what the file expects after its own beginning stands in the request."""
    expected, messages = expected_messages(found)[1:-1], conversation(request, found)
    if found.case.before != OPENING:
        return True
    return any(messages[at : at + len(expected)] == expected for at in range(len(messages)))


def expected_messages(found: Found) -> list[Any]:
    messages: list[Any] = found.case.request[CONVERSATION[found.provider]]
    return messages


def conversation(request: Encoded, found: Found) -> list[Any]:
    messages: list[Any] = comparable(request.body)[CONVERSATION[found.provider]]
    return messages


def assert_words_are_in(answer: Sequence[AnyEvent], request: Encoded) -> None:
    """Asserts that each text of the answer stands in the request. Speech goes back by its id."""
    body = json.dumps(comparable(request.body), ensure_ascii=False)
    for each in answer:
        said = each.data
        if isinstance(said, AssistantMessage) and said.message.strip() and '"audio"' not in body:
            assert json.dumps(said.message, ensure_ascii=False)[1:-1] in body
