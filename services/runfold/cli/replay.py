"""`runfold replay`: rebuilds one run from its log."""

from runfold import Runfold
from runfold.cli.show import show_ledger, show_record
from runfold.cli.terminal import new_console, print_json_document
from runfold.client.run_log import missing_log
from runfold.encryption.hiding import hide_run
from runfold.log.reader import LogGoneError
from runfold.query.folded_run import FoldedRun
from runfold.query.run_document import run_document
from runfold.settings import Settings
from runfold_projections.activity import NO_ACTIVITY, fold_activity
from runfold_projections.ledger import build_messages_from_log
from runfold_projections.run import RunRecord, fold
from runfold_projections.usage import RunUsage, fold_usage


async def replay(run_id: str, settings: Settings, *, as_json: bool) -> None:
    """Prints the run's record and its ledger."""
    async with Runfold.of(settings.log().of_visitor()) as runfold:
        run = await runfold.get_run(run_id)
        try:
            history = [admitted async for admitted in run.history()]
        except LogGoneError:
            raise missing_log(run_id) from None
    folded = FoldedRun(
        hide_run(fold(RunRecord(run_id=run_id), history)),
        fold_usage(RunUsage(), history),
        fold_activity(NO_ACTIVITY, history),
        run.life.log_id,
    )
    document = run_document(folded, settings.price_table())
    messages = build_messages_from_log(
        (admitted.record.offset, admitted.event)
        for admitted in history
        if admitted.counts and admitted.event is not None
    )
    if as_json:
        print_json_document(
            {
                "run": document.model_dump(mode="json"),
                "messages": [message.model_dump(mode="json") for message in messages],
            }
        )
    else:
        console = new_console()
        show_record(console, document)
        show_ledger(console, messages)
