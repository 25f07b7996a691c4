"""`runfold replay --format`: prints a run's ledger as a model provider's request."""

import json
from base64 import b64encode

from rich.console import Console

from runfold import Runfold
from runfold.settings import Settings
from runfold_projections.providers import Lossy
from runfold_schemas.messages import Provider


async def request(run_id: str, settings: Settings, *, provider: Provider, lossy: Lossy) -> None:
    """Prints the request as JSON, and on stderr the parts that were left out of it."""
    async with Runfold.of(settings.log()) as runfold:
        run = await runfold.get_run(run_id)
        encoded = await run.ledger(provider, lossy=lossy)
    Console(soft_wrap=True).print_json(
        json.dumps(encoded.body, default=lambda value: b64encode(value).decode())
    )
    for fault in encoded.dropped:
        Console(stderr=True).print(
            f"[yellow]left out:[/] part {fault.part_index} of message {fault.message_index}: {fault.text}",
            highlight=False,
        )
