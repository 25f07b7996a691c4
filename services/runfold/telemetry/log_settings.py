"""The settings of a service's log. This module needs pydantic only."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator

LogFormat = Literal["text", "json"]

_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _levels(value: object) -> object:
    """`name=level,name=level` as a dict."""
    if not isinstance(value, str):
        return value
    levels = {}
    for entry in filter(None, map(str.strip, value.split(","))):
        name, _, level = (part.strip() for part in entry.partition("="))
        if not name or level.upper() not in _LEVELS:
            raise ValueError(f"{entry!r} is not a module and its level, such as runfold.projector=debug")
        levels[name] = level.upper()
    return levels


LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)]

LogLevels = Annotated[Mapping[str, str], BeforeValidator(_levels)]
