"""Times and spans as people write them: `2026-03-01T12:00:00Z`, `2026-03-01`, `@1772366400`, or an
age such as `90m`, `1h` or `2d`.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import AwareDatetime, BeforeValidator, Field, WithJsonSchema

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN: Final = re.compile(r"(\d{1,9})([smhdw])")
_DAYS_MAX: Final = 36_500

_DATE: Final = re.compile(r"\d{4}-?\d\d-?\d\d")
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d*)?")
_LOST_PLUS: Final = re.compile(r"(\S+[T ]\S+) (\d\d(?::?\d\d){1,2}(?:\.\d+)?)")
"""A time whose `+` before the offset came as a space, since `+` means a space in a query."""


def parse_span(text: str) -> timedelta | None:
    """The span that a text such as `90m` says. None for another text."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        return None
    return min(timedelta(**{_UNITS[match[2]]: int(match[1])}), timedelta(days=_DAYS_MAX))


def _time(value: Any) -> Any:
    if isinstance(value, timedelta):
        return datetime.now(UTC) - value
    if isinstance(value, int | float):
        raise ValueError("a number of seconds since 1970 is written @1772366400")  # noqa: TRY004 - pydantic's way
    return _time_of(value.strip()) if isinstance(value, str) else value


def _time_of(text: str) -> Any:
    """The time that a text says. Raises `ValueError` for a number that may be anything. What it
    does not know is left to pydantic.
    """
    if (span := parse_span(text)) is not None:
        return datetime.now(UTC) - span
    if text.startswith("@") and _NUMBER.fullmatch(text[1:]):
        try:
            return datetime.fromtimestamp(float(text[1:]), UTC)
        except (ValueError, OverflowError, OSError):
            raise ValueError(f"{text} is no time that a calendar has") from None
    if _NUMBER.fullmatch(text):
        return _date_of(text)
    if lost := _LOST_PLUS.fullmatch(text):
        text = f"{lost[1]}+{lost[2]}"
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    return time.replace(tzinfo=UTC) if _DATE.fullmatch(text) else time


def _date_of(digits: str) -> datetime:
    if _DATE.fullmatch(digits):
        try:
            return datetime.fromisoformat(digits).replace(tzinfo=UTC)
        except ValueError:
            raise ValueError(f"{digits} is no date that a calendar has") from None
    raise ValueError(f"a number of seconds since 1970 is written @{digits}")


def _span(value: Any) -> Any:
    span = parse_span(value) if isinstance(value, str) else None
    return value if span is None else span


_TEXT: Final = {"type": "string", "examples": ["1h", "2026-01-01T00:00:00Z"]}

Time = Annotated[AwareDatetime, BeforeValidator(_time), WithJsonSchema(_TEXT)]
"""A time, or how long ago it was: `1h`, or a `timedelta`. A date begins at midnight in UTC."""

Span = Annotated[
    timedelta,
    Field(gt=timedelta(0), le=timedelta(days=_DAYS_MAX)),
    BeforeValidator(_span),
    WithJsonSchema({"type": "string", "examples": ["30m", "PT30M"]}),
]
"""A span of time: `30m`, ISO 8601, or a number of seconds."""
