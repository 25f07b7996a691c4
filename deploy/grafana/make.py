"""Prints the dashboard `runfold.json`. Change this script, and run it again:

python deploy/grafana/make.py > deploy/grafana/runfold.json
"""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

_WIDTH = 8
_HEIGHT = 7
_COLUMNS = 24 // _WIDTH
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

_P95 = "histogram_quantile(0.95, sum by (le{by}) (rate({name}_bucket{labels}[5m])))"


def p95(name: str, by: str = "", labels: str = "") -> str:
    """The 95th percentile of a histogram."""
    return _P95.replace("{by}", f", {by}" if by else "").replace("{name}", name).replace("{labels}", labels)


ROWS: dict[str, list[tuple[str, str, list[tuple[str, str]]]]] = {
    "Is everything folded?": [
        ("Lag of the fold", "s", [("max(runfold_fold_lag_seconds)", "oldest record")]),
        ("Records that wait", "short", [("sum(runfold_fold_lag_records)", "records")]),
        (
            "From append to storage",
            "s",
            [(p95("runfold_fold_delay_seconds"), "p95")],
        ),
        (
            "Events by outcome",
            "ops",
            [("sum by (outcome) (rate(runfold_folded_events_total[5m]))", "{{outcome}}")],
        ),
        (
            "Events by type",
            "ops",
            [("topk(10, sum by (type) (rate(runfold_folded_events_total[5m])))", "{{type}}")],
        ),
        (
            "Events over HTTP",
            "ops",
            [("sum(rate(runfold_published_events_total[5m]))", "published")],
        ),
    ],
    "Projectors": [
        (
            "Partitions of the catalog",
            "short",
            [("sum(runfold_catalog_partitions)", "with a projector")],
        ),
        (
            "Runs",
            "short",
            [
                ("sum(runfold_active_runs)", "tailed"),
                ("sum(runfold_backlog_runs)", "behind their log"),
            ],
        ),
        ("Stuck work", "short", [("sum by (what) (runfold_stuck)", "{{what}}")]),
        (
            "Processor time",
            "short",
            [("sum by (instance) (rate(process_cpu_seconds_total[5m]))", "{{instance}}")],
        ),
        ("Memory", "bytes", [("sum by (instance) (process_resident_memory_bytes)", "{{instance}}")]),
        ("Tenants", "short", [("sum by (state) (runfold_hosted_tenants)", "{{state}}")]),
    ],
    "What waits for an operator": [
        ("Quarantine", "short", [("sum by (kind) (runfold_quarantined)", "{{kind}}")]),
        ("Records in the topic of dead letters", "short", [("sum(runfold_dead_letters_kept)", "records")]),
        (
            "Differences of the last verify",
            "short",
            [("sum(runfold_verify_differences)", "differences")],
        ),
        (
            "Time since the last verify",
            "s",
            [("time() - max(runfold_verify_timestamp_seconds > 0)", "age")],
        ),
        ("Rebuild", "percentunit", [("max(runfold_rebuild_progress_ratio)", "folded")]),
        (
            "Damaged documents",
            "short",
            [("sum by (collection) (increase(runfold_damaged_documents_total[1h]))", "{{collection}}")],
        ),
    ],
    "Runs": [
        ("Runs by status", "short", [("sum by (status) (runfold_runs)", "{{status}}")]),
        ("Topics of runs", "short", [("sum(runfold_run_topics)", "topics")]),
        (
            "Refused effects",
            "short",
            [("sum(increase(runfold_refused_effects_total[1h]))", "events")],
        ),
    ],
    "Archive": [
        (
            "Runs",
            "short",
            [
                ("sum(runfold_archiver_waiting_runs)", "waiting"),
                ("sum(runfold_archiver_set_aside_runs)", "set aside"),
            ],
        ),
        ("Waiting time", "s", [("max(runfold_archiver_oldest_waiting_seconds)", "oldest run")]),
        (
            "Time since the last commit",
            "s",
            [("time() - max(runfold_archiver_commit_timestamp_seconds > 0)", "age")],
        ),
        (
            "Archived",
            "ops",
            [
                ("sum(rate(runfold_archived_runs_total[5m]))", "runs"),
                ("sum(rate(runfold_archived_records_total[5m]))", "records"),
            ],
        ),
        ("Archived bytes", "Bps", [("sum(rate(runfold_archived_bytes_total[5m]))", "records")]),
        (
            "Topics deleted, attempts failed",
            "short",
            [
                ("sum(increase(runfold_archiver_deleted_topics_total[1h]))", "topics deleted"),
                ("sum(increase(runfold_archiver_failures_total[1h]))", "attempts failed"),
            ],
        ),
    ],
    "Servers": [
        ("Answering", "short", [("min by (server) (runfold_server_up)", "{{server}}")]),
        (
            "Time of requests, p95",
            "s",
            [
                (
                    p95(
                        "runfold_server_request_seconds",
                        "server, operation",
                        '{operation!~"fetch|getMore|join_group|sync_group"}',
                    ),
                    "{{server}} {{operation}}",
                )
            ],
        ),
        (
            "Errors",
            "ops",
            [("sum by (server) (rate(runfold_server_errors_total[5m]))", "{{server}}")],
        ),
    ],
    "HTTP": [
        (
            "Requests",
            "reqps",
            [("sum by (status) (rate(runfold_request_seconds_count[5m]))", "{{status}}")],
        ),
        (
            "Time to an answer, p95",
            "s",
            [("topk(10, " + p95("runfold_request_seconds", "route") + ")", "{{route}}")],
        ),
        (
            "Refused",
            "ops",
            [
                ("sum by (reason) (rate(runfold_refused_connections_total[5m]))", "{{reason}}"),
                ("sum by (quota) (rate(runfold_quota_refusals_total[5m]))", "quota {{quota}}"),
            ],
        ),
    ],
}
"""The panels of each row: title, unit, and queries with the names of their lines."""


def _panels() -> Iterator[dict[str, Any]]:
    ids, y = count(1), 0
    for title, panels in ROWS.items():
        at = {"h": 1, "w": 24, "x": 0, "y": y}
        yield {
            "id": next(ids),
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": at,
            "panels": [],
        }
        for number, panel in enumerate(panels):
            line, column = divmod(number, _COLUMNS)
            at = {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": y + 1 + line * _HEIGHT}
            yield {"id": next(ids), "gridPos": at, **_panel(*panel)}
        y += 1 + -(-len(panels) // _COLUMNS) * _HEIGHT


def _panel(title: str, unit: str, queries: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": expr, "legendFormat": name}
            for number, (expr, name) in enumerate(queries)
        ],
    }


def dashboard() -> dict[str, Any]:
    """The dashboard, for the import in Grafana."""
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "uid": "runfold",
        "title": "Runfold",
        "tags": ["runfold"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [source]},
        "panels": [*_panels()],
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
