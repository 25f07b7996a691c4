"""Lines of a service's log."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import redirect_stderr
from typing import Any

import pytest

from runfold.telemetry.log_lines import _QUIET, configure_logging
from runfold.telemetry.repeats import RepeatFilter
from runfold.telemetry.request_context import RequestContext, enter_request, leave_request


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Where the log goes, in a process whose logging is not configured."""
    root, output = logging.getLogger(), io.StringIO()
    before, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in (*_QUIET, "a", "a.b")}
    root.handlers = []
    monkeypatch.setattr("sys.stderr", output)
    # Connections of other tests in this process may log too.
    monkeypatch.setattr(logging.getLogger("runfold"), "propagate", False)
    configure_logging("debug", log_format="text")
    yield output
    root.handlers = before
    root.setLevel(level)
    for name, each in levels.items():
        logging.getLogger(name).setLevel(each)


def test_an_entry_is_one_line_that_acts_on_nothing(lines: io.StringIO):
    logging.getLogger("a").warning("of %s", "run\n2026 ERROR forged\x1b[2J\r\u202e")

    [line] = lines.getvalue().splitlines()
    assert line.endswith("WARNING a: of run 2026 ERROR forged\\x1b[2J \\u202e")


def test_logins_are_left_out_of_entries_and_of_traces(lines: io.StringIO):
    try:
        int("mongodb://u:hush@h\x1b[2J")
    except ValueError:
        logging.getLogger("a").exception("POST https://u:hush@h/v1?key=hush")

    shown = lines.getvalue()
    assert "hush" not in shown
    assert "\x1b" not in shown
    assert "POST https://***@h/v1?key=***" in shown
    assert "\nTraceback" in shown


def test_requests_to_models_are_not_reported(lines: io.StringIO):
    logging.getLogger("httpx").info("HTTP Request: POST https://h/v1")

    assert lines.getvalue() == ""


def configure_again(lines: io.StringIO, level: str, **options: Any) -> None:
    logging.getLogger().handlers = []
    with redirect_stderr(lines):
        configure_logging(level, **options)


TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_an_entry_of_a_request_has_its_ids_until_the_request_ends(lines: io.StringIO):
    context = RequestContext("r-1", TRACEPARENT)
    token = enter_request(context)
    logging.getLogger("a").warning("one")
    context.is_over = True
    logging.getLogger("a").warning("two")
    leave_request(token)

    one, two = lines.getvalue().splitlines()
    assert one.endswith("WARNING a: one [request=r-1 trace=4bf92f3577b34da6a3ce929d0e0e4736]")
    assert two.endswith("WARNING a: two")


def test_json_is_one_document_a_line_with_the_ids_and_the_traceback(lines: io.StringIO):
    configure_again(lines, "info", log_format="json")
    token = enter_request(RequestContext("r-1", TRACEPARENT))
    try:
        int("mongodb://u:hush@h\x1b[2J")
    except ValueError:
        logging.getLogger("a").exception("of %s\n", "ré\u2028")
    finally:
        leave_request(token)

    [line] = lines.getvalue().splitlines()
    document = json.loads(line)
    assert line.isascii()
    assert document.pop("time").endswith("+00:00")
    assert "hush" not in line
    error = document.pop("error")
    assert error.startswith("Traceback")
    assert "\x1b" not in error
    assert document == {
        "level": "error",
        "logger": "a",
        "message": "of ré",
        "request": "r-1",
        "trace": "4bf92f3577b34da6a3ce929d0e0e4736",
        "span": "00f067aa0ba902b7",
    }


def test_what_is_no_terminal_gets_json_unless_a_format_is_set(lines: io.StringIO):
    configure_again(lines, "info")
    logging.getLogger("a").info("one")

    assert json.loads(lines.getvalue())["message"] == "one"


def test_modules_have_levels_of_their_own(lines: io.StringIO):
    configure_again(lines, "warning", levels={"a.b": "DEBUG", "httpx": "INFO"}, log_format="text")
    for name in ("a", "a.b", "httpx"):
        logging.getLogger(name).info("one")

    assert [line.split()[3] for line in lines.getvalue().splitlines()] == ["a.b:", "httpx:"]


def test_equal_warnings_are_one_line_a_minute_and_then_a_count(monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    repeats = RepeatFilter(clock=lambda: now)

    def passes(text: str, level: int = logging.WARNING) -> str | None:
        record = logging.LogRecord("a", level, "", 0, "%s", (text,), None)
        return record.getMessage() if repeats.filter(record) else None

    assert [passes("x") for _ in range(3)] == ["x", None, None]
    assert passes("y") == "y"
    assert passes("x", logging.INFO) == "x"
    now = 61.0
    assert passes("x") == "x (and 2 times since the last such line)"
    assert passes("y") == "y"
    for number in range(300):
        passes(f"{number}")
    assert passes("x") == "x"
