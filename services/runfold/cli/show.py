"""Prints a run's record and its ledger in a terminal."""

import json
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runfold_projections.run import RunRecord
from runfold_schemas.messages import (
    DocumentPart,
    ImagePart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
)

_COLORS = {"system": "magenta", "user": "cyan", "assistant": "green"}


def show_record(console: Console, record: RunRecord) -> None:
    table = Table(title="run record", title_justify="left", show_header=False)
    for name, value in record.model_dump(mode="json").items():
        if value not in (None, {}, 0, ""):
            table.add_row(
                name, json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
            )
    console.print(table)


def show_ledger(console: Console, messages: Iterable[Message]) -> None:
    console.print("ledger", style="italic")
    for message in messages:
        for index, part in enumerate(message.parts):
            role = message.role if index == 0 else ""
            console.print(
                f"  [{_COLORS[message.role]}]{role:>9}[/]  {_line(part)}", soft_wrap=True, highlight=False
            )


def _line(part: Part) -> str:
    match part:
        case ThinkingPart():
            signature = f"[dim](signature {escape(part.signature[:12])}…)[/]"
            return f"[dim]thinking[/]  {escape(part.text) or '(redacted)'}  {signature}"
        case TextPart():
            return f"[dim]text[/]      {escape(part.text)}"
        case ToolUsePart():
            return f"[dim]tool use[/]  {escape(part.name)} {_json(part.input)} [dim]{escape(part.id)}[/]"
        case ImagePart() | DocumentPart():
            return f"[dim]{part.type:<10}[/]{escape(part.url or part.media_type)}"
        case OpaquePart():
            return f"[dim]{part.provider:<10}[/]{_json(part.content)}"
        case ToolResultPart():
            kind = "[red]error[/] " if part.is_error else ""
            return f"[dim]result[/]    {kind}{_json(part.content)} [dim]{escape(part.tool_use_id)}[/]"


def _json(value: Any) -> str:
    return escape(json.dumps(value, ensure_ascii=False))
