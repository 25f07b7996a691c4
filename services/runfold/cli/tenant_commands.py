"""The options of `runfold tenants`. `tenants.py` has what the commands do."""

import re
from pathlib import Path
from typing import Annotated

import typer

from runfold.cli.running import load_command, run, settings_in_force

tenants = typer.Typer(
    no_args_is_help=True,
    help="Add, list, limit, export and drop tenants: the customers of one installation.\n\nNeeds Kafka.",
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The tenant's name: up to 32 of A-Z, a-z, 0-9 and -.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")]

_LIFTED = -1

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3}


def _limit(text: str) -> int:
    match = re.fullmatch(r"(\d{1,16})([kmg]?)", text.strip().lower())
    if text.strip().lower() == "none":
        return _LIFTED
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a limit: write 500, 10k, 5m, 2g, or none")
    return int(match[1]) * _UNITS[match[2]]


def _quota(help_: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        help=help_, parser=_limit, metavar="LIMIT", show_default="as it is"
    )
    return option


@tenants.command(epilog="Example: runfold tenants add acme")
def add(
    name: Name,
    *,
    partitions: Annotated[
        int | None,
        typer.Option(
            help="Partitions of each shared topic; fixed for ever.", min=1, max=1000, show_default="1"
        ),
    ] = None,
    database: Annotated[
        str | None, typer.Option(help="Name of the MongoDB database.", show_default="the tenant's name")
    ] = None,
) -> None:
    """Add a tenant: its topics and its entry in the registry.

    Needs Kafka. Adding a tenant again changes nothing. Topics that exist under the name stay as
    they are, so that an installation with this prefix becomes a tenant. Stop its services first.
    """
    add_tenant = load_command("tenants", "add")
    run(add_tenant(settings_in_force(), name=name, partitions=partitions, database=database))


@tenants.command("list", epilog="Example: runfold tenants list --json")
def list_(as_json: AsJson = False) -> None:
    """List the tenants with their partitions, open runs and quotas.

    Needs Kafka and MongoDB.
    """
    run(load_command("tenants", "ls")(settings_in_force(), as_json=as_json))


@tenants.command(epilog="Example: runfold tenants quota acme --requests-per-minute 600 --open-runs none")
def quota(
    name: Name,
    *,
    requests_per_minute: Annotated[int | None, _quota("Requests to the HTTP API.")] = None,
    open_runs: Annotated[int | None, _quota("Runs that have not ended, those of sessions included.")] = None,
    bytes_per_day: Annotated[int | None, _quota("Bytes of the bodies that publish.")] = None,
    model_tokens_per_day: Annotated[
        int | None, _quota("Tokens of language models that the runs record.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change the quotas of a tenant, or print them.

    Needs Kafka. A LIMIT is a number such as 500, 10k, 5m or 2g; `none` lifts the quota. The name
    may also be RUNFOLD_PREFIX, for the installation itself.
    """
    limits = {
        "requests_per_minute": requests_per_minute,
        "open_runs": open_runs,
        "bytes_per_day": bytes_per_day,
        "model_tokens_per_day": model_tokens_per_day,
    }
    changes = {key: None if value == _LIFTED else value for key, value in limits.items() if value is not None}
    run(load_command("tenants", "quota")(settings_in_force(), name=name, changes=changes, as_json=as_json))


@tenants.command(epilog="Example: runfold tenants export acme acme-2026-11-23")
def export(
    name: Name,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is empty or does not exist.")],
    without_archive: Annotated[
        bool, typer.Option("--without-archive", help="Leave out archived runs, which you copy yourself.")
    ] = False,
) -> None:
    """Write everything of a tenant into a folder, as files that need no Runfold to read.

    Needs Kafka, and the blob store if there is one.

    The records of all topics are lines of JSON, with offset, time, key, headers and value. The
    tenant may be used meanwhile. A tenant with archived runs is refused without
    `--without-archive`: copy its folder of the archive too, while no archiver of it runs.
    """
    export_tenant = load_command("tenants", "export")
    run(export_tenant(settings_in_force(), name=name, folder=folder, without_archive=without_archive))


@tenants.command("import", epilog="Example: runfold tenants import acme-2026-11-23")
def import_(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that `tenants export` has written.")
    ],
    database: Annotated[
        str | None, typer.Option(metavar="NAME", help="The tenant's MongoDB database; by default as before.")
    ] = None,
) -> None:
    """Bring an exported tenant back, under the name that it had.

    Needs Kafka and MongoDB, and the blob store if the export has blobs.

    The tenant must not exist, and the database must have no data. If the command breaks off, drop
    the tenant and begin again.
    """
    run(load_command("tenants", "bring_back")(settings_in_force(), folder=folder, database=database))


@tenants.command(epilog="Example: runfold tenants drop acme")
def drop(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the name.")] = False,
) -> None:
    """Delete a tenant for good: topics, database, archive, blobs, consumer groups and API keys.

    Needs Kafka and MongoDB. All services refuse the tenant within a second. If the command breaks
    off, run it again. Afterwards the name is free.
    """
    if not yes:
        typed = typer.prompt(f"This deletes everything of the tenant {name}. Type its name to go on")
        if typed != name:
            raise typer.BadParameter("the names differ: nothing was deleted")
    run(load_command("tenants", "drop")(settings_in_force(), name=name))
