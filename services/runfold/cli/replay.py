"""`runfold replay`: rebuilds one run from its log."""

from rich.console import Console

from runfold import Runfold
from runfold.cli.show import show_ledger, show_record
from runfold.settings import Settings
from runfold_projections.ledger import build_messages_from_log
from runfold_projections.run import RunRecord, fold


async def replay(run_id: str, settings: Settings, *, as_json: bool) -> None:
    """Prints the run's record and its ledger."""
    async with Runfold.of(settings.log()) as runfold:
        run = await runfold.get_run(run_id)
        history = [admitted async for admitted in run.history()]
    record = fold(RunRecord(run_id=run_id), history)
    messages = build_messages_from_log(
        (admitted.record.offset, admitted.event)
        for admitted in history
        if admitted.counts and admitted.event is not None
    )
    console = Console()
    if as_json:
        console.print_json(
            data={
                "run": record.model_dump(mode="json"),
                "messages": [message.model_dump(mode="json") for message in messages],
            }
        )
    else:
        show_record(console, record)
        show_ledger(console, messages)
