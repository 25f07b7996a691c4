"""The table of rules against the routes of every application."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from runfold.api import app as api
from runfold.http.app import new_app
from runfold.http.authentication import is_public
from runfold.http.principal import Scope
from runfold.http.route_rules import RULES, Whose, rule_name, rule_of
from runfold.ingest import app as ingest
from runfold.query import app as query
from runfold.settings import Settings


async def ready() -> None:
    """Always."""


APPLICATIONS = {
    "api": lambda: api.build_app(Settings()),
    "ingest": lambda: ingest.build_app(Settings()),
    "query": lambda: query.build_app(Settings()),
    "projector": lambda: new_app("projector", ready=ready),
}


def routes_of(app: Starlette | FastAPI) -> set[tuple[str, str]]:
    """The methods and the templates of all routes, in mounted applications too."""
    return set(_flattened(app.router.routes, ""))


def _flattened(routes: Sequence[BaseRoute], prefix: str) -> Iterator[tuple[str, str]]:
    for route in routes:
        included: Any = getattr(route, "original_router", None)
        if included is not None:  # as FastAPI keeps a router that was included
            yield from _flattened(included.routes, prefix)
            continue
        path, inner = prefix + route.path, getattr(route, "app", None)
        if isinstance(inner, Starlette):
            yield from _flattened(inner.router.routes, "")
        elif route.__class__.__name__ == "Mount":
            yield from _flattened(route.routes, path) if route.routes else [("GET", path)]
        else:
            yield from ((method, path) for method in route.methods - {"HEAD"})


@pytest.mark.parametrize("name", APPLICATIONS)
def test_every_route_has_a_rule(name):
    routes = routes_of(APPLICATIONS[name]())

    assert [f"{method} {path}" for method, path in sorted(routes) if rule_of(method, path) is None] == []
    assert ("GET", "/metrics") in routes


def test_every_rule_has_a_route():
    routes = [route for build in APPLICATIONS.values() for route in routes_of(build())]

    assert RULES.keys() - {rule_name(*route) for route in routes} == set()


def test_the_routes_that_need_no_credential_are_those_of_the_authentication():
    paths = {name: name.partition(" ")[2] for name in RULES}
    paths["GET /docs/assets"] += "/swagger-ui.css"
    paths["GET /console"] += "/any/js/main.js"

    assert {name for name, rule in RULES.items() if rule.is_public} == {
        name for name, path in paths.items() if is_public(path)
    }


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.whose is Whose.NOBODY])
def test_only_public_routes_have_no_owner(name):
    assert RULES[name].is_public


def test_routes_of_operators_are_for_unlimited_administrators():
    operators = {name for name, rule in RULES.items() if rule.scopes == (frozenset({Scope.administer}),)}

    assert {
        name for name in operators if RULES[name].whose not in (Whose.EVERYBODY, Whose.INSTALLATION)
    } == set()
    assert {name for name in RULES if "/quarantine" in name} <= operators
