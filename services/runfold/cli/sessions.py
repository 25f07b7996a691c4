"""`runfold sessions` and `runfold session`: lists sessions and shows one, read from the log."""

import json
from typing import Any

from rich.table import Table
from rich.text import Text

from runfold import Runfold
from runfold.cli.memory_lines import plain, print_fields, with_age
from runfold.cli.terminal import new_console, print_json_line
from runfold.cli.times import time_of
from runfold.client.prefixes import AsOfOptions
from runfold.client.session import Session
from runfold.documents.sessions import session_json
from runfold.settings import Settings
from runfold_schemas.runs import ABOUT_THE_RUN

_UNLIMITED_WIDTH = 10_000
"""The width of a table that is not printed to a terminal: nothing in it is cut."""


async def sessions(settings: Settings, *, app: str | None, user: str | None, limit: int) -> None:
    """Prints the newest sessions as a table."""
    async with Runfold.of(settings.log().of_visitor()) as runfold:
        newest, cursor = await runfold.sessions.list(app=app, user=user, limit=limit)
    console = new_console()
    if not console.is_terminal:
        console.width = _UNLIMITED_WIDTH
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("session", "run", "status"):
        table.add_column(name, overflow="fold")
    table.add_column("updated", no_wrap=True)
    table.add_column("events", justify="right")
    for session in newest:
        table.add_row(*_row(session))
    console.print(table)
    if cursor is not None:
        new_console(stderr=True).print(
            f"there are more than these {limit} sessions: use --limit to list more", style="dim"
        )


async def show(settings: Settings, *, session_id: str, moment: dict[str, Any], as_json: bool) -> None:
    """Prints a session with its state, as it is now or was at an earlier moment."""
    time = moment["as_of_time"]
    options = AsOfOptions(
        as_of_offset=moment["as_of_offset"],
        as_of_time=None if time is None else time_of(time, option="--as-of-time"),
        as_of_turn=moment["as_of_turn"],
        before_turn=moment["before_turn"],
    )
    async with Runfold.of(settings.log().of_visitor()) as runfold:
        session = await runfold.sessions.view(session_id, **options)
    if as_json:
        print_json_line(json.dumps(json.loads(session_json(session))))
    else:
        print_fields(new_console(), _fields(session))


def _fields(session: Session) -> dict[str, Text]:
    record = session.record
    labels = "\n".join(f"{key}: {value}" for key, value in record.labels.items())
    fields = {
        "session": plain(record.session_id),
        "run": plain(record.run_id),
        "app": plain(record.app),
        "user": plain(record.user),
        "name": plain(record.display_name or ""),
        "status": Text(_status(session)),
        "created": Text(with_age(record.created_at)),
        "updated": Text(with_age(session.updated_at)),
        "labels": plain(labels),
        "next offset": Text(str(session.next_offset)),
        "state": plain(json.dumps(dict(session.state), ensure_ascii=False, indent=2)),
    }
    return {name: value for name, value in fields.items() if value.plain}


def _status(session: Session) -> str:
    return "ended" if session.ended else "active"


def _row(session: Session) -> tuple[Text, ...]:
    counts = session.run.counts.items()
    event_count = sum(count for kind, count in counts if kind not in ABOUT_THE_RUN)
    updated = session.updated_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return tuple(
        map(Text, (session.session_id, session.run.run_id, _status(session), updated, str(event_count)))
    )
