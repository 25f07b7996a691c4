"""`runfold`: the commands, their options, and how errors are printed."""

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

from runfold.cli import explain_missing_package
from runfold.settings import Settings, fault_of, unknown_variables, variable
from runfold_schemas.errors import ConfigurationError, RunfoldError

app = typer.Typer(
    name="runfold",
    epilog="Settings are environment variables, such as RUNFOLD_KAFKA and RUNFOLD_MONGO; "
    "`runfold settings` lists them. `runfold dev` starts everything that the other commands need.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

memory = typer.Typer(
    no_args_is_help=True,
    help="List memories, show their revisions, compare them, and roll back.\n\nNeeds Kafka.",
)
app.add_typer(memory, name="memory")

T = TypeVar("T")

_errors = Console(stderr=True, soft_wrap=True)


class ServiceName(StrEnum):
    """The services, and `api`: ingest and query in one process behind one base URL."""

    ingest = "ingest"
    projector = "projector"
    query = "query"
    api = "api"


class LedgerFormat(StrEnum):
    """The formats that a ledger can be printed in."""

    canonical = "canonical"
    bedrock = "bedrock"
    anthropic = "anthropic"
    openai_chat = "openai-chat"
    openai_responses = "openai-responses"
    gemini = "gemini"


Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")]
Port = Annotated[int | None, typer.Option(help="Port to listen on.", show_default="8080")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
MemoryId = Annotated[str, typer.Argument(metavar="MEMORY", help="The memory's id.")]
Bank = Annotated[str | None, typer.Option(help="The memory's bank; needed if there are several banks.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")]


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"runfold {version('runfold')}")
        raise typer.Exit


@app.callback()
def runfold(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Runfold keeps what AI agents do as a log in Kafka, and computes everything else from it."""


@app.command(epilog="Example: runfold serve api --port 8080")
def serve(
    service: Annotated[
        ServiceName,
        typer.Argument(metavar="SERVICE", help="The service to run; api is ingest and query together."),
    ],
    host: Host = None,
    port: Port = None,
) -> None:
    """Run one service until Ctrl-C or SIGTERM.

    Needs Kafka and MongoDB (ingest: only Kafka). A service waits for a server that is down.

    The projector's health and metrics are on the port after --port.
    """
    _run(_load_command("serve")(service.value, _settings(host=host, port=port)))


@app.command(epilog="Example: runfold dev --data .runfold/dev")
def dev(
    data: Annotated[Path, typer.Option(help="Folder in which Kafka and MongoDB keep their data.")] = Path(
        ".runfold/dev"
    ),
    port: Annotated[int, typer.Option(help="Port of the HTTP API; the next one is the projector's.")] = 8080,
    kafka_port: Annotated[int, typer.Option(help="Port of Kafka.")] = 9092,
    mongo_port: Annotated[int, typer.Option(help="Port of MongoDB.")] = 27017,
) -> None:
    """Run Kafka, MongoDB, the HTTP API and a projector on this machine, until Ctrl-C.

    Needs Java 17 or newer, Maven, and a mongod on the PATH or from the extra `local`; no Docker.

    Prints the addresses of everything when it is up. The data is kept for the next start.
    """
    # The services read the settings from the same environment; an error in them is printed here
    # instead of in the services' logs. The servers' addresses are those of this command's servers.
    _settings(kafka="127.0.0.1", mongo="mongodb://127.0.0.1", port=port)
    _run(_load_command("dev")(data, port=port, kafka_port=kafka_port, mongo_port=mongo_port))


@app.command(epilog="Example: runfold demo")
def demo() -> None:
    """Publish a run, read its ledger, drop the projections, rebuild them from the log, and compare.

    Needs the programs that `runfold dev` needs. It starts servers of its own, and stops them.
    """
    _run(_load_command("demo")())


@app.command(epilog="Example: runfold replay r-1 --format anthropic")
def replay(
    run_id: RunId,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record and the ledger as JSON.")] = False,
    ledger_format: Annotated[
        LedgerFormat,
        typer.Option("--format", help="Print the ledger as the request of this model provider, as JSON."),
    ] = LedgerFormat.canonical,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Leave out what the provider cannot express, and list it.")
    ] = False,
) -> None:
    """Rebuild one run from its log, and print its record and its ledger.

    Needs Kafka.
    """
    if ledger_format is LedgerFormat.canonical:
        _run(_load_command("replay")(run_id, _settings(), as_json=as_json))
    else:
        print_request, on_loss = _load_command("request"), "drop" if lossy else "refuse"
        _run(print_request(run_id, _settings(), provider=ledger_format.value, lossy=on_loss))


@app.command(epilog="Example: runfold follow --session shop/ann/s-1 --wait")
def follow(
    run_id: Annotated[
        str | None, typer.Argument(metavar="RUN", help="The run's id.", show_default=False)
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(help="Follow the run of this session; a session of ADK is APP/USER/ID.", metavar="ID"),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="If the session does not exist yet, wait for it.")
    ] = False,
    as_json: JsonLines = False,
) -> None:
    """Print a run's events from the first one on, and new ones as they come, until the run ends.

    Needs Kafka. Ctrl-C stops it earlier.
    """
    if (run_id is None) == (session is None):
        raise typer.BadParameter("give the id of a run, or --session with the id of a session")
    _run(_load_command("follow")(_settings(), run_id=run_id, session_id=session, wait=wait, as_json=as_json))


@app.command(epilog="Example: runfold sessions --app shop --user ann")
def sessions(
    app: Annotated[str | None, typer.Option(help="List only sessions of this app.")] = None,
    user: Annotated[str | None, typer.Option(help="List only sessions of this user.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="List at most this many.")] = 50,
) -> None:
    """List sessions with their runs, the newest first.

    Needs Kafka.
    """
    _run(_load_command("sessions")(_settings(), app=app, user=user, limit=limit))


@memory.command(epilog="Example: runfold memory ls --bank travel --scope user=ann")
def ls(
    bank: Annotated[str | None, typer.Option(help="The bank whose memories are listed.")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="List only memories with exactly this scope; repeat the option for each of its pairs.",
        ),
    ] = None,
    as_json: JsonLines = False,
) -> None:
    """List the banks, or with --bank the memories of one bank, the last changed first.

    Needs Kafka.
    """
    pairs = _parse_pairs("--scope", scope)
    _run(_load_command("memory", "ls")(_settings(), bank=bank, scope=pairs, as_json=as_json))


@memory.command(epilog="Example: runfold memory show m-1 --bank travel")
def show(memory_id: MemoryId, bank: Bank = None, as_json: JsonLines = False) -> None:
    """Show every field of a memory.

    Needs Kafka.
    """
    _run(_load_command("memory", "show")(_settings(), memory_id=memory_id, bank=bank, as_json=as_json))


@memory.command(epilog="Example: runfold memory history m-1 --bank travel --label channel=chat")
def history(
    memory_id: MemoryId,
    bank: Bank = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="List only revisions with this label; the option can be repeated.",
        ),
    ] = None,
    as_json: JsonLines = False,
) -> None:
    """List a memory's revisions, the newest first.

    Needs Kafka. `diff` and `rollback` accept the short ids that it prints.
    """
    labels = _parse_pairs("--label", label)
    list_revisions = _load_command("memory", "history")
    _run(list_revisions(_settings(), memory_id=memory_id, bank=bank, labels=labels, as_json=as_json))


@memory.command(epilog="Example: runfold memory diff m-1 01a2b3c4 01a2b3d5 --bank travel")
def diff(
    memory_id: MemoryId,
    earlier: Annotated[
        str | None,
        typer.Argument(
            metavar="FROM",
            help="A revision's id, or the first characters of it.",
            show_default="last but one",
        ),
    ] = None,
    later: Annotated[
        str | None,
        typer.Argument(
            metavar="TO", help="A revision's id, or the first characters of it.", show_default="last"
        ),
    ] = None,
    bank: Bank = None,
) -> None:
    """Show what changed between two revisions of a memory, word by word.

    Needs Kafka.
    """
    compare = _load_command("memory", "diff")
    _run(compare(_settings(), memory_id=memory_id, bank=bank, earlier=earlier, later=later))


@memory.command(epilog="Example: runfold memory rollback m-1 01a2b3c4 --bank travel")
def rollback(
    memory_id: MemoryId,
    revision: Annotated[
        str, typer.Argument(metavar="REVISION", help="A revision's id, or the first characters of it.")
    ],
    bank: Bank = None,
) -> None:
    """Set a memory back to an earlier revision.

    Needs Kafka. A deleted memory can be rolled back for 48 hours.
    """
    roll_back = _load_command("memory", "rollback")
    _run(roll_back(_settings(), memory_id=memory_id, bank=bank, revision=revision))


@app.command(epilog="Example: runfold repair r-1")
def repair(run_id: RunId) -> None:
    """Append events to a run until every model provider accepts its ledger.

    Needs Kafka. For example, a call without a result gets one that says that it was interrupted.
    """
    _run(_load_command("repair")(run_id, _settings()))


@app.command(epilog="Example: runfold rebuild")
def rebuild() -> None:
    """Build all projections anew from the log, and switch to them when they are complete.

    Needs Kafka and MongoDB. The services keep running and read the old projections meanwhile.
    """
    _run(_load_command("rebuild")(_settings()))


@app.command(epilog="Example: runfold verify r-1")
def verify(
    run_id: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Compare only this run; by default, all.", show_default=False),
    ] = None,
) -> None:
    """Compare the projections with the log, and name every difference.

    Needs Kafka and MongoDB. The exit code is 1 if there is a difference.
    """
    if _run(_load_command("verify")(_settings(), run_id=run_id)):
        raise typer.Exit(1)


@app.command(epilog="Example: runfold settings")
def settings() -> None:
    """List all settings with their current values.

    Needs no server.
    """
    current = _settings()
    for name, field in Settings.model_fields.items():
        value = _without_secrets(name, getattr(current, name))
        typer.echo(f"{variable(name)}={value}\n    {field.description}")


def run_program() -> None:
    """Runs the command that the arguments name.

    An error that we know is printed as one line. The exit code is 2 if waiting cannot help, else 1.
    Any other error is a defect and is raised with its traceback.
    """
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # logs each attempt; the last error says it all
    try:
        app(standalone_mode=True, prog_name="runfold")
    except* RunfoldError as group:
        error = _first_error(group)
        _report("[bold red]error:[/]", str(error))
        sys.exit(2 if isinstance(error, ConfigurationError) else 1)


def _settings(**options: Any) -> Settings:
    """The settings in force. `options` are those of the command line, None if not given."""
    for line in unknown_variables(os.environ):
        _report("[bold yellow]warning:[/]", line)
    overrides = {name: value for name, value in options.items() if value is not None}
    try:
        return Settings(**overrides)
    except ValidationError as error:
        name, fault = fault_of(error)
        source = f"--{name}: " if name in overrides else f"{variable(name)}: " if name else ""
        _report("[bold red]error:[/]", source + fault)
        raise typer.Exit(2) from error


def _report(kind: str, text: str) -> None:
    _errors.print(kind, escape(text), highlight=False)


def _without_secrets(name: str, value: object) -> str:
    """A setting's value without the passwords and keys that it may contain."""
    if name == "kafka_options" and value:
        return "(set, not shown)"
    return re.sub(r"//[^@/]*@", "//***@", str(value))


def _load_command(name: str, function: str | None = None) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Imports the module of that name, and returns its function of the same name, or `function`.

    Only the module of the command that runs is imported, so that no command waits for the imports
    of others.
    """
    with explain_missing_package():
        module = import_module(f"runfold.cli.{name}")
    command: Callable[..., Coroutine[Any, Any, Any]] = getattr(module, function or name)
    return command


def _parse_pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    """The values of an option that is repeated for each `key=value` pair."""
    for text in texts or ():
        if "=" not in text:
            raise typer.BadParameter(f"{text!r} is not of the form key=value", param_hint=option)
    return dict(text.split("=", 1) for text in texts or ())


def _run(work: Coroutine[Any, Any, T]) -> T:
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


def _first_error(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group
