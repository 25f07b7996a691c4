"""The alert rules and the dashboard: every metric exists, and each fault has one alert."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import yaml  # type: ignore[import-untyped]
from tests.alerting import RULES, Samples, holding, rules, samples

import runfold.api.app
import runfold.archiver.service
import runfold.projector.service

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "runfold.json"
OPERATE = (ROOT / "docs" / "operate.md").read_text()

HEALTHY = {
    "runfold_catalog_partitions": 30,
    "runfold_catalog_partitions_expected": 30,
    "runfold_fold_lag_seconds": 0.4,
    'runfold_server_up{server="kafka"}': 1,
    'runfold_server_up{server="mongodb"}': 1,
    'runfold_stuck{what="run"}': 0,
    'runfold_request_seconds_count{route="/v1/runs",status="200"}': 900,
    'runfold_request_seconds_count{route="/v1/runs",status="503"}': 3,
    'runfold_quarantined{kind="run"}': 0,
    "runfold_dead_letters_total": 4,
    "runfold_refused_effects_total": 0,
    'runfold_damaged_documents_total{collection="pages"}': 1,
    "runfold_active_runs": 120,
    'runfold_hosted_tenants{state="failing"}': 0,
    'runfold_hosted_tenants{state="parked"}': 7,
    "runfold_api_keys_silent_seconds": 2,
    "runfold_verify_differences": 0,
    "runfold_verify_timestamp_seconds": 0,
    "runfold_archiver_oldest_waiting_seconds": 40,
    "runfold_archiver_set_aside_runs": 0,
}
"""Metrics of an installation in which everything works. Counters may have counted something, and
nobody has run `verify` yet.
"""

FAULTS: dict[str, dict[str, float | None]] = {
    "RunfoldPartitionsWithoutProjector": {"runfold_catalog_partitions": None},
    "RunfoldFoldLate": {"runfold_fold_lag_seconds": 75},
    "RunfoldServerAway": {'runfold_server_up{server="mongodb"}': 0},
    "RunfoldStuck": {'runfold_stuck{what="run"}': 1},
    "RunfoldRequestsFail": {'runfold_request_seconds_count{route="/v1/runs",status="503"}': 500},
    "RunfoldQuarantine": {'runfold_quarantined{kind="run"}': 1},
    "RunfoldDeadLetters": {"runfold_dead_letters_total": 40},
    "RunfoldRefusedEffects": {"runfold_refused_effects_total": 30},
    "RunfoldDamagedDocuments": {'runfold_damaged_documents_total{collection="pages"}': 30},
    "RunfoldProjectorOverloaded": {"runfold_active_runs": 2500},
    "RunfoldTenantsFailing": {'runfold_hosted_tenants{state="failing"}': 1},
    "RunfoldKeysSilent": {"runfold_api_keys_silent_seconds": 90},
    "RunfoldVerifyDifferences": {"runfold_verify_differences": 2},
    "RunfoldVerifyOld": {"runfold_verify_timestamp_seconds": time.time() - 3 * 86400},
    "RunfoldArchiverLate": {"runfold_archiver_oldest_waiting_seconds": 7200},
    "RunfoldArchiverSetAside": {"runfold_archiver_set_aside_runs": 2},
}
"""What each alert is for. None: nobody answers the scrape."""


def scrape(values: dict[str, float | None]) -> Samples:
    return samples("".join(f"{name} {value}\n" for name, value in values.items() if value is not None))


def metrics() -> set[str]:
    """The names of all series of the services."""
    assert runfold.api
    assert runfold.archiver.service
    assert runfold.projector.service
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}
    return {
        f"{metric.name}{suffix}"
        for metric in prometheus_client.REGISTRY.collect()
        for suffix in suffixes.get(metric.type, [""])
    }


def named(expressions: list[str]) -> set[str]:
    return {name for each in expressions for name in re.findall(r"\b(?:runfold|process)_\w+", each)}


def test_every_metric_of_the_alerts_exists():
    expressions = [rule["expr"] for rule in rules()]

    assert named(expressions) <= metrics()
    assert len(expressions) > 10


def test_every_alert_says_what_to_do():
    for rule in rules():
        assert {"summary", "action"} == rule["annotations"].keys(), rule["alert"]


def test_every_alert_has_a_section_and_each_section_an_alert():
    alerts = OPERATE.partition("\n## Alerts\n")[2].partition("\n## ")[0]

    assert re.findall(r"^### (.+)$", alerts, re.MULTILINE) == [rule["alert"] for rule in rules()]


def test_nothing_is_alerted_while_everything_works():
    assert holding(scrape(HEALTHY), scrape(HEALTHY)) == set()


def test_every_alert_has_a_fault():
    assert FAULTS.keys() == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("alert", FAULTS)
def test_an_alert_holds_for_its_fault_and_no_other(alert: str):
    assert holding(scrape(HEALTHY), scrape({**HEALTHY, **FAULTS[alert]})) == {alert}


@pytest.mark.parametrize(
    "partitions",
    [
        {"runfold_catalog_partitions": 29},
        # A projector that never reached Kafka knows no number.
        {"runfold_catalog_partitions": 0, "runfold_catalog_partitions_expected": 1},
    ],
)
def test_partitions_without_a_projector_are_alerted_whatever_their_number(
    partitions: dict[str, float | None],
):
    alerts = holding(scrape(HEALTHY), scrape({**HEALTHY, **partitions}))

    assert alerts == {"RunfoldPartitionsWithoutProjector"}


def test_prometheus_agrees(tmp_path: Path):
    """With promtool: each fault begins after ten minutes, and its alert fires later, alone."""
    promtool = shutil.which("promtool")
    if promtool is None:
        print("promtool is not installed: Prometheus itself did not check the rules")
        return
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [*map(scenario, FAULTS)]}))

    checked = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stdout + checked.stderr


def scenario(alert: str) -> dict[str, Any]:
    """A test of promtool. Its clock begins in 1970, so only waiting makes anything old."""
    is_old = alert == "RunfoldVerifyOld"
    fault = {"runfold_verify_timestamp_seconds": 1.0} if is_old else FAULTS[alert]
    interval, quiet, fired = ("15m", "2h", "3d") if is_old else ("15s", "9m", _FIRED.get(alert, "25m"))
    return {
        "interval": interval,
        "input_series": [
            {"series": name, "values": _values(value, fault.get(name, value))}
            for name, value in HEALTHY.items()
        ],
        "promql_expr_test": [
            {"expr": _FIRING, "eval_time": quiet, "exp_samples": []},
            {
                "expr": _FIRING,
                "eval_time": fired,
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}],
            },
        ],
    }


_FIRING = 'count by (alertname) (ALERTS{alertstate="firing"}) ^ 0'

_FIRED = {"RunfoldRequestsFail": "14m"}
"""When an alert fires that ends by itself."""


def _values(before: float, after: float | None) -> str:
    return f"{before}+0x40 _x260" if after is None else f"{before}+0x40 {after}+0x260"


def test_every_metric_of_the_dashboard_exists():
    dashboard = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]

    assert named(expressions) <= metrics()
    assert len(expressions) > 15


def test_the_dashboard_is_the_one_that_the_script_makes():
    made = subprocess.run(
        [sys.executable, DASHBOARD.with_name("make.py")], capture_output=True, text=True, check=True
    )

    assert made.stdout == DASHBOARD.read_text()
