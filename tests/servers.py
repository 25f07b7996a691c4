"""The Kafka and the MongoDB that tests run on: given by the environment, in containers, or as child
processes.
"""

import asyncio
import functools
import gc
import os
import re
import shutil
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.leftovers import own_folder

from runfold.local import LocalStack, free_port
from runfold.local.kafka import SESSION, SETTINGS
from runfold.settings import Settings
from runfold.store.replica_set import REPLICA_SET, bring_up

KAFKA_VARIABLE = "RUNFOLD_TEST_KAFKA"
MONGO_VARIABLE = "RUNFOLD_TEST_MONGO"
COMPOSE = (Path(__file__).parents[1] / "docker-compose.yml").read_text()
DOCKER_SECONDS = 3
MEMORY_FOLDER = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 * 2**30


OwnSettings = Callable[..., Settings]
"""Makes settings from the fields that differ from a test's own: its servers, prefix and
database.
"""


@dataclass(frozen=True, kw_only=True)
class Servers:
    kafka: str
    mongo: str


def source() -> str:
    """Which servers a session takes, in words for pytest's header."""
    if given():
        return f"{KAFKA_VARIABLE} and {MONGO_VARIABLE}"
    return "testcontainers" if docker_answers() else "local stack (no Docker daemon answers)"


@asynccontextmanager
async def servers() -> AsyncIterator[Servers]:
    if addresses := given():
        yield addresses
    elif docker_answers():
        async with containers() as addresses:
            yield addresses
    else:
        with own_folder(prefix="runfold-servers-", parent=fast_folder()) as folder:
            async with LocalStack(data_dir=folder) as stack:
                yield Servers(kafka=stack.kafka, mongo=stack.mongo)


def fast_folder() -> Path | None:
    """A file system in memory with enough space, otherwise None. Kafka and MongoDB wait there for
    no disk. Tests kill servers but never the machine, so no test depends on a disk.
    """
    if not os.access(MEMORY_FOLDER, os.W_OK):
        return None
    return MEMORY_FOLDER if shutil.disk_usage(MEMORY_FOLDER).free >= MEMORY_BYTES_MIN else None


def given() -> Servers | None:
    kafka, mongo = os.environ.get(KAFKA_VARIABLE), os.environ.get(MONGO_VARIABLE)
    if bool(kafka) != bool(mongo):
        raise RuntimeError(f"{KAFKA_VARIABLE} and {MONGO_VARIABLE} are given together or not at all")
    return Servers(kafka=kafka, mongo=mongo) if kafka and mongo else None


@functools.cache
def docker_answers() -> bool:
    import docker  # noqa: PLC0415 - of use only where no addresses are given

    answers = True
    with warnings.catch_warnings():
        # The library leaves its socket open when nobody answers. It is collected here, once the
        # exception that holds it is gone, and so fails no test under "warnings are errors".
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            docker.from_env(timeout=DOCKER_SECONDS).close()  # it asks the daemon for its version
        except docker.errors.DockerException:
            answers = False
        gc.collect()
    return answers


@asynccontextmanager
async def containers() -> AsyncIterator[Servers]:
    """The official images. Each server has one port number inside and outside, since it tells
    clients its own address.
    """
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - asks for Docker when imported
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy  # noqa: PLC0415

    kafka_port, mongo_port = free_port(), free_port()
    kafka = DockerContainer(image("apache/kafka")).waiting_for(LogMessageWaitStrategy("Kafka Server started"))
    for name, value in kafka_environment(kafka_port).items():
        kafka.with_env(name, value)
    kafka.with_env("KAFKA_HEAP_OPTS", "-Xmx2g")  # the image's 1 GB is for 8,000 topics
    mongo = (
        DockerContainer(image("mongo"))
        .with_command(f"mongod --replSet {REPLICA_SET} --bind_ip_all --port {mongo_port}")
        .waiting_for(LogMessageWaitStrategy("Waiting for connections"))
    )
    # `with_bind_ports` takes a number only, and that would listen on every address of the machine.
    kafka.ports[kafka_port], mongo.ports[mongo_port] = ("127.0.0.1", kafka_port), ("127.0.0.1", mongo_port)
    try:
        await asyncio.gather(asyncio.to_thread(kafka.start), asyncio.to_thread(mongo.start))
        await bring_up(f"127.0.0.1:{mongo_port}")
        yield Servers(
            kafka=f"127.0.0.1:{kafka_port}",
            mongo=f"mongodb://127.0.0.1:{mongo_port}/?replicaSet={REPLICA_SET}",
        )
    finally:
        await asyncio.gather(asyncio.to_thread(kafka.stop), asyncio.to_thread(mongo.stop))


def image(name: str) -> str:
    """The image of compose, with its tag and its digest."""
    return re.search(rf"image: ({name}:\S+)", COMPOSE)[1]


def kafka_environment(port: int) -> dict[str, str]:
    """The local stack's settings, spelled as the image reads them."""
    places = {
        "listeners": f"PLAINTEXT://:{port},CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.quorum.voters": "1@127.0.0.1:9093",
    }
    settings = SETTINGS | SESSION | places
    return {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in settings.items()}
