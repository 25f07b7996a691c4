"""`runfold`: the commands, their options, and how errors are printed."""

import logging
import sys
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from runfold.cli.ages import age_of
from runfold.cli.dead_letter_commands import dead_letters
from runfold.cli.effect_commands import effects
from runfold.cli.encryption_commands import encryption
from runfold.cli.erasure_commands import erase, erased
from runfold.cli.fork_commands import fork
from runfold.cli.key_commands import keys
from runfold.cli.offline_commands import acls, settings
from runfold.cli.quarantine_commands import quarantine
from runfold.cli.retention_commands import retention
from runfold.cli.run_commands import agents, runs
from runfold.cli.running import first_error
from runfold.cli.running import load_command as _load_command
from runfold.cli.running import parse_pairs as _parse_pairs
from runfold.cli.running import report as _report
from runfold.cli.running import run as _run
from runfold.cli.running import settings_in_force as _settings
from runfold.cli.session_commands import session, sessions
from runfold.cli.status_commands import status
from runfold.cli.tenant_commands import tenants
from runfold.cli.terminal import report_defects
from runfold.cli.usage_errors import Program
from runfold.cli.verify_commands import evidence, proof, verify
from runfold.telemetry.log_lines import make_last_resort_printable
from runfold_schemas.errors import ConfigurationError, RunfoldError

app = typer.Typer(
    name="runfold",
    cls=Program,
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
app.add_typer(quarantine, name="quarantine")
app.add_typer(dead_letters, name="dead-letters")
for _name, _group in {"keys": keys, "tenants": tenants, "evidence": evidence, "effects": effects}.items():
    app.add_typer(_group, name=_name)
app.add_typer(encryption, name="encryption")


class ServiceName(StrEnum):
    """The services, and `api`: ingest and query in one process behind one base URL."""

    ingest = "ingest"
    projector = "projector"
    query = "query"
    api = "api"
    tracer = "tracer"
    archiver = "archiver"


class MissingLogs(StrEnum):
    """What a rebuild does with runs whose log is gone."""

    keep = "keep"
    drop = "drop"


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
    workers: Annotated[
        int | None,
        typer.Option(help="Processes of the projector, which share the runs.", show_default="1"),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="AGE", help="The tracer exports older runs too, with events of this time: 30m, 12h, 7d."
        ),
    ] = None,
) -> None:
    """Run one service until Ctrl-C or SIGTERM.

    Needs Kafka and MongoDB (ingest and archiver: only Kafka). A service waits for a server that is
    down. The archiver needs RUNFOLD_ARCHIVE_URL too, and is experimental.

    The projector's health and metrics are on the port after --port, and those of each further
    worker on the next one.
    """
    if workers is not None and service is not ServiceName.projector:
        raise typer.BadParameter("only the projector has workers", param_hint="--workers")
    if since is not None and service is not ServiceName.tracer:
        raise typer.BadParameter("only the tracer exports older runs", param_hint="--since")
    options = {} if since is None else {"since": age_of(since)}
    _run(_load_command("serve")(service.value, _settings(host=host, port=port, workers=workers), **options))


@app.command(epilog="Example: runfold dev --data .runfold/dev")
def dev(
    *,
    data: Annotated[Path, typer.Option(help="Folder in which Kafka and MongoDB keep their data.")] = Path(
        ".runfold/dev"
    ),
    port: Annotated[
        int, typer.Option(help="Port of the HTTP API; the next ones are the projector's and the archiver's.")
    ] = 8080,
    kafka_port: Annotated[int, typer.Option(help="Port of Kafka.")] = 9092,
    mongo_port: Annotated[int, typer.Option(help="Port of MongoDB.")] = 27017,
    archive: Annotated[
        Path | None, typer.Option(help="Folder of the archive of ended runs (experimental). Default: none.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show all lines of the services' logs.")] = False,
) -> None:
    """Run Kafka, MongoDB, the HTTP API and a projector on this machine, until Ctrl-C.

    Needs Java 17 or newer, Maven, and a mongod on the PATH or from the extra `local`; no Docker.

    Prints the addresses of everything when it is up, and then the warnings and errors of the
    services. Their logs are in files in the folder. The data is kept for the next start.
    """
    # The services read the settings from the same environment; an error in them is printed here
    # instead of in the services' logs. The servers' addresses are those of this command's servers.
    _settings(kafka="127.0.0.1", mongo="mongodb://127.0.0.1", port=port)
    command = _load_command("dev")
    ports = {"port": port, "kafka_port": kafka_port, "mongo_port": mongo_port}
    archive_url = None if archive is None else archive.resolve().as_uri()
    _run(command(data, **ports, archive_url=archive_url, is_verbose=verbose))


@app.command(epilog="Example: runfold demo")
def demo() -> None:
    """Publish a run, read its ledger, drop the projections, rebuild them from the log, and compare.

    Needs the programs that `runfold dev` needs. It starts servers of its own, and stops them.
    """
    _run(_load_command("demo")())


