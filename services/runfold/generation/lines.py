"""Texts that a model reads as data: lines of JSON, one value a line."""

import json
from typing import Any, Final

_ENDINGS: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "\u0085\u2028\u2029"}
"""Signs that some readers take for the end of a line, and that JSON does not escape."""


def line(value: Any) -> str:
    """The value as a line of JSON. A text in it cannot contain a line break, so it cannot look like
    a part of the instructions around it.
    """
    return json.dumps(value, ensure_ascii=False).translate(_ENDINGS)
