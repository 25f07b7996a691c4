"""The log of a service on standard error: readable lines, or JSON documents.

Entries may repeat what clients, tools and servers sent. So an entry is made printable, keeps to its
line, and shows no login of a URL.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final

from runfold.printable import on_one_line, printable
from runfold.secret_urls import without_secrets
from runfold.telemetry.log_settings import LogFormat
from runfold.telemetry.repeats import RepeatFilter
from runfold.telemetry.request_context import current_request
from runfold.telemetry.trace_context import current_trace

_QUIET: Final[Mapping[str, int]] = {
    # aiokafka reports attempts that are retried; our log reports failures.
    "aiokafka": logging.CRITICAL,
    # uvicorn's warnings are about single requests: clients could fill the log with them.
    "uvicorn.error": logging.ERROR,
    # They report each request to a model, with its URL.
    "httpx": logging.WARNING,
    "httpcore": logging.WARNING,
    # It reports each attempt to send spans; `runfold.telemetry` logs the outage.
    "opentelemetry": logging.CRITICAL,
}

_Info = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def configure_logging(
    level: str, *, levels: Mapping[str, str] | None = None, log_format: LogFormat | None = None
) -> None:
    """From here on the process logs entries of this level and above. `levels` has levels of loggers
    by their names. Without a format, entries are readable on a terminal, and JSON elsewhere.
    """
    handler = logging.StreamHandler()
    handler.addFilter(RepeatFilter())
    is_text = sys.stderr.isatty() if log_format is None else log_format == "text"
    handler.setFormatter(_TextFormatter() if is_text else _JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for name, quiet in _QUIET.items():
        logging.getLogger(name).setLevel(quiet)
    for name, own_level in (levels or {}).items():
        logging.getLogger(name).setLevel(own_level)


def make_last_resort_printable() -> None:
    """For a command, which configures no log: Python prints warnings to standard error then."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Formatter("%(message)s"))


def _ids() -> dict[str, str]:
    """The ids of the request and of the trace to which an entry belongs."""
    ids = {}
    if (request := current_request()) is not None:
        ids["request"] = request.request_id
    if (trace := current_trace()) is not None:
        ids["trace"], ids["span"] = trace
    return ids


class _Formatter(logging.Formatter):
    """Only a traceback has further lines, below its entry."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name of the base class
        return on_one_line(without_secrets(super().formatMessage(record).strip()))

    def formatException(self, info: _Info) -> str:  # noqa: N802  # the name of the base class
        return printable(without_secrets(super().formatException(info)))


class _TextFormatter(_Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name of the base class
        line = super().formatMessage(record)
        ids = " ".join(f"{name}={value}" for name, value in _ids().items() if name != "span")
        return f"{line} [{ids}]" if ids else line


class _JsonFormatter(_Formatter):
    """One JSON document a line, also for an entry with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": on_one_line(without_secrets(record.getMessage().strip())),
            **_ids(),
        }
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        # JSON with ASCII alone: no text can end the line or write to a terminal.
        return json.dumps(document, separators=(",", ":"))
