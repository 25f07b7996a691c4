"""What all commands share: their settings, loading their modules, running them, and errors."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, TypeVar

import typer
from pydantic import ValidationError
from rich.markup import escape

from runfold.cli import explain_missing_package
from runfold.cli.garbage import uncollected_imports
from runfold.cli.terminal import new_console
from runfold.printable import shortened
from runfold.secret_urls import without_secrets
from runfold.settings import Settings, fault_of, unknown_variables, variable

T = TypeVar("T")


def settings_in_force(**options: Any) -> Settings:
    """The settings in force. `options` are those of the command line, None if not given."""
    for line in unknown_variables(os.environ):
        report("[bold yellow]warning:[/]", line)
    overrides = {name: value for name, value in options.items() if value is not None}
    try:
        return Settings(**overrides)
    except ValidationError as error:
        name, fault = fault_of(error)
        source = f"--{name}: " if name in overrides else f"{variable(name)}: " if name else ""
        report("[bold red]error:[/]", source + fault)
        raise typer.Exit(2) from error


def report(kind: str, text: str) -> None:
    errors = new_console(stderr=True, soft_wrap=True)
    errors.print(kind, escape(shortened(without_secrets(text))), highlight=False)


def first_error(group: BaseException) -> BaseException:
    """The first error in a group of errors."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def load_command(name: str, function: str | None = None) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Imports the module of that name, and returns its function of the same name, or `function`.

    Only the module of the command that runs is imported, so that no command waits for the imports
    of others.
    """
    with explain_missing_package(), uncollected_imports():
        module = import_module(f"runfold.cli.{name}")
    command: Callable[..., Coroutine[Any, Any, Any]] = getattr(module, function or name)
    return command


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work`. SIGINT and SIGTERM cancel it, so that everything it started is stopped in order;
    the exit code is then 130 or 143.
    """
    received: list[signal.Signals] = []

    async def cancelable() -> T:
        task = asyncio.current_task()
        assert task is not None

        def stop(number: signal.Signals) -> None:
            # Only the first signal counts: uvicorn raises the signals that it has received once
            # more, and the second cancellation would interrupt the stopping.
            if not received:
                received.append(number)
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        return await work

    try:
        return asyncio.run(cancelable())
    except asyncio.CancelledError:
        raise typer.Exit(128 + received[0]) from None


def parse_pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    """The values of an option that is repeated for each `key=value` pair."""
    for text in texts or ():
        if "=" not in text:
            raise typer.BadParameter(f"{text!r} is not of the form key=value", param_hint=option)
    return dict(text.split("=", 1) for text in texts or ())
