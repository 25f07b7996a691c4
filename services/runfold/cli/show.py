"""Prints a run's record and its ledger in a terminal."""

import json
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runfold.documents.runs import CostDocument, RunDocument, UsageDocument
from runfold_schemas.messages import (
    MediaPart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
)

_COLORS = {"system": "magenta", "user": "cyan", "assistant": "green"}


def show_record(console: Console, run: RunDocument) -> None:
    table = Table(title="run record", title_justify="left", show_header=False)
    for name, value in run.model_dump(mode="json", exclude={"usage"}).items():
        if value not in (None, {}, 0, ""):
            shown = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
            table.add_row(name, escape(shown))
    console.print(table)
    if run.usage.by_model:
        _show_usage(console, run.usage)


def _show_usage(console: Console, usage: UsageDocument) -> None:
    table = Table(title="usage", title_justify="left")
    for name in ("model", "calls", "input", "cached", "output", "cost"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for row in usage.by_model:
        model = "others" if row.is_others else row.model or "unknown"
        cost = "unknown" if row.cost is None else f"{row.cost:.4f}"
        numbers = (row.calls, row.input_tokens, row.cache_read_tokens, row.output_tokens)
        table.add_row(escape(model), *map(str, numbers), cost)
    console.print(table)
    console.print(f"cost  {escape(_cost(usage.cost))}", soft_wrap=True, highlight=False)


def _cost(cost: CostDocument) -> str:
    if cost.amount is None:
        return f"unknown: {cost.reason}"
    return f"{cost.amount:.4f} {cost.currency}, by the prices of {cost.prices_date}"


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
            signature = f"  [dim](signature {escape(part.signature[:12])}…)[/]" if part.signature else ""
            return f"[dim]thinking[/]  {escape(part.text) or '(redacted)'}{signature}"
        case TextPart():
            return f"[dim]text[/]      {escape(part.text)}"
        case ToolUsePart():
            return f"[dim]tool use[/]  {escape(part.name)} {_json(part.input)} [dim]{escape(part.id)}[/]"
        case MediaPart():
            return f"[dim]{part.type:<10}[/]{escape(part.url or part.media_type)}"
        case OpaquePart():
            return f"[dim]{part.provider:<10}[/]{_json(part.content)}"
        case ToolResultPart():
            kind = "[red]error[/] " if part.is_error else ""
            return f"[dim]result[/]    {kind}{_json(part.content)} [dim]{escape(part.tool_use_id)}[/]"


def _json(value: Any) -> str:
    return escape(json.dumps(value, ensure_ascii=False))
