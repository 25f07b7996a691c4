"""The options of `runfold quarantine`. `quarantine.py` has what the commands do."""

from enum import StrEnum
from typing import Annotated

import typer

from runfold.cli.running import load_command, run, settings_in_force

quarantine = typer.Typer(
    no_args_is_help=True,
    help="List what projectors have set aside because it cannot be folded, try it again, or skip it."
    "\n\nNeeds MongoDB; `show` and `skip` need Kafka too.",
)


class KindName(StrEnum):
    """The kinds of entries."""

    run = "run"
    key = "key"
    record = "record"


EntryId = Annotated[
    str,
    typer.Argument(metavar="ID", help="The entry's id, or the id of a run: `r-1` is `run:r-1`."),
]
EntryIds = Annotated[
    list[str],
    typer.Argument(metavar="ID", help="Ids of entries, or of runs: `r-1` is `run:r-1`.", show_default=False),
]
Wait = Annotated[
    float, typer.Option(help="Seconds to wait until a projector has acted; 0: do not wait.", min=0)
]


@quarantine.command("list", epilog="Example: runfold quarantine list --kind run")
@quarantine.command(epilog="Example: runfold quarantine ls --kind run")
def ls(
    kind: Annotated[KindName | None, typer.Option(help="List only entries of this kind.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")] = False,
) -> None:
    """List what is in quarantine, and why.

    Needs MongoDB.
    """
    run(load_command("quarantine", "ls")(settings_in_force(), kind=kind and kind.value, as_json=as_json))


@quarantine.command(epilog="Example: runfold quarantine show r-1")
def show(
    entry_id: EntryId,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show an entry, the record that is the cause, and what can be done.

    Needs Kafka and MongoDB.
    """
    run(load_command("quarantine", "show")(settings_in_force(), entry_id=entry_id, as_json=as_json))


@quarantine.command(epilog="Example: runfold quarantine retry r-1")
def retry(
    entry_ids: EntryIds = [],  # noqa: B006  # typer copies it
    every: Annotated[bool, typer.Option("--all", help="Try everything that is in quarantine.")] = False,
    wait: Wait = 30,
) -> None:
    """Fold entries once more, for example after an upgrade.

    Needs MongoDB, and a projector that runs.

    The exit code is 1 if an entry is in quarantine again.
    """
    if bool(entry_ids) == every:
        raise typer.BadParameter("give the ids of entries, or --all")
    retry_entries = load_command("quarantine", "retry")
    if run(retry_entries(settings_in_force(), entry_ids=entry_ids, wait_seconds=wait)):
        raise typer.Exit(1)


@quarantine.command(epilog="Example: runfold quarantine skip r-1 --yes")
def skip(
    entry_ids: EntryIds,
    offset: Annotated[
        int | None,
        typer.Option(
            help="Skip the folded record at this offset of a run, which need not be in quarantine.", min=0
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask on a terminal.")] = False,
    wait: Wait = 30,
) -> None:
    """Let the records of entries count for nothing, for every reader and for ever.

    Needs Kafka and MongoDB, and a projector that runs. The records stay in the log.

    The exit code is 1 if an entry is in quarantine again, because of a later record.
    """
    if offset is not None:
        if len(entry_ids) != 1:
            raise typer.BadParameter("--offset is for the id of one run")
        skip_offset = load_command("quarantine", "skip_offset")
        run(skip_offset(settings_in_force(), run_id=entry_ids[0], offset=offset, yes=yes))
        return
    skip_entries = load_command("quarantine", "skip")
    if run(skip_entries(settings_in_force(), entry_ids=entry_ids, yes=yes, wait_seconds=wait)):
        raise typer.Exit(1)
