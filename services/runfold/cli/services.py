"""Our services as child processes of a command."""

import sys
from pathlib import Path

from runfold.local import LocalStack, Service, ready_url


def service(part: str, stack: LocalStack, *, log_dir: Path, port: int, **settings: str) -> Service:
    """`runfold serve PART` on `port`, against `stack`; the projector's health is one port
    further.
    """
    health = port + 1 if part == "projector" else port
    return Service(
        part,
        [sys.executable, "-m", "runfold.cli", "serve", part, "--port", str(port)],
        ready=ready_url(f"http://127.0.0.1:{health}/health/ready"),
        log=log_dir / f"{part}.log",
        env={"RUNFOLD_KAFKA": stack.kafka, "RUNFOLD_MONGO": stack.mongo, **settings},
    )
