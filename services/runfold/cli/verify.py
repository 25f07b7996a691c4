"""`runfold verify`: MongoDB against the log."""

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
    """Gives the number of differences."""
    console = Console(soft_wrap=True)
    runs = sessions = memories = differences = 0
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    async with connect(settings.mongo, settings.database) as database:
        edition = await Editions(database).current()
        if edition is None:
            console.print("there are no projections in this database yet: is a projector running?")
            return 1
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("reading the log")
            stores = Edition.of(database, edition)
            async for name, found in verifying.verify(settings.log(), stores, run_id=run_id):
                runs, differences = runs + 1, differences + len(found)
                bar.update(task, description=f"{runs} runs compared, {differences} differences")
                for one in found:
                    at = f" at offset {one.offset}" if one.offset is not None else ""
                    console.print(f"[red]{one.kind}[/] in run {name}{at}: {one.detail}", highlight=False)
            if run_id is None:
                bar.update(task, description="reading sessions")
                sessions, shared = await verify_sessions(settings.log(), stores)
                differences += _tell(console, shared)
                bar.update(task, description="reading memories")
                memories, shared = await verify_memories(settings.log(), stores)
                differences += _tell(console, shared)
    if run_id is not None and not runs:
        raise RunNotFoundError(run_id)
    counts = f"{runs} runs, {sessions} sessions and {memories} memories"
    told = f"{runs} runs" if run_id is not None else counts
    console.print(f"{told} compared with the log, {differences} differences")
    return differences


def _tell(console: Console, found: Sequence[SharedDifference]) -> int:
    for one in found:
        console.print(f"[red]{one.kind}[/] in {one.key}: {one.detail}", highlight=False)
    return len(found)
