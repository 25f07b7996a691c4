"""Kafka and MongoDB on this machine, without Docker: two child processes, and one directory for all
their data.

    data_dir
    ├── lock               held as long as one of the processes lives
    ├── kafka/  mongo/     their data
    ├── kafka.properties   written again at each start
    └── kafka.log  mongo.log
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from runfold.store.replica_set import REPLICA_SET

from .errors import DirectoryError, StartError
from .kafka import kafka_service
from .kafka_classes import kafka_java
from .lock import exclusive
from .mongo import mongo_service
from .ports import free_port
from .service import Service
from .together import together

# After a SIGKILL of their owner, the processes of an old stack need a moment to end.
LOCK_SECONDS = 1.0


class LocalStack:
    """A real Kafka and a real MongoDB that run for the length of the `async with` block. Their data
    stay.

        async with LocalStack(data_dir=Path(".runfold"), progress=print) as stack:
            await serve(stack.kafka, stack.mongo)

    Without ports, free ports are chosen at each start, and others if a port is taken meanwhile.
    Without `kafka_heap_mb`, Kafka's heap follows the number of its logs. `progress` is called with
    a line for each step that takes time. `kafka_server` and `mongo_server` can be killed and
    started again, on the same ports. Raises `DirectoryError`, `InUseError`, `MissingProgramError`
    and `StartError`.
    """

    kafka_server: Service
    mongo_server: Service

    def __init__(
        self,
        *,
        data_dir: Path,
        kafka_port: int | None = None,
        mongo_port: int | None = None,
        kafka_heap_mb: int | None = None,
        mongo_cache_gb: float = 0.25,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self._given_ports = {kafka_port, mongo_port} - {None}
        self._kafka_port = kafka_port or free_port()
        self._mongo_port = mongo_port or free_port()
        self._kafka_heap_mb = kafka_heap_mb
        self._mongo_cache_gb = mongo_cache_gb
        self._progress = progress
        self._services: list[Service] = []
        self._exit = AsyncExitStack()

    @property
    def kafka(self) -> str:
        """Kafka's address, as for `bootstrap_servers`."""
        return f"127.0.0.1:{self._kafka_port}"

    @property
    def mongo(self) -> str:
        """MongoDB's connection string. It names the replica set, so that a client waits for the
        primary after a restart.
        """
        return f"mongodb://127.0.0.1:{self._mongo_port}/?replicaSet={REPLICA_SET}"

    async def __aenter__(self) -> Self:
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.data_dir).close()
        except OSError as error:
            reason = "it is a file" if self.data_dir.is_file() else error.strerror or str(error)
            raise DirectoryError(self.data_dir, reason=reason) from error
        async with AsyncExitStack() as exit_stack:
            lock = await exit_stack.enter_async_context(
                exclusive(self.data_dir / "lock", wait_seconds=LOCK_SECONDS)
            )
            exit_stack.push_async_callback(self._stop)
            await together(self._start_kafka(lock), self._start_mongo(lock))
            self._exit = exit_stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.aclose()

    async def _start_kafka(self, lock: int) -> None:
        java = await kafka_java(heap_mb=self._kafka_heap_mb, progress=self._progress)
        while True:
            self.kafka_server = await kafka_service(
                java,
                data_dir=self.data_dir,
                port=self._kafka_port,
                controller_port=free_port(),
                inherit=[lock],
                say=self._progress,
            )
            try:
                return await self._start(self.kafka_server, self.kafka)
            except StartError as error:
                # The other port is the controller's, which nobody gives.
                is_given = self._kafka_port in self._given_ports and self.kafka in error.output_line
                if is_given or not error.is_port_taken:
                    raise
            if self._kafka_port not in self._given_ports:
                self._kafka_port = free_port()

    async def _start_mongo(self, lock: int) -> None:
        while True:
            self.mongo_server = mongo_service(
                data_dir=self.data_dir,
                port=self._mongo_port,
                cache_gb=self._mongo_cache_gb,
                inherit=[lock],
                say=self._progress,
            )
            try:
                return await self._start(self.mongo_server, f"127.0.0.1:{self._mongo_port}")
            except StartError as error:
                if self._mongo_port in self._given_ports or not error.is_port_taken:
                    raise
            self._mongo_port = free_port()

    async def _start(self, service: Service, address: str) -> None:
        self._services.append(service)
        start = time.monotonic()
        await service.start()
        self._progress(f"{service.name} is up at {address} ({time.monotonic() - start:.1f} s)")

    async def _stop(self) -> None:
        await together(*(service.stop() for service in self._services))
