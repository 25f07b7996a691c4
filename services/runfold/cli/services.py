"""Runfold's services as child processes of a command."""

import sys
from pathlib import Path

from runfold.local import LocalStack, Service, ready_url


def service_process(name: str, stack: LocalStack, *, log_dir: Path, port: int, **settings: str) -> Service:
    """`runfold serve NAME` on `port`, with the servers of `stack`. The projector's health is one
    port further.
    """
    health = port + 1 if name == "projector" else port
    return Service(
        name,
        [sys.executable, "-m", "runfold.cli", "serve", name, "--port", str(port)],
        ready=ready_url(f"http://127.0.0.1:{health}/health/ready"),
        log=log_dir / f"{name}.log",
        env={"RUNFOLD_KAFKA": stack.kafka, "RUNFOLD_MONGO": stack.mongo, **settings},
    )
