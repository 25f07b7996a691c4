"""`runfold rebuild`: builds all projections anew, with a progress bar, or folds single runs
anew.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from runfold.cli.garbage import collect_rarely
from runfold.cli.terminal import new_console
from runfold.log.catalog import partition_of
from runfold.log.fetch_answer import silent_about
from runfold.log.partition_counts import counted
from runfold.log.reader import LogGoneError
from runfold.projector import rebuild as rebuilding
from runfold.projector.mending import find_log
from runfold.projector.rebuild_losses import Missing
from runfold.projector.refold import refold
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.store.quarantine import run_id_of
from runfold_schemas.errors import RunfoldError, RunNotFoundError


class NoLogError(RunfoldError):
    """Kafka has no log of a run that is to be folded anew."""

    def __init__(self, run_id: str, *, is_known: bool) -> None:
        cure = (
            "Restore its topic, or run `runfold rebuild --missing keep`, which keeps all runs without a log"
            " as they are stored, or `--missing drop`, which deletes them"
            if is_known
            else "GET /v1/runs lists the runs that exist"
        )
        super().__init__(f"run {run_id!r} has no log in Kafka. {cure}")
        self.run_id = run_id


async def rebuild(settings: Settings, *, missing: Missing | None = None) -> None:
    """Returns when readers use the new projections, and projectors keep them up to date."""
    collect_rarely()
    console = new_console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("records"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("folding the log", total=None)

        def report(progress: rebuilding.RebuildProgress) -> None:
            bar.update(task, completed=progress.done, total=progress.total)

        def switched() -> None:
            bar.update(task, description="switched to the new projections")

        progress = await rebuilding.rebuild(settings, report=report, switched=switched, missing=missing)
    for run_id in progress.quarantined:
        console.print(
            f"run {run_id} is in quarantine: see `runfold quarantine ls`", highlight=False, markup=False
        )
    without_log = ""
    if missing is not None or progress.kept:
        without_log = f", kept {progress.kept:,} runs read-only, dropped {progress.dropped:,} runs"
    console.print(
        f"rebuilt {progress.total:,} records{without_log}; readers use the new projections",
        highlight=False,
        soft_wrap=True,
    )


async def rebuild_runs(settings: Settings, run_ids: Sequence[str]) -> None:
    """Folds single runs anew, in place. The logs count, also if MongoDB has more of a run."""
    console = new_console(soft_wrap=True)
    log = await counted(settings.log().of_visitor())
    async with connect(settings.mongo, settings.database) as database, AsyncExitStack() as stack:
        stores = Edition.of(database, await Editions(database).current_or_first())
        stack.enter_context(silent_about(await stores.skips.reader()))
        for run_id in run_ids:
            try:
                done = await refold(stores, log, await find_log(log, run_id), cuts_stored=True)
            except (LogGoneError, RunNotFoundError) as error:
                is_known = isinstance(error, LogGoneError) or bool(await stores.runs.document(run_id))
                raise NoLogError(run_id, is_known=is_known) from error
            if await stores.quarantine.get(run_id_of(run_id)) is not None:
                owner = partition_of(log.topics, run_id)
                await stores.quarantine.request(run_id_of(run_id), "retry", owner=owner)
            console.print(
                f"run {run_id}: {done.end:,} offsets of the log, {done.documents} documents written",
                highlight=False,
                markup=False,
            )
