"""Finds the line in a program's output that says why the program did not start."""

import json
import re
from collections.abc import Sequence

_JAVA = re.compile(r"(?:Caused by: )?((?:\w+\.)+\w*(?:Exception|Error)(?:: .*)?)")

_BEGINNINGS = (
    re.compile(r"error: "),  # Runfold's services
    re.compile(r"org\.apache\.kafka\.\S+: "),  # Kafka itself, not the libraries below it
    re.compile(r"(?:\w+\.)+\w*(?:Exception|Error): "),
    re.compile(r"\w*(?:Exception|Error): |# There is |\[ERROR\] "),  # Python, the Java machine, Maven
)
"""Beginnings of lines with a reason. The most helpful is the first."""


def reason_in(lines: Sequence[str]) -> str:
    """The line with the reason, without timestamp and trace. "" if there is no output."""
    if reasons := [reason for line in lines if (reason := _mongod_reason(line))]:
        return reasons[0]
    bare = [match[1] if (match := _JAVA.fullmatch(line)) else line for line in map(str.strip, lines)]
    for beginning in _BEGINNINGS:
        for line in bare:
            if beginning.match(line):
                return line
    return next((line for line in reversed(bare) if line), "")


def _mongod_reason(line: str) -> str | None:
    """The reason in a line of mongod, which is a JSON document. None if it is not an error."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or entry.get("s") not in ("E", "F"):
        return None
    facts = entry.get("attr", {})
    for name in ("message", "error"):
        fact = facts.get(name)
        if isinstance(fact, dict):
            fact = fact.get("error_str") or fact.get("errmsg") or fact.get("msg")
        if isinstance(fact, str):
            return f"{entry['msg']}: {fact}".strip()
    return str(entry.get("msg", "")).strip()
