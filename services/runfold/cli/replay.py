"""`runfold replay`: one run from the log alone."""

from rich.console import Console

from runfold import Runfold
from runfold.cli.show import show_ledger, show_record
from runfold.settings import Settings
from runfold_projections.ledger import build_messages_from_log
from runfold_projections.run import RunRecord, fold


async def replay(run_id: str, settings: Settings, *, as_json: bool) -> None:
    async with Runfold.of(settings.log()) as runfold:
        run = await runfold.get_run(run_id)
        admitted = [one async for one in run.history()]
    record = fold(RunRecord(run_id=run_id), admitted)
    messages = build_messages_from_log(
        (one.record.offset, one.event) for one in admitted if one.counts and one.event is not None
    )
    console = Console()
    if as_json:
        console.print_json(
            data={
                "run": record.model_dump(mode="json"),
                "messages": [one.model_dump(mode="json") for one in messages],
            }
        )
    else:
        show_record(console, record)
        show_ledger(console, messages)
