"""Downloads the jars of a Kafka server with Maven, once for each user."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from .cache import cache_dir
from .errors import MissingProgramError
from .lock import exclusive
from .service import run_to_end

KAFKA_VERSION = "4.3.1"
POM = Path(__file__).with_name("kafka_server") / "pom.xml"
DOWNLOAD_SECONDS = 900


async def kafka_jars(java: Path, *, progress: Callable[[str], None]) -> Path:
    """The folder with the jars. Only the first call on a machine needs Maven and the network."""
    jars = cache_dir() / f"kafka-{KAFKA_VERSION}"
    if jars.is_dir():
        return jars
    # Locked, because Maven's own repository does not support two writers either.
    async with exclusive(jars.with_suffix(".lock"), wait_seconds=DOWNLOAD_SECONDS):
        if not jars.is_dir():
            progress(f"fetching Kafka {KAFKA_VERSION} with Maven (45 MB, only this once)")
            await _download(java, jars)
    return jars


async def _download(java: Path, jars: Path) -> None:
    # The folder gets its final name last, so a killed download leaves no incomplete folder with
    # that name.
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix="download-") as folder:
        target = Path(folder) / "jars"
        await run_to_end(
            "Maven", _command(target), env={"PATH": f"{java.parent}{os.pathsep}{os.environ['PATH']}"}
        )
        target.rename(jars)


def _command(target: Path) -> list[str]:
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingProgramError(
            "mvn", remedy="install Maven (package `maven`), which downloads Kafka's jars once"
        )
    return [
        maven,
        "--batch-mode",
        "--quiet",
        f"--file={POM}",
        f"-Dkafka.version={KAFKA_VERSION}",
        f"-DoutputDirectory={target}",
        "dependency:copy-dependencies",
    ]
