"""`runfold repair`: appends events until every model provider accepts a run's ledger."""

from rich.markup import escape

from runfold import Runfold
from runfold.cli.terminal import new_console
from runfold.settings import Settings


async def repair(run_id: str, settings: Settings) -> None:
    """Repairs the run, and prints the events that were appended for it."""
    async with Runfold.of(settings.log().of_visitor()) as runfold:
        run = await runfold.get_run(run_id)
        appended = {position.offset for position in await run.repair()}
        async for admitted in run.history(first_offset=min(appended, default=0)):
            if admitted.record.offset in appended and admitted.event is not None:
                new_console().print(
                    f"offset {admitted.record.offset}: {admitted.event.type}",
                    escape(str(admitted.event.data)),
                    soft_wrap=True,
                )
    if not appended:
        new_console().print(
            "nothing to repair: no provider refuses this ledger for a reason that events can remove"
        )
