"""Prints memories in a terminal: rows that fit its width, lists of fields, and readable times."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import BaseModel
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from runfold.cli.terminal import print_json_line
from runfold.cli.word_diff import marked, word_diff
from runfold.printable import on_one_line
from runfold_schemas.memories import Memory, MemoryTopic, Moment

_STYLES: Final = {"kept": "", "removed": "red strike", "added": "green underline"}

_UNITS: Final = {"day": 86_400, "hour": 3_600, "minute": 60, "second": 1}


def print_rows(console: Console, names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a header and rows: see `rows_of`."""
    for line in rows_of(names, rows, width=console.width if console.is_terminal else None):
        console.print(line, highlight=False, soft_wrap=True)


def rows_of(names: Sequence[str], rows: Iterable[Sequence[str]], *, width: int | None) -> list[Text]:
    """A header and rows. Columns without a value are left out. Rows are cut to `width`, which
    shortens the last column.
    """
    cells = [[on_one_line(cell) for cell in row] for row in rows]
    columns = [column for column in range(len(names)) if not cells or any(row[column] for row in cells)]
    widths = {column: max(cell_len(row[column]) for row in [names, *cells]) for column in columns}
    lines = []
    for number, row in enumerate([names, *cells]):
        line = Text(style="bold" if number == 0 else "")
        for column in columns[:-1]:
            line.append(row[column] + " " * (widths[column] - cell_len(row[column]) + 2))
        line.append(row[columns[-1]])
        if width is not None:
            line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def print_fields(console: Console, fields: Mapping[str, Text]) -> None:
    """Prints one field a line. Further lines of a value are indented, so that no value can look
    like a field.
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
    """Prints a document on one line, in ASCII."""
    print_json_line(json.dumps({**value.model_dump(mode="json"), **more}))


def plain(text: str) -> Text:
    """A stored text with its line breaks, and without other characters that move the cursor."""
    return Text("\n".join(map(on_one_line, text.split("\n"))))


def difference(console: Console, old: str, new: str) -> Text:
    """The difference by words, in color; without color, between marks."""
    spans = word_diff(old, new)
    if console.no_color or console.color_system is None:
        return plain(marked(spans))
    colored = Text()
    for span in spans:
        colored.append(plain(span.text).plain, style=_STYLES[span.kind])
    return colored


def fields_of(memory: Memory) -> dict[str, str]:
    """The memory's fields besides its fact, readable; "" for a field without a value."""
    return {
        "scope": pairs_line(memory.scope),
        "topics": ", ".join(map(_topic, memory.topics)),
        "metadata": "\n".join(
            f"{on_one_line(key)}: {_value(value)}" for key, value in memory.metadata.items()
        ),
        "display name": memory.display_name or "",
        "description": memory.description or "",
        "expires": local_time(memory.expires_at) if memory.expires_at is not None else "",
        **{on_one_line(name): json.dumps(value) for name, value in (memory.model_extra or {}).items()},
    }


def pairs_line(pairs: Mapping[str, str]) -> str:
    """A scope or labels, each pair as `--scope` and `--label` accept it."""
    return " ".join(shlex.quote(f"{key}={value}") for key, value in pairs.items())


def local_time(at: datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def with_age(at: datetime) -> str:
    """The time and its distance from now, as `2026-03-01 12:00:00 (2 days ago)`."""
    seconds = (at - datetime.now(UTC)).total_seconds()
    unit, length = next(
        (unit, length) for unit, length in _UNITS.items() if abs(seconds) >= length or length == 1
    )
    count = int(abs(seconds) / length)
    span = f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{local_time(at)} ({f'in {span}' if seconds > 0 else f'{span} ago'})"


def _topic(topic: MemoryTopic) -> str:
    return topic.managed or topic.custom or ""


def _value(value: bool | float | Moment | str) -> str:
    return local_time(value.timestamp) if isinstance(value, Moment) else json.dumps(value, ensure_ascii=False)
