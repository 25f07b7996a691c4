"""The options of `runfold verify`, `runfold proof` and `runfold evidence`. `verify.py` and
`evidence.py` have what the commands do.
"""

from pathlib import Path
from typing import Annotated

import typer

from runfold.cli.running import load_command, run, settings_in_force

evidence = typer.Typer(
    no_args_is_help=True,
    help="Make and show the keys that the heads of logs are signed with.\n\nNeeds no server.",
)


def verify(
    run_id: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Compare only this run; by default, all.", show_default=False),
    ] = None,
    restore: Annotated[
        bool, typer.Option("--restore", help="Make what differs in MongoDB what the log says.")
    ] = False,
    chain: Annotated[
        bool, typer.Option("--chain", help="Compare log and MongoDB with what was signed instead.")
    ] = False,
) -> None:
    """Compare the projections with the log, and name every difference.

    Needs Kafka and MongoDB. The exit code is 1 if there is a difference, with --restore if one is
    left, and 3 if there is none but something is in quarantine.
    """
    if chain and restore:
        raise typer.BadParameter("--chain restores nothing")
    if chain:
        code = run(load_command("evidence", "verify_chain")(settings_in_force(), run_id=run_id))
    else:
        code = run(load_command("verify")(settings_in_force(), run_id=run_id, restore=restore))
    if code:
        raise typer.Exit(code)


def proof(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", help="The record's offset.", min=0)],
) -> None:
    """Print a proof that a record is in its run's log, as JSON.

    Needs Kafka. docs/check_proof.py checks the proof without Runfold.
    """
    run(load_command("evidence", "proof")(settings_in_force(), run_id=run_id, offset=offset))


@evidence.command(epilog="Example: runfold evidence generate signing-keys.pem")
def generate(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file, which may not exist yet.")],
) -> None:
    """Make a new signing key, and print its public key.

    The file keeps the public halves of the keys before, so that what they signed still counts.
    Needs no server. Restart the projectors afterwards.
    """
    run(load_command("evidence", "generate")(path))


@evidence.command(epilog="Example: runfold evidence keys --pem")
def keys(
    pem: Annotated[bool, typer.Option("--pem", help="Print PEM blocks instead of digits.")] = False,
) -> None:
    """Print the public keys of RUNFOLD_SIGNING_KEYS, the signing one first.

    Needs no server.
    """
    run(load_command("evidence", "keys")(settings_in_force(), pem=pem))
