"""The options of `runfold fork`. `fork.py` has what the command does."""

from typing import Annotated

import typer

from runfold.cli.running import load_command, run, settings_in_force


def fork(
    source: Annotated[str, typer.Argument(metavar="RUN", help="The id of the run whose events are copied.")],
    *,
    at: Annotated[
        int | None, typer.Option(min=0, metavar="OFFSET", help="The last offset that the fork includes.")
    ] = None,
    before_turn: Annotated[
        str | None, typer.Option(metavar="TURN", help="The turn before which the fork ends.")
    ] = None,
    new_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="The id of the fork: then the command can be repeated."),
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="The session that the fork belongs to.")
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair/--no-repair", help="Whether calls without a result get one.")
    ] = True,
) -> None:
    """Begin a new run with the events of another one up to a place, and print its id.

    Needs Kafka. The copies change no memory and no shared state. Their tokens count for RUN alone.
    """
    command = load_command("fork")
    settings = settings_in_force()
    run(
        command(
            source,
            settings,
            at=at,
            before_turn=before_turn,
            run_id=new_id,
            session_id=session,
            repair=repair,
        )
    )
