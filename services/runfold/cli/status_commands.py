"""The options of `runfold status`. `status.py` has what the command does."""

from typing import Annotated

import typer

from runfold.cli.running import load_command, run, settings_in_force


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print it as one JSON document.")] = False,
) -> None:
    """Show which projectors work, how far they are behind, and what is stuck or set aside.

    Needs MongoDB, and says if Kafka does not answer. The exit code is 0 if everything works,
    otherwise 1.
    """
    code = run(load_command("status")(settings_in_force(), as_json=as_json))
    if code:
        raise typer.Exit(code)
