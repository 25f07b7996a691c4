"""`runfold dev`: Kafka, MongoDB, the HTTP API, a projector and if wanted an archiver, restarted if
they die.
"""

import asyncio
import shlex
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from runfold.archive.table import check_libraries
from runfold.cli.dev_logs import DevLogs
from runfold.cli.services import service_process
from runfold.cli.terminal import new_console
from runfold.evidence.keys import add_key
from runfold.local import LocalStack, Supervisor
from runfold.settings import Settings, variable
from runfold_schemas.errors import ConfigurationError

_FREED_SECONDS = 1.0
"""How long to wait for the ports of a `runfold dev` that was killed a moment ago."""

_POLL_SECONDS = 0.05


async def dev(
    data: Path,
    *,
    port: int,
    kafka_port: int,
    mongo_port: int,
    archive_url: str | None = None,
    is_verbose: bool = False,
) -> None:
    """Runs the stack until the task is cancelled. Shows the warnings and errors of its services, or
    all lines of their logs. With the URL of an archive, ended runs are archived there.

    Raises `ConfigurationError`, for example for a port that cannot be listened on.
    """
    if archive_url is not None:
        check_libraries()
    console = new_console(soft_wrap=True)

    def say(line: str) -> None:
        console.print(f"[dim]{escape(line)}[/]", highlight=False)

    await check_ports(
        {
            "--port": port,
            "--port (the projector's health is one port further)": port + 1,
            "--kafka-port": kafka_port,
            "--mongo-port": mongo_port,
            **({"--port (the archiver's health is two ports further)": port + 2} if archive_url else {}),
        }
    )
    say("starting Kafka and MongoDB (the first time, Maven downloads Kafka)")
    async with LocalStack(data_dir=data, kafka_port=kafka_port, mongo_port=mongo_port, progress=say) as stack:
        own = {"blobs": (stack.data_dir / "blobs").as_uri(), "signing_keys": _signing_keys(stack.data_dir)}
        ports = {"api": port, "projector": port}
        if archive_url is not None:
            own["archive_url"], ports["archiver"] = archive_url, port + 2
        variables = {variable(name): value for name, value in own.items()}
        # They are shown in this terminal.
        variables[variable("log_format")] = "text"
        services = [
            service_process(name, stack, log_dir=data, port=port, **variables) for name, port in ports.items()
        ]
        say(f"starting {', '.join(ports)}")
        async with Supervisor([stack.kafka_server, stack.mongo_server, *services], say=say):
            _print_addresses(console, stack, data=data, port=port, own=own)
            servers = [stack.kafka_server.log, stack.mongo_server.log]
            shown = {service.name: service.log for service in services}
            await DevLogs(shown, servers, say=say, is_verbose=is_verbose).follow()


def _signing_keys(data: Path) -> str:
    """The path of the keys that sign the evidence of this stack. The first start makes them."""
    path = data / "signing-keys.pem"
    if not path.exists():
        add_key(path)
    return str(path)


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


def _print_addresses(
    console: Console, stack: LocalStack, *, data: Path, port: int, own: Mapping[str, str]
) -> None:
    for name, value in {
        "HTTP API": f"http://127.0.0.1:{port}",
        "its pages": f"http://127.0.0.1:{port}/docs",
        "console": f"http://127.0.0.1:{port}/",
        "projector": f"http://127.0.0.1:{port + 1}/health/ready",
        "Kafka": stack.kafka,
        "MongoDB": stack.mongo,
        "blobs": own["blobs"],
        **({"archive": own["archive_url"]} if "archive_url" in own else {}),
        "data, logs": f"{data}",
    }.items():
        console.print(f"{name:<11} {value}", markup=False, highlight=False)
    if exports := _exports({"kafka": stack.kafka, "mongo": stack.mongo, **own}):
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


def _exports(values: Mapping[str, str]) -> str:
    """The variables by which another terminal reaches the stack; "" if the defaults do."""
    return " ".join(
        f"{variable(name)}={shlex.quote(value)}"
        for name, value in values.items()
        if value != Settings.model_fields[name].default
    )
