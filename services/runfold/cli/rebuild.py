"""`runfold rebuild`: builds all projections anew, with a progress bar."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from runfold.cli.garbage import collect_rarely
from runfold.projector import rebuild as rebuilding
from runfold.settings import Settings


async def rebuild(settings: Settings) -> None:
    """Returns when readers use the new projections and the old ones are dropped."""
    collect_rarely()
    console = Console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("records"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("folding the log", total=None)

        def report(progress: rebuilding.Progress) -> None:
            bar.update(task, completed=progress.done, total=progress.total)

        def switched() -> None:
            bar.update(task, description="switched to the new projections")

        progress = await rebuilding.rebuild(settings, report=report, switched=switched)
    console.print(
        f"rebuilt {progress.total:,} records; readers use the new projections, the old ones are dropped"
    )
