"""Rules about the order of a request that no package's types hold: each call has its result right
behind it, roles alternate where they must, and nothing blank is sent.

The rules come from the providers' documentation and from their error messages.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from runfold_schemas.messages import Provider

Fields = dict[str, Any]


def assert_in_order(provider: Provider, body: Fields) -> None:
    """Raises if the provider would refuse the order of this request."""
    match provider:
        case "bedrock":
            _converse(body["messages"])
        case "anthropic":
            _messages(list(_merged(body["messages"])))
        case "openai-chat":
            _chat(body["messages"])
        case "openai-responses":
            _items(body["input"])
        case "gemini":
            _contents(body["contents"])


def _converse(messages: list[Fields]) -> None:
    for message in messages:
        assert message["content"], "a message without content"
        for block in message["content"]:
            assert block.get("text", "x").strip(), "a blank text"
    _begins_with_user([message["role"] for message in messages])
    assert_alternating([message["role"] for message in messages])
    calls = [_ids(message, "assistant", "toolUse", "toolUseId") for message in messages]
    results = [_ids(message, "user", "toolResult", "toolUseId") for message in messages]
    assert_answered(calls, results)


def _messages(messages: list[Fields]) -> None:
    """Messages of Anthropic, whose adjacent messages of one role the API merges."""
    _begins_with_user([message["role"] for message in messages])
    calls, results = [], []
    waiting: set[str] = set()
    for message in messages:
        blocks = message["content"]
        assert blocks, "a message without content"
        assert all(block["text"].strip() for block in blocks if block["type"] == "text"), "a blank text"
        if message["role"] == "user":
            kinds = [block["type"] == "tool_result" for block in blocks]
            assert kinds == sorted(kinds, reverse=True), "a result behind other content"
        else:
            assert any("thinking" not in block["type"] for block in blocks), "nothing but thinking"
        _take_server_blocks(message, waiting)
        calls.append([block["id"] for block in blocks if block["type"] == "tool_use"])
        results.append([block["tool_use_id"] for block in blocks if block["type"] == "tool_result"])
    assert_answered(calls, results)


def _take_server_blocks(message: Fields, waiting: set[str]) -> None:
    """A turn that goes on may answer the call of a server tool later: behind the client's results,
    or in the response to this request.
    """
    for block in message["content"]:
        kind = block["type"]
        if kind in ("server_tool_use", "mcp_tool_use"):
            waiting.add(block["id"])
        elif message["role"] == "assistant" and kind.endswith("_tool_result"):
            assert block["tool_use_id"] in waiting, "the result of a server tool without its call"
            waiting.remove(block["tool_use_id"])
        elif message["role"] == "user":
            assert not waiting or kind == "tool_result", "the call of a server tool without its result"


def _chat(messages: list[Fields]) -> None:
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting, "a result that answers no call"
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, "a call without its result"
        if message["role"] == "assistant":
            assert message["content"] is None or message["content"] != [], "an empty content"
            waiting = [call["id"] for call in message.get("tool_calls", [])]
    assert not waiting, "a call without its result"


def _items(items: list[Fields]) -> None:
    ids = [each["id"] for each in items if isinstance(each.get("id"), str)]
    assert len(ids) == len(set(ids)), "an item twice"
    for kind in ("function_call", "custom_tool_call", "apply_patch_call"):
        called = [each["call_id"] for each in items if each.get("type") == kind]
        answered = [each["call_id"] for each in items if each.get("type") == f"{kind}_output"]
        assert sorted(called) == sorted(answered), f"a {kind} without its output"
    for each, following in zip(items, [*items[1:], {}], strict=True):
        if each.get("type") == "reasoning":
            alone = following.get("role") in ("user", "system") or not following
            assert not alone, "reasoning that nothing follows"


def _contents(contents: list[Fields]) -> None:
    roles = [each["role"] for each in contents]
    _begins_with_user(roles)
    assert_alternating(roles)
    names = [
        [part["functionCall"]["name"] for part in each["parts"] if "functionCall" in part]
        for each in contents
    ]
    answers = [
        [part["functionResponse"]["name"] for part in each["parts"] if "functionResponse" in part]
        for each in contents
    ]
    assert_answered(names, answers)


def assert_alternating(roles: list[str]) -> None:
    assert all(len(list(group)) == 1 for _, group in groupby(roles)), "two messages of one role in a row"


def assert_answered(calls: list[list[str]], results: list[list[str]]) -> None:
    """Each message's calls have their results in the next message, which has no others."""
    for called, answered in zip([[], *calls], [*results, []], strict=True):
        assert sorted(called) == sorted(answered), f"calls {called} with results {answered}"


def _begins_with_user(roles: list[str]) -> None:
    assert roles[:1] in ([], ["user"]), "a conversation that the user does not begin"


def _merged(messages: list[Fields]) -> Iterator[Fields]:
    for role, group in groupby(messages, key=lambda message: message["role"]):
        yield {"role": role, "content": [block for message in group for block in message["content"]]}


def _ids(message: Fields, role: str, kind: str, member: str) -> list[str]:
    """The ids of calls or results, without those of tools that the service runs itself."""
    if message["role"] != role:
        return []
    return [
        block[kind][member] for block in message["content"] if kind in block and "type" not in block[kind]
    ]
