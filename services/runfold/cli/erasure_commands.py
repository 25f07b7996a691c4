"""The options of `runfold erase` and `runfold erased`. `erasure.py` has what the commands do."""

from pathlib import Path
from typing import Annotated

import typer

from runfold.cli.running import first_error, load_command, report, run, settings_in_force
from runfold_schemas.errors import RunfoldError

User = Annotated[str, typer.Argument(metavar="USER", help="The user's id, as sessions name it.")]


def erase(
    user: User,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
) -> None:
    """Delete all data of a user, and print the receipt as JSON.

    Needs Kafka, MongoDB and a running projector, and a running archiver if runs of the user are
    archived. It can be interrupted: a further call goes on.
    """
    settings = settings_in_force()
    if not yes:
        question = f"Delete all data of user {user!r} in the tenant {settings.prefix}? Nothing restores it."
        typer.confirm(question, abort=True, err=True)
    run(load_command("erasure", "erase")(settings, user))


def erased(
    user: User,
    *,
    receipt: Annotated[
        Path | None,
        typer.Option(
            help="The answer to the erasure: the ids in it are looked for too.", exists=True, dir_okay=False
        ),
    ] = None,
    api: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask this API too, with RUNFOLD_API_KEY.")
    ] = None,
) -> None:
    """Search Kafka, MongoDB, the archive and the blob store for what is left of a user.

    Needs Kafka and MongoDB. It searches for the user's id, and for the ids of their sessions and
    runs. MongoDB's oplog, backups and audit logs are not searched. The exit code is 1 if something
    readable is left, and 2 after an error.
    """
    search, code = load_command("erasure", "erased"), 2
    try:
        code = run(search(settings_in_force(), user, receipt=receipt, api=api))
    except* RunfoldError as group:
        report("[bold red]error:[/]", str(first_error(group)))
    if code:
        raise typer.Exit(code)
