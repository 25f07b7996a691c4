"""A real Kafka as a child process: one node that is broker and controller."""

import base64
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .java_options import count_logs, java_options
from .readiness import ready_line
from .service import Service, run_to_end

SERVER = "kafka.Kafka"
LOG4J = Path(__file__).with_name("kafka_server") / "log4j2.properties"

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    # Otherwise a client's metadata refresh would recreate deleted topics, with seven days'
    # retention.
    "auto.create.topics.enable": "false",
    # One broker can hold one replica.
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Many partitions spread groups over brokers. One broker gains nothing from the default of 50,
    # and creating them delays the first group.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    # Topics of runs allow batches of 8 MiB, dead letters 16 MiB. Fetches must allow as much.
    "message.max.bytes": str(16 * 1024 * 1024),
    "replica.fetch.max.bytes": str(16 * 1024 * 1024),
    "replica.fetch.response.max.bytes": str(32 * 1024 * 1024),
    # The controller writes each change at once, so a new topic takes 4 to 7 ms instead of 28 to 35.
    "controller.quorum.append.linger.ms": "0",
    # A group starts with its first member instead of waiting 3 s for others.
    "group.initial.rebalance.delay.ms": "0",
    # Every topic preallocates two index files of this size (by default 10 MiB), and every run has a
    # topic.
    "log.index.size.max.bytes": str(64 * 1024),
    # The cleaner takes 128 MiB of heap by default. 8 MiB are enough for 300,000 keys.
    "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
}

_LOADING = re.compile(r"\((\d+)/(\d+) completed in |: Loaded ([1-9]\d*) logs ")

SESSION = {"broker.session.timeout.ms": "60000"}
"""The controller fences a broker that sends no heartbeat for this time: until the next one, its
partitions have no leader, and no topic is created. A busy machine may stand still for the default
of 9 s, and no second broker could take over.
"""

SESSION_AFTER_A_KILL = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "1000"}
"""A killed broker can return only when its old session has ended, so that one is short. Heartbeats
must be at least twice as frequent.
"""


@dataclass(frozen=True, kw_only=True)
class Java:
    """The Java that runs Kafka's classes. Its heap follows the number of logs, unless `heap_mb` is
    given. `classes` are those that it does not load anew, and `records_classes` is where a broker
    that stops writes them.
    """

    program: Path
    jars: Path
    heap_mb: int | None = None
    classes: Path | None = None
    records_classes: Path | None = None

    def command(self, main_class: str, *arguments: str, logs: int = 0) -> list[str]:
        options = java_options(logs, heap_mb=self.heap_mb)
        if self.classes is not None:
            options.append(f"-XX:SharedArchiveFile={self.classes}")
        if self.records_classes is not None and main_class == SERVER:
            options.append(f"-XX:ArchiveClassesAtExit={self.records_classes}")
        logging = f"-Dlog4j2.configurationFile={LOG4J}"
        return [str(self.program), *options, logging, "-cp", f"{self.jars}/*", main_class, *arguments]


async def kafka_service(
    java: Java,
    *,
    data_dir: Path,
    port: int,
    controller_port: int,
    inherit: Sequence[int] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Service:
    """A Kafka that keeps its log in `data_dir`. Formats a new log directory."""
    log_dir = data_dir / "kafka"
    if not log_dir.exists():
        await _format(java, log_dir)
    properties = data_dir / "kafka.properties"
    properties.write_text(_properties(log_dir, port=port, controller_port=controller_port))
    return Service(
        "Kafka",
        # Decided at each start, because there may be more logs than at the start before.
        lambda: java.command(SERVER, str(properties), *_session(log_dir), logs=count_logs(log_dir)),
        ready=ready_line("Kafka Server started"),
        log=data_dir / "kafka.log",
        inherit=inherit,
        # A broker that is killed checks all its logs at the next start.
        stops_slowly=True,
        say=say,
        doing=_loading,
    )


def _loading(service: Service) -> str:
    """How far a starting broker is with its logs, in words."""
    lines = _LOADING.findall(service.logged())
    if not lines:
        return "starting"
    done, total, all_ = lines[-1]
    if all_:
        return f"starting: all {int(all_):,} logs are loaded, and their topics come next"
    return f"starting: {int(done):,} of {int(total):,} logs are loaded"


def _session(log_dir: Path) -> list[str]:
    """The options for the session of a broker, decided at each start."""
    was_started = (log_dir / "__cluster_metadata-0").exists()
    was_killed = was_started and not (log_dir / ".kafka_cleanshutdown").exists()
    settings = SESSION_AFTER_A_KILL if was_killed else SESSION
    return [option for setting in settings.items() for option in ("--override", "=".join(setting))]


async def _format(java: Java, log_dir: Path) -> None:
    # Formatted under another name and renamed last, so that a killed process leaves no incomplete
    # log directory.
    draft = log_dir.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    properties = log_dir.with_suffix(".format.properties")
    properties.write_text(_properties(draft, port=1, controller_port=2))  # formatting opens no port
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    arguments = ["format", f"--cluster-id={cluster_id}", f"--config={properties}"]
    await run_to_end("Kafka's storage tool", java.command("kafka.tools.StorageTool", *arguments))
    properties.unlink()
    draft.rename(log_dir)


def _properties(log_dir: Path, *, port: int, controller_port: int) -> str:
    addresses = {
        "log.dirs": str(log_dir),
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
    }
    return "".join(f"{name}={value}\n" for name, value in (SETTINGS | addresses).items())
