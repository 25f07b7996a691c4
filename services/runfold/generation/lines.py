"""What is read as data by a model: lines of JSON, each one thing."""

import json
from typing import Any, Final

_ENDINGS: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "\u0085\u2028\u2029"}
"""Signs that end a line for some readers, and that JSON leaves as they are."""


def line(said: Any) -> str:
    """One thing as a line of JSON. No text can leave its line, so none can look like a part of what
    stands around it.
    """
    return json.dumps(said, ensure_ascii=False).translate(_ENDINGS)
