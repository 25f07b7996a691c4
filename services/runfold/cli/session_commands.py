"""The options of `runfold sessions` and `runfold session`. `sessions.py` has what they do."""

from typing import Annotated

import typer

from runfold.cli.running import load_command, run, settings_in_force


def sessions(
    app: Annotated[str | None, typer.Option(help="List only sessions of this app.")] = None,
    user: Annotated[str | None, typer.Option(help="List only sessions of this user.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="List at most this many.")] = 50,
) -> None:
    """List sessions with their runs, the newest first.

    Needs Kafka.
    """
    run(load_command("sessions")(settings_in_force(), app=app, user=user, limit=limit))


def session(
    session_id: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")],
    *,
    as_of_offset: Annotated[
        int | None, typer.Option(metavar="N", help="As it was up to this offset, which is included.")
    ] = None,
    as_of_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="As it was at this time: ISO 8601, or an age as 2h.")
    ] = None,
    as_of_turn: Annotated[
        str | None, typer.Option(metavar="TURN", help="As it was at the end of this turn.")
    ] = None,
    before_turn: Annotated[
        str | None, typer.Option(metavar="TURN", help="As it was before this turn.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show a session with its state, as it is now or was at an earlier moment.

    Needs Kafka.

    As of an earlier moment, the state has the session's own keys alone, and its labels, name and
    expiry are those of now.
    """
    moment = {
        "as_of_offset": as_of_offset,
        "as_of_time": as_of_time,
        "as_of_turn": as_of_turn,
        "before_turn": before_turn,
    }
    show = load_command("sessions", "show")
    run(show(settings_in_force(), session_id=session_id, moment=moment, as_json=as_json))