@app.command(epilog="Example: runfold replay r-1 --format anthropic")
def replay(
    run_id: RunId,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record and the ledger as JSON.")] = False,
    ledger_format: Annotated[
        LedgerFormat,
        typer.Option("--format", help="Print the ledger as the request of this model provider, as JSON."),
    ] = LedgerFormat.canonical,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Leave out what the provider cannot express, and list it.")
    ] = False,
    maker: Annotated[
        str | None,
        typer.Option(help="The maker of the model that gets the request, for example api.groq.com."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The name of that model.")] = None,
    with_thinking: Annotated[
        bool, typer.Option("--with-thinking/--without-thinking", help="Whether earlier thinking goes back.")
    ] = True,
    cache_marks: Annotated[
        int,
        typer.Option(
            min=0, max=4, metavar="N", help="How many marks of the prompt cache stand beside the messages."
        ),
    ] = 0,
    fit_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Fit the request into N tokens: leave out the beginning if necessary."
        ),
    ] = None,
) -> None:
    """Rebuild one run from its log, and print its record and its ledger.

    Needs Kafka.
    """
    if ledger_format is LedgerFormat.canonical:
        if fit_tokens is not None:
            raise typer.BadParameter("--fit-tokens needs the --format of a provider")
        _run(_load_command("replay")(run_id, _settings(), as_json=as_json))
    else:
        options = {
            "lossy": "drop" if lossy else "refuse",
            "maker": maker,
            "model": model,
            "with_thinking": with_thinking,
            "cache_marks": cache_marks,
            "fit_tokens": fit_tokens,
        }
        print_request = _load_command("request")
        _run(print_request(run_id, _settings(), provider=ledger_format.value, **options))


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
        bool, typer.Option("--wait", help="If the run or the session does not exist yet, wait for it.")
    ] = False,
    as_json: JsonLines = False,
) -> None:
    """Print a run's events from the first one on, and new ones as they come, until the run ends.

    Needs Kafka. Ctrl-C stops it earlier.
    """
    if (run_id is None) == (session is None):
        raise typer.BadParameter("give the id of a run, or --session with the id of a session")
    _run(_load_command("follow")(_settings(), run_id=run_id, session_id=session, wait=wait, as_json=as_json))


app.command(epilog="Example: runfold runs --status failed --failed-since 1h")(runs)
app.command(epilog="Example: runfold agents travel-desk --since 24h")(agents)


app.command(epilog="Example: runfold sessions --app shop --user ann")(sessions)
app.command(epilog="Example: runfold session s-1 --before-turn turn-3")(session)


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
    _run(_load_command("memory", "rollback")(_settings(), memory_id=memory_id, bank=bank, revision=revision))


@app.command(epilog="Example: runfold repair r-1")
def repair(run_id: RunId) -> None:
    """Append events to a run until every model provider accepts its ledger.

    Needs Kafka. For example, a call without a result gets one that says that it was interrupted.
    """
    _run(_load_command("repair")(run_id, _settings()))


@app.command(epilog="Example: runfold rebuild r-1")
def rebuild(
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...", help="Fold only these runs anew; by default, all.", show_default=False
        ),
    ] = None,
    missing: Annotated[
        MissingLogs | None,
        typer.Option(help="What becomes of runs whose log is gone: kept read-only, or deleted."),
    ] = None,
) -> None:
    """Build all projections anew from the log, and switch to them when they are complete.

    Needs Kafka and MongoDB. The services keep running and read the old projections meanwhile.

    With RUN, what MongoDB has of these runs becomes what their logs say, in place.

    If logs are missing or have lost their end, it names them and changes nothing, unless --missing
    is given.
    """
    if run_ids and missing:
        raise typer.BadParameter("--missing decides for all runs without a log: leave out RUN")
    if run_ids:
        _run(_load_command("rebuild", "rebuild_runs")(_settings(), run_ids))
    else:
        _run(_load_command("rebuild")(_settings(), missing=missing and missing.value))


app.command(epilog="Example: runfold status --json")(status)
app.command(epilog="Example: runfold fork r-1 --before-turn turn-3 --id r-2")(fork)
app.command(epilog="Example: runfold verify r-1")(verify)
app.command(epilog="Example: runfold proof r-1 2 > proof.json")(proof)
app.command(epilog="Example: runfold erase ann --yes > receipt.json")(erase)
app.command(epilog="Example: runfold erased ann --receipt receipt.json")(erased)
app.command(epilog="Example: runfold retention --older-than 90d --agent desk --dry-run")(retention)


app.command(epilog="Example: runfold acls producer --user travel --runs travel-")(acls)
app.command(epilog="Example: runfold settings")(settings)


def run_program() -> None:
    """Runs the command that the arguments name.

    An error that we know is printed as one line. The exit code is 2 if waiting cannot help, else 1.
    Any other error is a defect and is raised with its traceback.
    """
    sys.excepthook = report_defects
    make_last_resort_printable()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # logs each attempt; the last error says it all
    try:
        app(standalone_mode=True, prog_name="runfold")
    except* RunfoldError as group:
        error = first_error(group)
        _report("[bold red]error:[/]", str(error))
        sys.exit(2 if isinstance(error, ConfigurationError) else 1)
