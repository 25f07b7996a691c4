"""The options of `runfold runs` and `runfold agents`, whose modules have what they do."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from runfold.cli.running import load_command, parse_pairs, run, settings_in_force


class StatusName(StrEnum):
    """The statuses of runs, and `open`: the own runs of sessions that go on."""

    pending = "pending"
    running = "running"
    paused = "paused"
    open = "open"
    completed = "completed"
    failed = "failed"
    canceled = "canceled"


class SortName(StrEnum):
    """The orders of a list of runs."""

    started = "started"
    updated = "updated"
    ended = "ended"
    duration = "duration"
    tokens = "tokens"


_TIME: Final = "TIME"

_LIVE: Final = frozenset({"pending", "running", "paused"})


def runs(
    *,
    status: Annotated[
        list[StatusName] | None,
        typer.Option(help="Runs in this status; repeat it for several. `open`: sessions that go on."),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Runs of this agent.")] = None,
    session: Annotated[str | None, typer.Option(help="Runs of this session.")] = None,
    user: Annotated[str | None, typer.Option(help="Runs that were opened for this user.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Runs with this label; the option can be repeated."),
    ] = None,
    since: Annotated[str | None, typer.Option(metavar=_TIME, help="Runs that started since then.")] = None,
    until: Annotated[str | None, typer.Option(metavar=_TIME, help="Runs that started before.")] = None,
    failed_since: Annotated[
        str | None, typer.Option(metavar=_TIME, help="Runs that failed since then.")
    ] = None,
    ended_since: Annotated[
        str | None, typer.Option(metavar=_TIME, help="Runs that ended since then.")
    ] = None,
    updated_since: Annotated[
        str | None, typer.Option(metavar=_TIME, help="Runs with an event since then.")
    ] = None,
    idle: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="Runs that have not ended, and had no event for so long, as 30m."),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help="Words that begin words of a run's id, agent, session, user, error or labels."),
    ] = None,
    sort: Annotated[
        SortName, typer.Option(help="The order; by duration or ended, only runs that have ended.")
    ] = SortName.started,
    ascending: Annotated[bool, typer.Option("--ascending", help="The smallest first.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="List at most this many.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show the list anew every second, until Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")] = False,
) -> None:
    """List runs with their status, times, tokens and cost, the newest first.

    Needs MongoDB.

    A TIME is ISO 8601 with a time zone, as 2026-01-01T12:00:00Z, or an age, as 30m, 1h, 2d or 1w.

    The own run of a session is `open` while it is running, because it goes on until the session
    ends. So `--status running` lists other runs only.
    """
    if follow and as_json:
        raise typer.BadParameter("--follow shows a table: leave out --json")
    statuses = tuple(each.value for each in status or ())
    options = {
        "status": statuses,
        # Over HTTP, `running` has the own runs of sessions too, as in earlier versions.
        "is_session": False if "running" in statuses and _LIVE.issuperset(statuses) else None,
        "agent_id": agent,
        "session_id": session,
        "user_id": user,
        "labels": parse_pairs("--label", label),
        "since": since,
        "until": until,
        "failed_since": failed_since,
        "ended_since": ended_since,
        "updated_since": updated_since,
        "idle": idle,
        "text": text,
        "sort": sort.value,
        "ascending": ascending,
    }
    list_runs = load_command("runs")
    run(list_runs(settings_in_force(), options=options, limit=limit, follow=follow, as_json=as_json))


def agents(
    agent: Annotated[
        str | None, typer.Argument(metavar="[AGENT]", help="Show this agent's models and tools too.")
    ] = None,
    since: Annotated[
        str, typer.Option(metavar=_TIME, help="Runs that started since then; at most 92 days ago.")
    ] = "7d",
    tools: Annotated[bool, typer.Option("--tools", help="List the tools of all agents instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")] = False,
) -> None:
    """Show what agents did: runs, failures, durations, tokens, cost and tools.

    Needs MongoDB.
    """
    if tools:
        if agent is not None:
            raise typer.BadParameter("AGENT shows its tools without it", param_hint="--tools")
        run(load_command("agents", "tools")(settings_in_force(), since=since, as_json=as_json))
        return
    show_agents = load_command("agents")
    run(show_agents(settings_in_force(), agent_id=agent, since=since, as_json=as_json))
