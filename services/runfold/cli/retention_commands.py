"""The options of `runfold retention`. `retention.py` has what the command does."""

from typing import Annotated

import typer

from runfold.cli.ages import age_of
from runfold.cli.running import load_command, parse_pairs, run, settings_in_force


def retention(
    *,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE", help="Runs whose last event is older, as 90d or 52w.", show_default=False
        ),
    ],
    agent: Annotated[str | None, typer.Option(help="Runs of this agent only.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Runs with this label only; the option can be repeated."),
    ] = None,
    include_open: Annotated[
        bool, typer.Option("--include-open", help="Also runs that have not ended.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many runs match, with examples.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
) -> None:
    """Delete old runs, with their events, blobs and archived records.

    Needs Kafka, MongoDB and a running projector. An archiver removes the archived records
    afterwards.

    The own runs of sessions stay: they are deleted with their sessions, which can have a time to
    live. The command can be interrupted: a further call goes on.
    """
    settings, labels = settings_in_force(), parse_pairs("--label", label)
    work = load_command("retention")(
        settings,
        age=age_of(older_than),
        agent_id=agent,
        labels=labels,
        include_open=include_open,
        is_dry=dry_run,
        confirm=None if yes else _confirm,
    )
    run(work)


def _confirm(question: str) -> None:
    typer.confirm(question, abort=True, err=True)
