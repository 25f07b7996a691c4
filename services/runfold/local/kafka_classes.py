"""Keeps Kafka's classes as Java has loaded them (AppCDS), so that later starts do not load them
again.
"""

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .errors import StartError
from .java import find_java
from .kafka import Java, kafka_service
from .kafka_jars import kafka_jars
from .lock import exclusive
from .ports import free_port

_RECORD_SECONDS = 300


async def kafka_java(*, heap_mb: int | None = None, progress: Callable[[str], None]) -> Java:
    """The Java of this machine, with Kafka's jars and classes. Raises `MissingProgramError` and
    `StartError`.

    The file of the classes lies beside the jars. The first call of each Java starts a Kafka and
    stops it, to make the file. A Java that cannot do that goes without.
    """
    program = find_java()
    java = Java(program=program, jars=await kafka_jars(program, progress=progress), heap_mb=heap_mb)
    classes = java.jars / f"classes-{_name(program)}.jsa"
    if not classes.exists():
        async with exclusive(classes.with_suffix(".lock"), wait_seconds=_RECORD_SECONDS):
            if not classes.exists():
                progress("keeping Kafka's classes for faster starts (only this once)")
                await _record(java, classes)
    return replace(java, classes=classes) if classes.stat().st_size else java


async def _record(java: Java, classes: Path) -> None:
    """Makes the file of classes, or an empty one."""
    with tempfile.TemporaryDirectory(dir=java.jars, prefix="classes-") as folder:
        draft = Path(folder) / "draft.jsa"
        draft.touch()
        try:
            server = await kafka_service(
                replace(java, records_classes=draft),
                data_dir=Path(folder),
                port=free_port(),
                controller_port=free_port(),
            )
            await server.start()
            await server.stop()
        except StartError:
            draft.write_bytes(b"")
        draft.rename(classes)


def _name(program: Path) -> str:
    """Another one for each Java, also after an update of it."""
    program = program.resolve()
    status = program.stat()
    return hashlib.sha256(f"{program} {status.st_mtime_ns} {status.st_size}".encode()).hexdigest()[:12]
