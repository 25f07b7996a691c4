"""Reads the values of responses, which are objects of an SDK or decoded JSON."""

import math
import re
from base64 import b64encode
from collections.abc import Container, Mapping
from functools import lru_cache
from typing import Any, Final

from runfold_schemas.messages import BASE64_PATTERN, TextPart
from runfold_schemas.outline import Outline
from runfold_schemas.whole_texts import whole

_BASE64: Final = re.compile(BASE64_PATTERN)

_DEPTH_MAX: Final = 120
"""How deep a value may be nested. An event holds 160 levels, and some of them are around a value.
"""

_NOTHING: Final[Mapping[str, Any]] = {}


def get(value: Any, *names: str) -> Any:
    """The first of these members that is present and not null, of an SDK's object or of decoded
    JSON.
    """
    # Every chunk of a stream passes here, and both pydantic's own lookup and a test for `Mapping`
    # are slow.
    members = value if isinstance(value, dict) else getattr(value, "__dict__", _NOTHING)
    for name in names:
        member = members.get(name)
        if member is None and members is not value and name not in members:
            member = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if member is not None:
            return member
    return None


def plain(value: Any, *, depth: int = 0) -> Any:
    """An SDK's object as decoded JSON that an event can hold. Bytes become base64, and what is
    nested too deep becomes a text.
    """
    # The class is asked, because a mock of a test has every attribute.
    if hasattr(type(value), "model_dump"):
        # An SDK puts unknown data into fields of other types, of which pydantic would warn.
        dumped = value.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
        return plain(dumped, depth=depth)
    match value:
        case Mapping() | list() | tuple() if depth == _DEPTH_MAX:
            return f"(nested in more than {_DEPTH_MAX} levels)"
        case Mapping():
            return {whole(str(name)): plain(member, depth=depth + 1) for name, member in value.items()}
        case list() | tuple():
            return [plain(member, depth=depth + 1) for member in value]
        case str():
            return whole(value)
        case bytes() | bytearray():
            return b64encode(value).decode()
        case float() if not math.isfinite(value):
            return str(value)
        case int() | float() | None:
            return value
        case _:
            return whole(str(value))


def others(value: Any, without: Container[str]) -> dict[str, Any]:
    """The members of an SDK's object or of decoded JSON that are not named and not null, as decoded
    JSON. Members of an SDK's object that its class does not declare are among them.
    """
    if isinstance(value, Mapping):
        members = value
    else:
        members = {
            **getattr(value, "__dict__", _NOTHING),
            **(getattr(value, "__pydantic_extra__", None) or {}),
        }
    named = ((str(name), member) for name, member in members.items() if member is not None)
    return {
        whole(name): plain(member)
        for name, member in named
        if name not in without and not name.startswith("_")
    }


@lru_cache(maxsize=200)
def camel_case(name: str) -> str:
    """A name in snake_case as providers write names in JSON."""
    first, *words = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in words)


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a mapping. Anything else has no members."""
    return value if isinstance(value, Mapping) else _NOTHING


def string(value: Any) -> str:
    """`value` if it is a text. Anything else is empty."""
    return value if isinstance(value, str) else ""


def items(value: Any) -> list[Any]:
    """`value` if it is a list. Anything else is empty."""
    return value if isinstance(value, list) else []


def is_blank(text: str) -> bool:
    """Whether the text has no visible character."""
    return not text or text.isspace()


def is_blank_part(part: object) -> bool:
    """Whether the part is a blank text, which providers refuse and encoders omit."""
    return isinstance(part, TextPart) and is_blank(part.text)


def is_base64(value: Any) -> bool:
    """Whether `value` is base64 in the form that events accept."""
    return isinstance(value, str) and _BASE64.fullmatch(value) is not None


def is_deep(text: bytes) -> bool:
    """Whether JSON text is nested deeper than an event can hold."""
    outline = Outline()
    outline.feed(text)
    return outline.depth_max > _DEPTH_MAX
