"""The options of `runfold dead-letters`. `dead_letters.py` has what the commands do."""

from pathlib import Path
from typing import Annotated

import typer

from runfold.cli.running import load_command, run, settings_in_force

dead_letters = typer.Typer(
    no_args_is_help=True,
    help="List records that could not be decoded, show them, and publish their events again.\n\nNeeds Kafka.",
)

LetterId = Annotated[str, typer.Argument(metavar="ID", help="The dead letter's id, as `list` prints it.")]


@dead_letters.command("list", epilog="Example: runfold dead-letters list --run r-1")
def ls(
    run_id: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="List only records of this run.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="List at most this many.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")] = False,
) -> None:
    """List dead letters with their reasons, the newest first.

    Needs Kafka.
    """
    run(load_command("dead_letters", "ls")(settings_in_force(), run_id=run_id, limit=limit, as_json=as_json))


@dead_letters.command(epilog="Example: runfold dead-letters show runfold.run.r-1.0198:7")
def show(
    letter_id: LetterId,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show a record, where it comes from, and why it could not be decoded.

    Needs Kafka.
    """
    run(load_command("dead_letters", "show")(settings_in_force(), letter_id=letter_id, as_json=as_json))


@dead_letters.command(epilog="Example: runfold dead-letters requeue ID --event mended.json")
def requeue(
    letter_id: LetterId,
    event: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A JSON file with the mended event: `type`, `data` and more."),
    ] = None,
) -> None:
    """Publish the event of a dead letter at the end of its run.

    Needs Kafka. A repetition publishes nothing.

    A record that changes memories, banks or shared state needs a signature if there are keys of
    effects. A mended event may change them: no scopes are checked here, as they are over HTTP,
    because the login of this command may write to Kafka.
    """
    run(load_command("dead_letters", "requeue")(settings_in_force(), letter_id=letter_id, event=event))
