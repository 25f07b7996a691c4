"""Joins the deltas of a stream of Chat Completions: the values of members that Runfold has no field
for, and whole further choices.
"""

from collections.abc import Mapping
from typing import Any, Final

_PIECEWISE: Final = frozenset(
    {"text", "thinking", "summary", "data", "signature", "content", "arguments", "input", "refusal"}
    | {"reasoning", "reasoning_content", "transcript"}
)
"""The members that a stream sends in pieces. Others, for example ids, are sent whole."""

_THOUGHT: Final = frozenset({"text", "thinking", "summary"})

_NOTHING: Final[Mapping[str, Any]] = {}


def members(value: Any) -> Mapping[str, Any]:
    """The members of an SDK's object or of decoded JSON, also those that the SDK does not know."""
    if isinstance(value, dict):
        return value
    fields: Mapping[str, Any] = getattr(value, "__dict__", _NOTHING)
    extra = getattr(value, "__pydantic_extra__", None)
    if extra:
        return {**fields, **extra}
    return fields if fields or not isinstance(value, Mapping) else value


def tree(value: Any) -> Any:
    """SDK's objects as dictionaries. Texts stay as they are, because a stream may have halves of a
    character in two deltas.
    """
    if isinstance(value, Mapping) or hasattr(type(value), "model_dump"):
        return {name: tree(member) for name, member in members(value).items() if member is not None}
    return [tree(member) for member in value] if isinstance(value, list) else value


def join(old: Any, new: Any) -> Any:
    """The value of a member, from its value so far and the value in the next delta, both of `tree`.

    Texts and lists continue. Members of an object are joined by name. An item of a list continues
    the item of the same type and index, because some servers send an item in many deltas.
    """
    match old, new:
        case str(), str():
            return old + new
        case list(), list():
            return _join_lists(old, new)
        case dict(), dict():
            return {**old, **{name: _join_member(name, old.get(name), new[name]) for name in new}}
        case _:
            return new


def _join_member(name: str, old: Any, new: Any) -> Any:
    if isinstance(old, str) and name not in _PIECEWISE:
        return new or old
    return join(old, new) if old is not None else new


def _join_lists(old: list[Any], new: list[Any]) -> list[Any]:
    joined = list(old)
    for item in new:
        has_index = isinstance(item, dict) and item.get("index") is not None
        # An item without an index can only continue the last one.
        places = range(len(joined) - 1, -1 if has_index else max(len(joined) - 2, -1), -1)
        at = next((at for at in places if _continues(joined[at], item)), None)
        if at is None:
            joined.append(item)
        else:
            joined[at] = join(joined[at], item)
    return joined


def _continues(item: Any, piece: Any) -> bool:
    """Whether a piece continues the item."""
    if not isinstance(item, dict) or not isinstance(piece, dict):
        return False
    if piece.get("type", item.get("type")) != item.get("type"):
        return False
    index = piece.get("index")
    if index is not None or item.get("index") is not None:
        return bool(index == item.get("index"))
    # Thoughts without an index follow one another, and a signature ends a thought.
    return not item.get("signature") and not _THOUGHT.isdisjoint(item)
