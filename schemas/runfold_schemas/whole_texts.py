"""Texts without halves of surrogate pairs, which no JSON in UTF-8 can hold. A half is left of a
character outside of Unicode's first plane, for example an emoji, if a program counts its text in
UTF-16 and cuts it there. U+FFFD stands for each half then.
"""

from collections.abc import Mapping
from typing import Any


def whole(text: str) -> str:
    """`text` with split surrogate pairs joined, because streams may split them. Lone halves are
    replaced.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def whole_value(value: Any) -> Any:
    """A copy of a value of mappings, lists and tuples, in which every text is whole, the keys
    too.
    """
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, Mapping):
        return {whole_value(key): whole_value(member) for key, member in value.items()}
    if isinstance(value, list):
        return [whole_value(member) for member in value]
    return tuple(map(whole_value, value)) if isinstance(value, tuple) else value
