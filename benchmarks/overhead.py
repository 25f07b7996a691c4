"""Measures what metrics and spans take of the processor time of the API and of the projector.

Processes that differ in these alone do the same work in turn.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import throughput
from processor import processor_seconds
from query import Figures, opened, projected, serving
from spans import collector
from workers import folded

from runfold import Runfold
from runfold.local import Service, free_port, ready_url
from runfold.settings import Settings

ROUNDS = 8
REQUESTS = 50
"""Of each kind, in each round."""

LISTED = 50
EVENTS = 60_000
RUNS = 100
EXPORT_SECONDS = 0.3
"""The exporter has sent everything by then."""

_WITHOUT_METRICS = """
import runpy
import runfold.http.server_metrics
from runfold.telemetry.request_times import REQUEST_TIMES
from prometheus_client import Counter, Gauge, Histogram
REQUEST_TIMES.observe = None
for kind, names in ((Counter, ["inc"]), (Gauge, ["inc", "dec", "set"]), (Histogram, ["observe"])):
    for name in names:
        setattr(kind, name, lambda *_, **__: None)
runpy.run_module("runfold.cli", run_name="__main__", alter_sys=True)
"""


_log = logging.getLogger(__name__)


class Kind(NamedTuple):
    """How processes of one kind are started."""

    name: str
    python: Sequence[str] = (sys.executable, "-m", "runfold.cli")
    environment: Mapping[str, str] = {}


class Process(NamedTuple):
    kind: str
    pid: int
    port: int


async def overhead(settings: Settings) -> Figures:
    """The API's and the projector's processor time without metrics and spans, and with them."""
    with collector() as url:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        kinds = [
            Kind("without metrics", (sys.executable, "-c", _WITHOUT_METRICS)),
            Kind("metrics"),
            Kind("metrics, spans of a tenth", environment=endpoint),
            Kind("metrics, spans of all", environment=endpoint | {"OTEL_TRACES_SAMPLER": "always_on"}),
        ]
        requests = await of_requests(settings, kinds)
        events = await of_events(settings, kinds)
    figures: Figures = []
    for what, micros in (("a request to the API", requests), ("an event to the projector", events)):
        least = micros[kinds[0].name]
        for kind in kinds:
            target = "<= 105 %" if kind is not kinds[0] else ""
            share = f"{micros[kind.name] / least:.1%}, " if target else ""
            figures.append(
                (f"processor time of {what}, {kind.name}", target, f"{share}{micros[kind.name]:.1f} us")
            )
    return figures


async def of_requests(settings: Settings, kinds: Sequence[Kind]) -> dict[str, float]:
    """The microseconds of a request by kind of API. A third each publish an event, read a run, and
    list the newest runs.
    """
    own = settings.model_copy(
        update={"prefix": f"{settings.prefix}-api", "database": f"api-{uuid4().hex[:6]}"}
    )
    async with Runfold.of(own.log()) as runfold, serving(own, "projector"), serving(own, "query") as query:
        runs = [await opened(runfold) for _ in range(LISTED)]
        await asyncio.gather(*(projected(query, run, 1) for run in runs))
        async with processes(own, "api", kinds) as apis:
            return await asyncio.to_thread(_in_turn, apis, [run.run_id for run in runs])


def _in_turn(apis: Sequence[Process], run_ids: Sequence[str]) -> dict[str, float]:
    spent = {api.kind: 0.0 for api in apis}
    for number in range(ROUNDS + 1):
        turn = number % len(apis)
        for api in (*apis[turn:], *apis[:turn]):
            connection = HTTPConnection("127.0.0.1", api.port)
            before = processor_seconds(api.pid)
            for run_id in run_ids[:REQUESTS]:
                _request(connection, run_id)
            connection.close()
            time.sleep(EXPORT_SECONDS)
            if number:  # the first round warms up
                spent[api.kind] += processor_seconds(api.pid) - before
    count = ROUNDS * min(REQUESTS, len(run_ids)) * 3
    micros = {kind: seconds / count * 1_000_000 for kind, seconds in spent.items()}
    _log.info("a request to the API: %s", micros)
    return micros


def _request(connection: HTTPConnection, run_id: str) -> None:
    event = json.dumps({"type": "user_message", "data": {"message": "Is there a train to Lyon?"}})
    for method, path, body in (
        ("POST", f"/v1/runs/{run_id}/events", event),
        ("GET", f"/v1/runs/{run_id}", None),
        ("GET", f"/v1/runs?limit={LISTED}", None),
    ):
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        response.read()
        assert response.status < 300, response.status


async def of_events(settings: Settings, kinds: Sequence[Kind]) -> dict[str, float]:
    """The microseconds of an event by kind of projector. Each folds a backlog of its own."""
    micros = {}
    for kind in kinds:
        name = f"{settings.prefix}-{uuid4().hex[:4]}"
        changes: dict[str, Any] = {"prefix": name, "database": name, "session_timeout_seconds": 60}
        own = Settings(**{field: getattr(settings, field) for field in ("kafka", "mongo")}, **changes)
        async with processes(own, "projector", [kind]) as [projector], Runfold.of(own.log()) as runfold:
            runs = [await opened(runfold) for _ in range(RUNS)]
            await folded(own, RUNS)
            os.kill(projector.pid, signal.SIGSTOP)
            await asyncio.gather(*(throughput.publish(run, EVENTS // RUNS) for run in runs))
            before = processor_seconds(projector.pid)
            os.kill(projector.pid, signal.SIGCONT)
            await folded(own, RUNS + EVENTS)
            await asyncio.sleep(EXPORT_SECONDS)
            micros[kind.name] = (processor_seconds(projector.pid) - before) / EVENTS * 1_000_000
            _log.info("an event to the projector, %s: %.1f us", kind.name, micros[kind.name])
    return micros


@asynccontextmanager
async def processes(settings: Settings, part: str, kinds: Sequence[Kind]) -> AsyncIterator[list[Process]]:
    """A process of each kind, for the length of the block."""
    environment = {
        f"RUNFOLD_{name.upper()}": str(getattr(settings, name)) for name in settings.model_fields_set
    } | {"RUNFOLD_LOG_LEVEL": "WARNING"}
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        started: list[Process] = []
        for kind in kinds:
            port = free_port()
            service = Service(
                kind.name,
                [*kind.python, "serve", part, "--port", str(port - (part == "projector"))],
                ready=ready_url(f"http://127.0.0.1:{port}/health/ready"),
                log=Path(folder) / kind.name,
                env={**environment, **kind.environment},
            )
            await service.start()
            stack.push_async_callback(service.stop)
            assert service.pid is not None
            started.append(Process(kind.name, service.pid, port))
        yield started
