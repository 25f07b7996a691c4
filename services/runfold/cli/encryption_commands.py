"""The options of `runfold encryption`. `encryption.py` has what the commands do."""

import typer

from runfold.cli.running import load_command, run, settings_in_force

encryption = typer.Typer(
    no_args_is_help=True, help="Rotate the keys that events are encrypted with.\n\nNeeds Kafka."
)


@encryption.command(epilog="Example: runfold encryption rotate")
def rotate() -> None:
    """Give each tenant a new key, and wrap the keys of all users by that.

    Needs Kafka and RUNFOLD_ENCRYPTION_KEY. Services and clients go on. Give them the new key of the
    operator first; remove the old one some minutes afterwards. If the command breaks off, run it
    again.
    """
    run(load_command("encryption", "rotate_keys")(settings_in_force()))
