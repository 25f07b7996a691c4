"""Commands that need no server: the settings, and the rights of programs on Kafka."""

from typing import Annotated

import typer

from runfold.cli.running import settings_in_force
from runfold.cli.terminal import print_line
from runfold.log.acls import Role, acls_of, commands, includes_made_ids
from runfold.settings import Settings, variable
from runfold_schemas.topics import Topics


def acls(
    role: Annotated[
        Role,
        typer.Argument(
            metavar="ROLE",
            help="service: API, projector and operators; client: an agent with the client library, which"
            " with RUNFOLD_ENCRYPTION_KEY may also make and destroy keys of users; archiver: the archiver;"
            " producer:"
            " a program that writes to its own runs. Without RUNFOLD_EFFECT_KEYS, its events may still"
            " change banks, memories and state that other runs share.",
        ),
    ],
    user: Annotated[str, typer.Option(help="The name of the program's login at Kafka.")],
    runs: Annotated[
        str | None, typer.Option(help="The text that the ids of a producer's runs begin with.")
    ] = None,
) -> None:
    """Print the commands of Kafka's own tool that give a program its rights on Kafka.

    Needs no server. RUNFOLD_KAFKA and RUNFOLD_PREFIX decide the addresses and the names. Run it
    again for clients when you switch encryption on.
    """
    if role is Role.producer and not runs:
        raise typer.BadParameter("a producer needs the beginning of its runs' ids", param_hint="--runs")
    if role is not Role.producer and runs is not None:
        raise typer.BadParameter("only a producer is limited to runs", param_hint="--runs")
    if runs is not None and includes_made_ids(runs):
        raise typer.BadParameter(
            f"{runs!r} may also be the beginning of an id that Runfold makes, of a session's run or of a"
            " generation: choose another beginning, such as the agent's name and -",
            param_hint="--runs",
        )
    current = settings_in_force()
    seals = current.encryption_key is not None
    allowed = acls_of(role, Topics(current.prefix), runs=runs or "", seals=seals)
    for command in commands(allowed, kafka=current.kafka, user=user):
        print_line(command)


def settings() -> None:
    """List all settings with their current values.

    Needs no server.
    """
    current = settings_in_force()
    for name, field in Settings.model_fields.items():
        hidden = name == "kafka_options" and current.kafka_options
        value = "(set, not shown)" if hidden else getattr(current, name)
        print_line(f"{variable(name)}={value}")
        print_line(f"    {field.description}")
