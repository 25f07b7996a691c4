"""`runfold sessions`: which sessions there are, from the log alone."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from runfold import Runfold
from runfold.client.session import Session
from runfold.settings import Settings
from runfold_schemas.events import ABOUT_THE_RUN

_WIDE = 10_000
"""Where nobody looks at it, a table is as wide as what is in it."""


async def sessions(settings: Settings, *, app: str | None, user: str | None, limit: int) -> None:
    """Lists the newest sessions."""
    async with Runfold.of(settings.log()) as runfold:
        found, cursor = await runfold.sessions.list(app=app, user=user, limit=limit)
    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("session", "run", "status"):
        table.add_column(name, overflow="fold")
    table.add_column("updated", no_wrap=True)
    table.add_column("events", justify="right")
    for one in found:
        table.add_row(*_row(one))
    console.print(table)
    if cursor is not None:
        Console(stderr=True).print(f"there are more than these {limit}: see --limit", style="dim")


def _row(session: Session) -> tuple[Text, ...]:
    counts = session.run.counts.items()
    said = sum(count for kind, count in counts if kind not in ABOUT_THE_RUN)
    updated = session.updated_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    status = "ended" if session.ended else "active"
    return tuple(map(Text, (session.session_id, session.run.run_id, status, updated, str(said))))
