"""Where commands print, and the only module that writes to the terminal.

Ids, texts and reasons of errors come from agents, tools and servers, so every line passes through
`printable`. Only the commands' own colors and the movements of progress bars are sent as they are.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.highlighter import JSONHighlighter
from rich.segment import Segment

from runfold.printable import on_one_line, printable, printable_json
from runfold.secret_urls import without_secrets


def new_console(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """A console for texts from outside; `stderr` and `soft_wrap` are those of Rich's class."""
    # Rich would replace words such as `:boom:` in texts.
    made = Console(stderr=stderr, soft_wrap=soft_wrap, emoji=False)
    made.push_render_hook(_PrintableHook())
    return made


def print_line(text: str) -> None:
    """Prints one line, without colors."""
    sys.stdout.write(f"{on_one_line(text)}\n")
    sys.stdout.flush()


def print_json_line(text: str) -> None:
    """Prints a JSON document that is on one line. Its value stays exactly the same."""
    sys.stdout.write(f"{printable_json(text)}\n")
    sys.stdout.flush()


def print_json_document(value: Any, *, default: Callable[[Any], Any] | None = None) -> None:
    """Prints a value as a JSON document, indented, and in color on a terminal. `default` is that of
    `json.dumps`.
    """
    text = printable_json(json.dumps(value, indent=2, ensure_ascii=False, default=default))
    new_console().print(JSONHighlighter()(text), soft_wrap=True)


def report_defects(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """For `sys.excepthook`: the messages in a traceback may repeat what was stored."""
    sys.stderr.write(printable(without_secrets("".join(traceback.format_exception(kind, error, trace)))))


class _PrintableHook(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Printable(renderable) for renderable in renderables]


class _Printable:
    """A renderable whose text is printable. Control codes of Rich itself stay."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments: Iterable[Segment] = console.render(self._renderable, options)
        for segment in segments:
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
