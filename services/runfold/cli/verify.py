"""`runfold verify`: compares the projections with the log."""

from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.verify import runs as verifying
from runfold.verify.memories import verify_memories
from runfold.verify.sessions import verify_sessions
from runfold.verify.shared import SharedDifference
from runfold_schemas.errors import RunNotFoundError


async def verify(settings: Settings, *, run_id: str | None) -> int:
    """Prints every difference, and returns how many there are."""
    console = Console(soft_wrap=True)
    runs = sessions = memories = differences = 0
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    async with connect(settings.mongo, settings.database) as database:
        edition = await Editions(database).current()
        if edition is None:
            console.print(
                "this database contains no projections yet: start a projector (`runfold serve projector`)"
            )
            return 1
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("reading the log")
            stores = Edition.of(database, edition)
            async for name, of_run in verifying.verify(settings.log(), stores, run_id=run_id):
                runs, differences = runs + 1, differences + len(of_run)
                bar.update(task, description=f"{runs} runs compared, {differences} differences")
                for difference in of_run:
                    at = f" at offset {difference.offset}" if difference.offset is not None else ""
                    console.print(
                        f"[red]{difference.kind}[/] in run {name}{at}: {difference.detail}", highlight=False
                    )
            if run_id is None:
                bar.update(task, description="reading sessions")
                sessions, shared = await verify_sessions(settings.log(), stores)
                differences += _print_differences(console, shared)
                bar.update(task, description="reading memories")
                memories, shared = await verify_memories(settings.log(), stores)
                differences += _print_differences(console, shared)
    if run_id is not None and not runs:
        raise RunNotFoundError(run_id)
    counts = f"{runs} runs, {sessions} sessions and {memories} memories"
    compared = f"{runs} runs" if run_id is not None else counts
    console.print(f"{compared} compared with the log, {differences} differences")
    return differences


def _print_differences(console: Console, differences: Sequence[SharedDifference]) -> int:
    for difference in differences:
        console.print(f"[red]{difference.kind}[/] in {difference.key}: {difference.detail}", highlight=False)
    return len(differences)
