"""`runfold sessions`: lists sessions, read from the log."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from runfold import Runfold
from runfold.client.session import Session
from runfold.settings import Settings
from runfold_schemas.runs import ABOUT_THE_RUN

_UNLIMITED_WIDTH = 10_000
"""The width of a table that is not printed to a terminal: nothing in it is cut."""


async def sessions(settings: Settings, *, app: str | None, user: str | None, limit: int) -> None:
    """Prints the newest sessions as a table."""
    async with Runfold.of(settings.log()) as runfold:
        newest, cursor = await runfold.sessions.list(app=app, user=user, limit=limit)
    console = Console()
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
        Console(stderr=True).print(
            f"there are more than these {limit} sessions: use --limit to list more", style="dim"
        )


def _row(session: Session) -> tuple[Text, ...]:
    counts = session.run.counts.items()
    event_count = sum(count for kind, count in counts if kind not in ABOUT_THE_RUN)
    updated = session.updated_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    status = "ended" if session.ended else "active"
    return tuple(map(Text, (session.session_id, session.run.run_id, status, updated, str(event_count))))
