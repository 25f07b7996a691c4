"""`runfold fork`: begins a new run with the events of another."""

from runfold import Runfold
from runfold.cli.terminal import new_console, print_line
from runfold.settings import Settings


async def fork(
    source_id: str,
    settings: Settings,
    *,
    at: int | None,
    before_turn: str | None,
    run_id: str | None,
    session_id: str | None,
    repair: bool,
) -> None:
    """Forks the run. Prints the id of the fork, and on stderr where it comes from."""
    async with Runfold.of(settings.log()) as runfold:
        source = await runfold.get_run(source_id)
        run = await source.fork(
            at=at, before_turn=before_turn, run_id=run_id, session_id=session_id, repair=repair
        )
    print_line(run.run_id)
    if (origin := run.forked_from) is not None:
        new_console(stderr=True, soft_wrap=True).print(
            f"{origin.events} events of {origin.run_id} up to offset {origin.offset}",
            style="dim",
            markup=False,
            highlight=False,
        )
