"""`runfold dev`: Kafka, MongoDB, the HTTP API and a projector, restarted if they die."""

import asyncio
import shlex
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from runfold.cli.services import service_process
from runfold.local import LocalStack, Supervisor
from runfold.settings import Settings, variable
from runfold_schemas.errors import ConfigurationError

_FREED_SECONDS = 1.0
"""How long to wait for the ports of a `runfold dev` that was killed a moment ago."""

_POLL_SECONDS = 0.05


async def dev(data: Path, *, port: int, kafka_port: int, mongo_port: int) -> None:
    """Runs the stack until the task is cancelled."""
    console = Console(soft_wrap=True)

    def say(line: str) -> None:
        console.print(f"[dim]{line}[/]", highlight=False)

    await check_ports(
        {
            "--port": port,
            "--port (the projector's health is one port further)": port + 1,
            "--kafka-port": kafka_port,
            "--mongo-port": mongo_port,
        }
    )
    say("starting Kafka and MongoDB (the first time, Maven downloads Kafka)")
    async with LocalStack(data_dir=data, kafka_port=kafka_port, mongo_port=mongo_port, progress=say) as stack:
        services = [
            service_process("api", stack, log_dir=data, port=port),
            service_process("projector", stack, log_dir=data, port=port),
        ]
        say("starting the HTTP API and a projector")
        async with Supervisor([stack.kafka_server, stack.mongo_server, *services], say=say):
            _print_addresses(console, stack, data=data, port=port)
            await asyncio.Event().wait()


async def check_ports(ports: Mapping[str, int]) -> None:
    """Raises `ConfigurationError` for a port that cannot be listened on. The keys of `ports` are
    the options that set them.
    """
    deadline = time.monotonic() + _FREED_SECONDS
    taken: dict[int, str] = {}
    for option, port in ports.items():
        if not 0 < port < 65_536:
            raise ConfigurationError(f"{option}: {port} is not a port: choose one from 1 to 65535")
        if port in taken:
            raise ConfigurationError(
                f"{option}: {port} is also the port of {taken[port]}: choose another one"
            )
        taken[port] = option
    for option, port in ports.items():
        while (reason := _why_unavailable(port)) and time.monotonic() < deadline:  # noqa: ASYNC110 - another process frees it
            await asyncio.sleep(_POLL_SECONDS)
        if reason:
            raise ConfigurationError(
                f"{option}: port {port} cannot be listened on ({reason}): choose another one"
            )


def _print_addresses(console: Console, stack: LocalStack, *, data: Path, port: int) -> None:
    for name, value in {
        "HTTP API": f"http://127.0.0.1:{port}",
        "its pages": f"http://127.0.0.1:{port}/docs",
        "projector": f"http://127.0.0.1:{port + 1}/health/ready",
        "Kafka": stack.kafka,
        "MongoDB": stack.mongo,
        "data, logs": f"{data}",
    }.items():
        console.print(f"{name:<11} {value}", markup=False, highlight=False)
    if exports := _exports(stack):
        console.print("For other commands, run first in their terminal:", markup=False)
        console.print(f"    export {exports}", markup=False, highlight=False)
    console.print("Ctrl-C stops everything; the data is kept.", markup=False)


def _why_unavailable(port: int) -> str | None:
    with socket.socket() as probe:
        # The servers set this option too: with it, remains of closed connections do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def _exports(stack: LocalStack) -> str:
    """The variables by which another terminal reaches the stack; "" if the defaults do."""
    values = {"kafka": stack.kafka, "mongo": stack.mongo}
    return " ".join(
        f"{variable(name)}={shlex.quote(value)}"
        for name, value in values.items()
        if value != Settings.model_fields[name].default
    )
