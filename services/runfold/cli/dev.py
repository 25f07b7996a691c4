"""`runfold dev`: the whole stack on this machine, kept up, with its data kept."""

import asyncio
import shlex
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from runfold.cli.services import service
from runfold.local import LocalStack, Supervisor
from runfold.settings import Settings, variable
from runfold_schemas.errors import ConfigurationError

_FREED_SECONDS = 1.0
"""What was started by a `dev` that has just been killed needs a moment to go."""

_POLL_SECONDS = 0.05


async def dev(data: Path, *, port: int, kafka_port: int, mongo_port: int) -> None:
    console = Console(soft_wrap=True)

    def say(line: str) -> None:
        console.print(f"[dim]{line}[/]", highlight=False)

    await check_ports(
        {
            "--port": port,
            "--port (one further, for the projector's health)": port + 1,
            "--kafka-port": kafka_port,
            "--mongo-port": mongo_port,
        }
    )
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
            if settings := _exports(stack):
                console.print(f"elsewhere export {settings}    (for verify, replay and the others)")
            console.print(f"data      {data}    Ctrl-C stops everything and keeps it")
            await asyncio.Event().wait()


async def check_ports(ports: Mapping[str, int]) -> None:
    """Raises `ConfigurationError` for a port that cannot be listened on; `ports` are by the option
    that gives them.
    """
    deadline = time.monotonic() + _FREED_SECONDS
    taken: dict[int, str] = {}
    for option, port in ports.items():
        if not 0 < port < 65_536:
            raise ConfigurationError(f"{option}: {port} is no port; 1 to 65535 are")
        if port in taken:
            raise ConfigurationError(f"{option}: {port} is that of {taken[port]} too: choose another one")
        taken[port] = option
    for option, port in ports.items():
        while (reason := _refusal(port)) and time.monotonic() < deadline:  # noqa: ASYNC110 - another process frees it
            await asyncio.sleep(_POLL_SECONDS)
        if reason:
            raise ConfigurationError(
                f"{option}: port {port} cannot be listened on ({reason}): choose another one"
            )


def _refusal(port: int) -> str | None:
    with socket.socket() as probe:
        # As the servers do it: what is left of closed connections is in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def _exports(stack: LocalStack) -> str:
    """What another terminal has to export to reach the stack; "" where the defaults do."""
    values = {"kafka": stack.kafka, "mongo": stack.mongo}
    return " ".join(
        f"{variable(name)}={shlex.quote(value)}"
        for name, value in values.items()
        if value != Settings.model_fields[name].default
    )
