"""`runfold dev`: the whole stack on this machine, kept up, with its data kept."""

import asyncio
from pathlib import Path

from rich.console import Console

from runfold.cli.services import service
from runfold.local import LocalStack, Supervisor


async def dev(data: Path, *, port: int, kafka_port: int, mongo_port: int) -> None:
    console = Console(soft_wrap=True)

    def say(line: str) -> None:
        console.print(f"[dim]{line}[/]", highlight=False)

    say("starting Kafka and MongoDB (the first time, Maven fetches Kafka)")
    async with LocalStack(data_dir=data, kafka_port=kafka_port, mongo_port=mongo_port, progress=say) as stack:
        services = [
            service("api", stack, log_dir=data, port=port),
            service("projector", stack, log_dir=data, port=port),
        ]
        say("starting the API and a projector")
        async with Supervisor([stack.kafka_server, stack.mongo_server, *services], say=say):
            console.print(f"API       http://127.0.0.1:{port}    (try it: http://127.0.0.1:{port}/docs)")
            console.print(f"projector http://127.0.0.1:{port + 1}/health/ready")
            console.print(f"Kafka     {stack.kafka}")
            console.print(f"MongoDB   {stack.mongo}")
            console.print(f"data      {data}    Ctrl-C stops everything and keeps it")
            await asyncio.Event().wait()
