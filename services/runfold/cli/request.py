"""`runfold replay --format`: prints a run's ledger as a model provider's request."""

import json
from base64 import b64encode
from typing import Unpack

from rich.markup import escape

from runfold import Runfold
from runfold.cli.terminal import new_console, print_json_document
from runfold.settings import Settings
from runfold_projections.budget import Budget, Fitted
from runfold_projections.providers import EncodeOptions
from runfold_schemas.messages import Provider


async def request(
    run_id: str,
    settings: Settings,
    *,
    provider: Provider,
    fit_tokens: int | None = None,
    **options: Unpack[EncodeOptions],
) -> None:
    """Prints the request as JSON. Prints on stderr what the request needs beside its messages, the
    messages and the parts that were left out, and the parts that were changed.
    """
    async with Runfold.of(settings.log().of_visitor()) as runfold:
        run = await runfold.get_run(run_id)
        budget = Budget(tokens=fit_tokens) if fit_tokens else None
        encoded = await run.ledger(provider, fit=budget, **options)
    print_json_document(encoded.body, default=lambda value: b64encode(value).decode())
    if encoded.next_request:
        needed = escape(json.dumps(encoded.next_request))
        new_console(stderr=True).print("[yellow]beside the messages:[/]", needed, highlight=False)
    if encoded.fitted is not None:
        new_console(stderr=True).print(_describe(encoded.fitted), highlight=False)
    changes = [("left out", fault) for fault in encoded.dropped]
    changes += [("restated", fault) for fault in encoded.restated]
    for change, fault in changes:
        new_console(stderr=True).print(
            f"[yellow]{change}:[/] part {fault.part_index} of message {fault.message_index}:",
            escape(fault.text),
            highlight=False,
        )


def _describe(fitted: Fitted) -> str:
    counted = f"[yellow]{fitted.tokens:,} tokens[/] by {fitted.counted_by}"
    if not fitted.left_out:
        return counted
    return f"{counted}; {len(fitted.left_out)} messages before offset {fitted.end_offset} are left out"
