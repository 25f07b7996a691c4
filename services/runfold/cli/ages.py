"""Ages in options, such as 7d."""

import re
from datetime import timedelta
from typing import Final

import typer

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def age_of(text: str) -> timedelta:
    """The time that `text` names. Raises Typer's error of usage."""
    match = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not an age: write a number and s, m, h, d or w, such as 7d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})
