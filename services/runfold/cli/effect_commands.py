"""`runfold effects`: the keys by which publishers may have effects beyond their runs."""

from pathlib import Path
from typing import Annotated

import typer

from runfold.cli.running import settings_in_force
from runfold.cli.terminal import print_line
from runfold.log.effect_keys import add_effect_key, read_effect_keys
from runfold_schemas.errors import ConfigurationError

effects = typer.Typer(
    no_args_is_help=True,
    help="Make and show the keys by which programs on Kafka may change what runs share.\n\nNeeds no server.",
)


@effects.command(epilog="Example: runfold effects generate effect-keys.txt")
def generate(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file, which may not exist yet.")],
) -> None:
    """Make a new key, and put it before the keys of the file.

    The first key signs, and all keys count. Give the file to the projectors first.

    Needs no server.
    """
    print_line(f"{path} has a new key with the id {add_effect_key(path)}.")


@effects.command(epilog="Example: runfold effects keys")
def keys() -> None:
    """Print the ids of the keys in RUNFOLD_EFFECT_KEYS, the signing one first.

    Needs no server.
    """
    path = settings_in_force().effect_keys
    if path is None:
        raise ConfigurationError("RUNFOLD_EFFECT_KEYS is not set: it names the file with the keys of effects")
    for key_id in read_effect_keys(path).keys:
        print_line(key_id)
