"""Requests that schemathesis derives from an OpenAPI document, sent to an API."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given
from schemathesis import Case, GenerationMode
from schemathesis.schemas import APIOperation
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from tests.seeds import session_seed

ANSWER_SECONDS = 40
"""More than any read waits for an offset."""


@dataclass
class Fuzz:
    """Sends requests to the API at `url`, and keeps those that were answered badly."""

    url: str
    known: Mapping[str, str] = field(default_factory=dict)
    """Ids that exist, by the name of the path parameter, so that requests come further than to
    "not found".
    """
    explained: frozenset[int] = frozenset({503, 504})
    """The statuses from 500 on that the API may answer if it says why."""
    faults: list[str] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)

    def send(self, document: dict[str, Any], *, examples: int) -> None:
        """Sends so many requests of each kind for each operation of an OpenAPI document: valid and
        invalid ones, with ids that exist and with others.
        """
        for operation in _operations(document):
            names = {parameter.name for parameter in operation.path_parameters}
            known = {name: value for name, value in self.known.items() if name in names}
            for fixed in ({}, known) if known else ({},):
                self._send(operation, GenerationMode.POSITIVE, fixed, examples)
                if _can_be_wrong(operation, fixed):
                    self._send(operation, GenerationMode.NEGATIVE, fixed, examples)

    def _send(
        self, operation: APIOperation, mode: GenerationMode, known: Mapping[str, str], examples: int
    ) -> None:
        fixed: dict[str, Any] = {"path_parameters": dict(known)} if known else {}

        @hypothesis.seed(session_seed())
        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode, **fixed))
        def send(case: Case) -> None:
            self._judge(case)

        try:
            send()
        except hypothesis.errors.Unsatisfiable:
            # An operation without parameters has nothing to be wrong.
            self.statuses["nothing to send"] += 1

    def _judge(self, case: Case) -> None:
        # Streams never end, so an answer is read no further than its beginning.
        options = case.as_transport_kwargs(base_url=self.url) | {"stream": True, "timeout": ANSWER_SECONDS}
        options.pop("cookies", None)
        try:
            response = requests.request(**options)
        except requests.exceptions.InvalidHeader:
            return  # HTTP itself cannot carry it
        with response:
            self.statuses[str(response.status_code)] += 1
            if response.status_code >= 500 and not self._is_explained(response):
                self.faults.append(
                    f"{case.as_curl_command()}\n-> {response.status_code} {response.text[:500]}"
                )

    def _is_explained(self, response: requests.Response) -> bool:
        try:
            body = response.json()
        except ValueError:
            return False
        reason = body.get("detail") or body.get("error", {}).get("message")
        return bool(reason) and response.status_code in self.explained


def vertex_document(app: Starlette) -> dict[str, Any]:
    """An OpenAPI document of Google's routes, which publish none: any JSON as a body, and the query
    parameters of Google's lists. It has one of the four paths that each operation has.
    """
    query = [
        {"name": name, "in": "query", "schema": {"type": "string"}}
        for name in ("filter", "orderBy", "pageToken", "updateMask", "memoryId", "sessionId")
    ]
    query.append({"name": "pageSize", "in": "query", "schema": {"type": "integer"}})
    paths: dict[str, dict[str, Any]] = {}
    for path, methods in _routes(app, ""):
        if not path.startswith("/v1beta1/reasoningEngines"):
            continue
        names = [part.split(":")[0] for part in path.replace("}", "{").split("{")[1::2]]
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
        for method in methods - {"HEAD"}:
            operation: dict[str, Any] = {
                "parameters": parameters + query,
                "responses": {"200": {"description": ""}},
            }
            if method in {"POST", "PATCH"}:
                operation["requestBody"] = {"content": {"application/json": {"schema": BODY}}}
            paths.setdefault(_without_types(path), {})[method.lower()] = operation
    return {"openapi": "3.1.0", "info": {"title": "vertex", "version": "1"}, "paths": paths}


BODY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "fact": {"type": "string"},
        "scope": {"type": "object"},
        "displayName": {"type": "string"},
        "userId": {"type": "string"},
        "sessionState": {"type": "object"},
        "filter": {"type": "string"},
        "similaritySearchParams": {"type": "object", "properties": {"searchQuery": {"type": "string"}}},
        "simpleRetrievalParams": {"type": "object"},
        "directMemoriesSource": {"type": "object"},
        "directContentsSource": {"type": "object"},
        "targetRevisionId": {"type": "string"},
        "author": {"type": "string"},
        "invocationId": {"type": "string"},
        "timestamp": {"type": "string", "format": "date-time"},
        "content": {"type": "object"},
        "ttl": {"type": "string"},
        "expireTime": {"type": "string"},
        "contextSpec": {"type": "object"},
    },
}
"""Members of Google's bodies, so that some requests come further than to the first refusal."""


def _operations(document: dict[str, Any]) -> Iterable[APIOperation]:
    for result in schemathesis.openapi.from_dict(document).get_all_operations():
        yield result.ok()


def _can_be_wrong(operation: APIOperation, fixed: Mapping[str, str]) -> bool:
    """Whether a request can be invalid. The search for an invalid one that does not exist takes
    longer than all others: any text is right in a path, unless its schema says more.
    """
    in_path = list(operation.path_parameters)
    is_path_alone = len(list(operation.iter_parameters())) == len(in_path) and not list(operation.body)
    drawn = [each.definition["schema"] for each in in_path if each.name not in fixed]
    return not is_path_alone or any(schema.keys() - ANY_TEXT for schema in drawn)


ANY_TEXT = {"type", "title", "description", "examples"}
"""The members of a schema that any text satisfies."""


def _routes(app: Starlette | Mount, prefix: str) -> Iterable[tuple[str, set[str]]]:
    for route in app.routes:
        if isinstance(route, Mount):
            yield from _routes(route, prefix + route.path)
        elif isinstance(route, Route):
            yield prefix + route.path, route.methods or {"GET"}


def _without_types(path: str) -> str:
    return "".join(
        "{" + part.split(":")[0] + "}" if index % 2 else part
        for index, part in enumerate(path.replace("}", "{").split("{"))
    )
