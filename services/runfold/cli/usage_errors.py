"""Errors of usage, which quote little of a long argument."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperGroup

from runfold.printable import shortened


class Program(TyperGroup):
    """All commands. Errors of usage quote little of a long argument."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _short_errors():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with _short_errors():
            return super().invoke(ctx)


@contextmanager
def _short_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # The base class of Typer's errors of usage is private.
        if hasattr(error, "format_message"):
            vars(error)["message"] = shortened(vars(error)["message"])
        raise
