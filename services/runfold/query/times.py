"""Times and spans as people write them: `2026-03-01T12:00:00Z`, or an age such as `90m`, `1h` or
`2d`.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import AwareDatetime, BeforeValidator, Field, WithJsonSchema

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN: Final = re.compile(r"(\d{1,9})([smhdw])")
_DAYS_MAX: Final = 36_500


def parse_span(text: str) -> timedelta | None:
    """The span that a text such as `90m` says. None for another text."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        return None
    return min(timedelta(**{_UNITS[match[2]]: int(match[1])}), timedelta(days=_DAYS_MAX))


def _time(value: Any) -> Any:
    span = parse_span(value) if isinstance(value, str) else value
    return datetime.now(UTC) - span if isinstance(span, timedelta) else value


def _span(value: Any) -> Any:
    span = parse_span(value) if isinstance(value, str) else None
    return value if span is None else span


_TEXT: Final = {"type": "string", "examples": ["1h", "2026-01-01T00:00:00Z"]}

Time = Annotated[AwareDatetime, BeforeValidator(_time), WithJsonSchema(_TEXT)]
"""A time, or how long ago it was: `1h`, or a `timedelta`."""

Span = Annotated[
    timedelta,
    Field(gt=timedelta(0), le=timedelta(days=_DAYS_MAX)),
    BeforeValidator(_span),
    WithJsonSchema({"type": "string", "examples": ["30m", "PT30M"]}),
]
"""A span of time: `30m`, ISO 8601, or a number of seconds."""
