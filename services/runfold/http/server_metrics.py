"""The metrics of the servers that a service needs: whether they answer, and how fast."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

from prometheus_client import REGISTRY, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runfold.telemetry import outages
from runfold.telemetry.outages import ServerState, is_node, kind_of
from runfold.telemetry.request_times import REQUEST_TIMES

_SECONDS: Final = Histogram(
    "runfold_server_request_seconds",
    "Time of requests to Kafka, MongoDB and models; a fetch of Kafka waits for records",
    ["server", "operation"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120),
)
_ERRORS: Final = Counter(
    "runfold_server_errors", "Requests to Kafka, MongoDB and models that failed", ["server", "operation"]
)

_LABELS: Final = {
    "Kafka": "kafka",
    "MongoDB": "mongodb",
    "The embedding endpoint": "embedding_model",
    "The model": "language_model",
}


def server_document(state: ServerState) -> dict[str, str | None]:
    """What health says of a server."""
    return {
        "server": state.server,
        "status": "away" if state.is_away else "ok",
        "since": state.since.isoformat() if state.since is not None else None,
        "last_error": state.last_error,
        "last_error_at": state.last_error_at.isoformat() if state.last_error_at is not None else None,
    }


@cache
def _seconds_of(server: str, operation: str) -> Histogram:
    return _SECONDS.labels(server, operation)


def _observe(server: str, operation: str, seconds: float, failed: bool) -> None:
    _seconds_of(server, operation).observe(seconds)
    if failed:
        _ERRORS.labels(server, operation).inc()


class _Up(Collector):
    """Whether any node of each server answers. A server that was never asked has no value."""

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "runfold_server_up", "1 if the server answers this process, otherwise 0", labels=["server"]
        )
        for kind, label in _LABELS.items():
            states = [state for state in outages.states() if kind_of(state.server) == kind]
            if states:
                family.add_metric([label], float(_answers(states)))
        yield family


def _answers(states: Sequence[ServerState]) -> bool:
    """Whether a node answers, and nothing says that the whole server does not."""
    nodes = [state.is_away for state in states if is_node(state.server)]
    return not any(state.is_away for state in states if not is_node(state.server)) and not (
        nodes and all(nodes)
    )


REQUEST_TIMES.observe = _observe
REGISTRY.register(_Up())
