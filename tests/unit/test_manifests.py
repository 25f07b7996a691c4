"""The files for Docker Compose and Kubernetes: each service is in both, with its probes."""

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes"

PORTS = {"api": 8080, "projector": 8081, "tracer": 8080, "archiver": 8080}
PROFILES = {"tracer": ["tracer"], "archiver": ["archive"]}
"""Of the services that do not start by themselves."""


def containers() -> dict[str, tuple[Any, Any]]:
    """The workload and the container of each service."""
    documents = [
        document
        for path in MANIFESTS.rglob("*.yaml")
        for document in yaml.safe_load_all(path.read_text())
        if document["kind"] in {"Deployment", "StatefulSet"}
    ]
    pods = [(document, document["spec"]["template"]["spec"]) for document in documents]
    return {
        container["args"][1]: (document, pod) for document, pod in pods for container in pod["containers"]
    }


@pytest.mark.parametrize("service", PORTS)
def test_compose_starts_and_probes_the_service(service: str):
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"][service]

    assert compose["command"] == ["serve", service]
    assert f"127.0.0.1:{PORTS[service]}/health/ready" in compose["healthcheck"]["test"][-1]
    assert compose.get("profiles") == PROFILES.get(service)
    assert compose["environment"]["RUNFOLD_KAFKA"] == "kafka:29092"
    assert compose["read_only"]
    assert compose["cap_drop"] == ["ALL"]


@pytest.mark.parametrize("service", PORTS)
def test_kubernetes_starts_and_probes_the_service(service: str):
    document, pod = containers()[service]
    [container] = pod["containers"]
    name = f"runfold-{service}"

    assert document["metadata"]["name"] == name
    assert document["spec"]["selector"]["matchLabels"] == {"app.kubernetes.io/name": name}
    assert document["spec"]["template"]["metadata"]["labels"] == {"app.kubernetes.io/name": name}
    assert container["ports"] == [{"name": "http", "containerPort": PORTS[service]}]
    assert container["readinessProbe"]["httpGet"] == {"path": "/health/ready", "port": "http"}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    sources = [next(iter(source.values()))["name"] for source in container["envFrom"]]
    assert sources == ["runfold-settings", "runfold-connections"]


def test_each_kustomization_names_files_that_exist_and_all_files_of_its_folder():
    kustomizations = list(MANIFESTS.rglob("kustomization.yaml"))

    assert {path.parent.name for path in kustomizations} == {"base", "keda", "tracer", "archiver"}
    for path in kustomizations:
        resources = yaml.safe_load(path.read_text())["resources"]
        assert [name for name in resources if not (path.parent / name).exists()] == []
        assert {each.name for each in path.parent.glob("*.yaml")} - {path.name} <= set(resources)
