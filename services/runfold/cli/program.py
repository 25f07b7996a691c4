"""`runfold`: the commands, and how an error is told."""

import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine
from enum import StrEnum
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape

from runfold.settings import Settings, fault_of, unknown_variables, variable
from runfold_schemas.errors import ConfigurationError, RunfoldError

app = typer.Typer(
    name="runfold",
    epilog="Settings come from the environment, RUNFOLD_KAFKA and RUNFOLD_MONGO first of all; `runfold settings` lists them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

memory = typer.Typer(
    no_args_is_help=True, help="Memories with the history of their changes. MongoDB is not asked."
)
app.add_typer(memory, name="memory")

T = TypeVar("T")

_errors = Console(stderr=True, soft_wrap=True)


class Part(StrEnum):
    """The services, and `api`: ingest and query in one process behind one base URL."""

    ingest = "ingest"
    projector = "projector"
    query = "query"
    api = "api"


class Form(StrEnum):
    """What a ledger is printed as."""

    canonical = "canonical"
    bedrock = "bedrock"
    anthropic = "anthropic"
    openai_chat = "openai-chat"
    openai_responses = "openai-responses"
    gemini = "gemini"


Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")]
Port = Annotated[int | None, typer.Option(help="Port to listen on.", show_default="8080")]
MemoryId = Annotated[str, typer.Argument(metavar="MEMORY", help="The memory's id.")]
Bank = Annotated[str | None, typer.Option(help="The memory's bank, unless there is but one.")]
Json = Annotated[bool, typer.Option("--json", help="Print each one's JSON on a line.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"runfold {version('runfold')}")
        raise typer.Exit


@app.callback()
def runfold(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Runfold keeps the memory of AI agents as a log and folds everything else from it."""


@app.command()
def serve(
    part: Annotated[Part, typer.Argument(help="Which service to run.")], host: Host = None, port: Port = None
) -> None:
    """Run one service until it is told to stop. The projector's health is on the port after
    --port.
    """
    _run(_command("serve")(part.value, _settings(host=host, port=port)))


@app.command()
def dev(
    data: Annotated[Path, typer.Option(help="Where Kafka and MongoDB keep their data.")] = Path(
        ".runfold/dev"
    ),
    port: Annotated[int, typer.Option(help="Port of the HTTP API.")] = 8080,
    kafka_port: Annotated[int, typer.Option(help="Port of Kafka.")] = 9092,
    mongo_port: Annotated[int, typer.Option(help="Port of MongoDB.")] = 27017,
) -> None:
    """Keep the whole stack up on this machine, without Docker: Kafka, MongoDB, the API and a
    projector.
    """
    # Its services take the settings from the same environment; better a line here than in their
    # logs. The servers are its own.
    _settings(kafka="127.0.0.1", mongo="mongodb://127.0.0.1", port=port)
    _run(_command("dev")(data, port=port, kafka_port=kafka_port, mongo_port=mongo_port))


@app.command()
def demo() -> None:
    """Publish a run, rebuild its ledger, throw the projections away, replay the log, and
    compare.
    """
    _run(_command("demo")())


@app.command()
def replay(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    raw: Annotated[bool, typer.Option("--json", help="Print the ledger as JSON.")] = False,
    form: Annotated[
        Form, typer.Option("--format", help="Print the ledger as this provider's request, as JSON.")
    ] = Form.canonical,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Leave out what the provider cannot express, and say so.")
    ] = False,
) -> None:
    """Rebuild one run from the log alone and print its record and its ledger. MongoDB is not
    asked.
    """
    if form is Form.canonical:
        _run(_command("replay")(run_id, _settings(), as_json=raw))
    else:
        _run(
            _command("request")(run_id, _settings(), provider=form.value, lossy="drop" if lossy else "refuse")
        )


@app.command()
def follow(
    run_id: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="The run's id.", show_default=False)
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="A session's id instead; one of ADK's is APP/USER/ID.", metavar="ID")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the session, should it not be there yet.")
    ] = False,
    raw: Annotated[bool, typer.Option("--json", help="Print each event's JSON on a line.")] = False,
) -> None:
    """Show a run as it happens, what has happened first, until it ends or Ctrl-C. MongoDB is not
    asked.
    """
    if (run_id is None) == (session is None):
        raise typer.BadParameter("give the id of a run, or --session with that of a session")
    _run(_command("follow")(_settings(), run_id=run_id, session_id=session, wait=wait, as_json=raw))


@app.command()
def sessions(
    app: Annotated[str | None, typer.Option(help="Only those of this app.")] = None,
    user: Annotated[str | None, typer.Option(help="Only those of this user.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at the most, the newest first.")] = 50,
) -> None:
    """List sessions with their runs. MongoDB is not asked."""
    _run(_command("sessions")(_settings(), app=app, user=user, limit=limit))


@memory.command(epilog="Example: runfold memory ls --bank travel --scope user=ann")
def ls(
    bank: Annotated[str | None, typer.Option(help="The bank whose memories are listed.")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only memories of exactly this scope; once for each pair."),
    ] = None,
    raw: Json = False,
) -> None:
    """List the banks, or with --bank the memories of one, the last changed first."""
    pairs = _pairs("--scope", scope)
    _run(_command("memory", "ls")(_settings(), bank=bank, scope=pairs, as_json=raw))


@memory.command(epilog="Example: runfold memory show m-1 --bank travel")
def show(memory_id: MemoryId, bank: Bank = None, raw: Json = False) -> None:
    """Show all that a memory holds."""
    _run(_command("memory", "show")(_settings(), memory_id=memory_id, bank=bank, as_json=raw))


@memory.command(epilog="Example: runfold memory history m-1 --bank travel --label channel=chat")
def history(
    memory_id: MemoryId,
    bank: Bank = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only revisions with this label; may be repeated."),
    ] = None,
    raw: Json = False,
) -> None:
    """List a memory's revisions, the newest first. Their short ids will do wherever one is asked
    for.
    """
    labels = _pairs("--label", label)
    _run(
        _command("memory", "history")(_settings(), memory_id=memory_id, bank=bank, labels=labels, as_json=raw)
    )


@memory.command(epilog="Example: runfold memory diff m-1 01a2b3c4 01a2b3d5 --bank travel")
def diff(
    memory_id: MemoryId,
    earlier: Annotated[
        str | None,
        typer.Argument(
            metavar="[FROM]", help="A revision's id or its beginning.", show_default="last but one"
        ),
    ] = None,
    later: Annotated[
        str | None,
        typer.Argument(metavar="[TO]", help="A revision's id or its beginning.", show_default="last"),
    ] = None,
    bank: Bank = None,
) -> None:
    """Show what changed between two revisions of a memory, word by word."""
    _run(
        _command("memory", "diff")(_settings(), memory_id=memory_id, bank=bank, earlier=earlier, later=later)
    )


@memory.command(epilog="Example: runfold memory rollback m-1 01a2b3c4 --bank travel")
def rollback(
    memory_id: MemoryId,
    revision: Annotated[str, typer.Argument(metavar="REVISION", help="A revision's id or its beginning.")],
    bank: Bank = None,
) -> None:
    """Make a memory hold again what it held after an earlier revision, also if it was deleted less
    than 48 hours ago.
    """
    _run(_command("memory", "rollback")(_settings(), memory_id=memory_id, bank=bank, revision=revision))


@app.command()
def repair(run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]) -> None:
    """Append what makes every model provider accept a run's ledger: results that say that a call
    was interrupted, say.
    """
    _run(_command("repair")(run_id, _settings()))


@app.command()
def rebuild() -> None:
    """Rebuild every projection from the log and switch to the new ones when they have caught up."""
    _run(_command("rebuild")(_settings()))


@app.command()
def verify(
    run_id: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Only this run; all by default.", show_default=False)
    ] = None,
) -> None:
    """Compare MongoDB with the log and name every difference. Exits with 1 if there is one."""
    if _run(_command("verify")(_settings(), run_id=run_id)):
        raise typer.Exit(1)


@app.command()
def settings() -> None:
    """List the settings, with the values that are in force here."""
    current = _settings()
    for name, field in Settings.model_fields.items():
        typer.echo(f"{variable(name)}={_shown(name, getattr(current, name))}\n    {field.description}")


def main() -> None:
    """The program. An error that we know is one line, and 2 is the code for what waiting does not
    cure; anything else is a defect and shows where.
    """
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it tells of each attempt; we tell what failed
    try:
        app(standalone_mode=True, prog_name="runfold")
    except* RunfoldError as group:
        error = _first(group)
        _say("[bold red]error:[/]", str(error))
        sys.exit(2 if isinstance(error, ConfigurationError) else 1)


def _settings(**options: Any) -> Settings:
    """The settings in force; `options` are those that were given on the command line."""
    for line in unknown_variables(os.environ):
        _say("[bold yellow]warning:[/]", line)
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        name, fault = fault_of(error)
        place = f"--{name}: " if name in given else f"{variable(name)}: " if name else ""
        _say("[bold red]error:[/]", place + fault)
        raise typer.Exit(2) from error


def _say(kind: str, text: str) -> None:
    _errors.print(kind, escape(text), highlight=False)


def _shown(name: str, value: object) -> str:
    """A setting without the secrets that it may hold."""
    if name == "kafka_options" and value:
        return "(set, not shown)"
    return re.sub(r"//[^@/]*@", "//***@", str(value))


def _command(name: str, function: str | None = None) -> Callable[..., Coroutine[Any, Any, Any]]:
    """The function of the module of that name, imported when it is asked for: no command waits for
    what others import. It is named as the module is, unless the module has several.
    """
    module = import_module(f"runfold.cli.{name}")
    command: Callable[..., Coroutine[Any, Any, Any]] = getattr(module, function or name)
    return command


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    """What was given as `key=value`, once for each pair."""
    for one in given or ():
        if "=" not in one:
            raise typer.BadParameter(f"{one!r} is not of the form key=value", param_hint=option)
    return dict(one.split("=", 1) for one in given or ())


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work`. SIGINT and SIGTERM cancel it, so that what it started is stopped in order, and
    give 130 and 143.
    """
    received: list[signal.Signals] = []

    async def cancelable() -> T:
        task = asyncio.current_task()
        assert task is not None

        def stop(number: signal.Signals) -> None:
            # Once: uvicorn raises the signals that it has seen a second time, which would cancel
            # the stopping itself.
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


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group
