"""The OpenAPI document of the whole service: every route has a summary and lists its problems."""

from collections.abc import Iterator
from typing import Any

from runfold.api.app import build_app
from runfold.http.problems import PROBLEM_JSON, Problem
from runfold.settings import Settings

WITHOUT_PARAMETERS = {"/health/live", "/health/ready", "/metrics"}


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    document = build_app(Settings()).openapi()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_every_route_has_a_summary_and_its_parameters_have_descriptions():
    for name, operation in operations():
        assert operation["summary"], name
        for parameter in operation.get("parameters", []):
            assert parameter.get("description"), f"{name}: {parameter['name']}"


def test_every_route_lists_the_problems_that_it_may_answer():
    for name, operation in operations():
        if name.partition(" ")[2] in WITHOUT_PARAMETERS:
            continue
        problems = {
            int(status): response for status, response in operation["responses"].items() if int(status) >= 400
        }
        assert problems.keys() >= {422, 503}, name
        for status, response in problems.items():
            assert response["description"], f"{name}: {status}"
            schema = response["content"][PROBLEM_JSON]["schema"]
            assert schema["properties"].keys() == Problem.model_fields.keys(), f"{name}: {status}"


def test_a_route_that_takes_a_key_lists_the_problems_of_keys():
    with_key = [
        (name, operation)
        for name, operation in operations()
        if any(
            parameter["name"].lower() == "idempotency-key" for parameter in operation.get("parameters", [])
        )
    ]

    assert len(with_key) >= 8
    for name, operation in with_key:
        assert operation["responses"].keys() >= {"400", "409", "413", "422"}, name


def test_a_creation_lists_the_answer_to_its_repetition():
    creations = {"/v1/runs", "/v1/sessions", "/v1/banks", "/v1/banks/{bank_id}/memories"}
    described = {name.removeprefix("POST "): operation for name, operation in operations()}

    for path in creations:
        responses = described[path]["responses"]
        assert "earlier copy" in responses["200"]["description"], path
        new, repeated = (responses[status].get("content") for status in ("201", "200"))
        assert path == "/v1/runs" or repeated == new, path
