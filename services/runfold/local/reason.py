"""The one line of what a program wrote that says why it did not come up."""

import json
import re
from collections.abc import Sequence

_JAVA = re.compile(r"(?:Caused by: )?((?:\w+\.)+\w*(?:Exception|Error)(?:: .*)?)")

_TOLD_BEST = (
    re.compile(r"error: "),  # our own services
    re.compile(r"org\.apache\.kafka\.\S+: "),  # what Kafka says itself, rather than the libraries below it
    re.compile(r"(?:\w+\.)+\w*(?:Exception|Error): "),
    re.compile(r"\w*(?:Exception|Error): |# There is |\[ERROR\] "),  # Python, the Java machine, Maven
)
"""Beginnings of lines, the most telling first."""


def reason_in(lines: Sequence[str]) -> str:
    """A line without its timestamp and its trace; "" where nothing was written."""
    if told := [reason for line in lines if (reason := _of_mongod(line))]:
        return told[0]
    bare = [match[1] if (match := _JAVA.fullmatch(line)) else line for line in map(str.strip, lines)]
    for best in _TOLD_BEST:
        for line in bare:
            if best.match(line):
                return line
    return next((line for line in reversed(bare) if line), "")


def _of_mongod(line: str) -> str | None:
    """mongod writes a document a line; this is what one that tells of an error says."""
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
