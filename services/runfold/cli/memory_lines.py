"""How memories look in a terminal: rows that fit it, fields below each other, times as people say
them.
"""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import BaseModel
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from runfold.cli.event_lines import on_one_line
from runfold.cli.word_diff import marked, word_diff
from runfold_schemas.memories import Memory, MemoryTopic, Moment

_STYLES: Final = {"kept": "", "removed": "red strike", "added": "green underline"}

_UNITS: Final = {"day": 86_400, "hour": 3_600, "minute": 60, "second": 1}


def print_rows(console: Console, names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints rows with their names above. In a terminal a row is cut to its width, and so is the
    fact, which comes last; columns that are empty are left out.
    """
    shown = [[on_one_line(cell) for cell in row] for row in rows]
    used = [place for place in range(len(names)) if not shown or any(row[place] for row in shown)]
    widths = {place: max(cell_len(row[place]) for row in [names, *shown]) for place in used}
    for number, row in enumerate([names, *shown]):
        line = Text(style="bold" if number == 0 else "")
        for place in used[:-1]:
            line.append(row[place] + " " * (widths[place] - cell_len(row[place]) + 2))
        line.append(row[used[-1]])
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, highlight=False, soft_wrap=True)


def print_fields(console: Console, fields: Mapping[str, Text]) -> None:
    """Prints fields below each other. A value's further lines are indented, so that no text passes
    for a field.
    """
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        for number, line in enumerate(value.split("\n", allow_blank=True)):
            console.print(
                Text.assemble((f"{'' if number else name:<{width}}  ", "dim"), line),
                highlight=False,
                soft_wrap=True,
            )


def print_json(value: BaseModel, **more: Any) -> None:
    """Prints one document on a line, in ASCII: not even a program's output moves the cursor."""
    text = json.dumps({**value.model_dump(mode="json"), **more})
    print(text.replace("\x7f", "\\u007f"))  # noqa: T201  # as it is, whatever the terminal's width


def plain(text: str) -> Text:
    """A text of somebody else's with its line breaks, and nothing else that moves a cursor."""
    return Text("\n".join(map(on_one_line, text.split("\n"))))


def difference(console: Console, old: str, new: str) -> Text:
    """The difference by words: in color where there is color, else between marks."""
    spans = word_diff(old, new)
    if console.no_color or console.color_system is None:
        return plain(marked(spans))
    shown = Text()
    for span in spans:
        shown.append(plain(span.text).plain, style=_STYLES[span.kind])
    return shown


def fields_of(memory: Memory) -> dict[str, str]:
    """All that the memory holds beside its fact, for people; "" for what it does not hold."""
    return {
        "scope": pairs_line(memory.scope),
        "topics": ", ".join(map(_topic, memory.topics)),
        "metadata": "\n".join(f"{on_one_line(key)}: {_value(one)}" for key, one in memory.metadata.items()),
        "display name": memory.display_name or "",
        "description": memory.description or "",
        "expires": moment(memory.expires_at) if memory.expires_at is not None else "",
        **{on_one_line(name): json.dumps(one) for name, one in (memory.model_extra or {}).items()},
    }


def pairs_line(pairs: Mapping[str, str]) -> str:
    """A scope or labels, each pair as `--scope` and `--label` take it."""
    return " ".join(shlex.quote(f"{key}={value}") for key, value in pairs.items())


def moment(at: datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def with_age(at: datetime) -> str:
    """The time and how far away it is, as `2026-03-01 12:00:00 (2 days ago)`."""
    seconds = (at - datetime.now(UTC)).total_seconds()
    unit, length = next(one for one in _UNITS.items() if abs(seconds) >= one[1] or one[1] == 1)
    count = int(abs(seconds) / length)
    span = f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{moment(at)} ({f'in {span}' if seconds > 0 else f'{span} ago'})"


def _topic(topic: MemoryTopic) -> str:
    return topic.managed or topic.custom or ""


def _value(value: bool | float | Moment | str) -> str:
    return moment(value.timestamp) if isinstance(value, Moment) else json.dumps(value, ensure_ascii=False)
