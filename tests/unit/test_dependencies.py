"""FastAPI calls functions without `async` in a thread, which costs more than what ours do."""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from runfold.api.app import build_app
from runfold.settings import Settings


def test_no_route_needs_a_thread():
    routes = list(described(build_app(Settings()).routes))

    assert len(routes) > 70
    called = [call for route in routes for call in calls(route.dependant)]
    assert {call.__qualname__ for call in called if not inspect.iscoroutinefunction(call)} == set()


def described(routes: Iterable[Any]) -> Iterator[Any]:
    for route in routes:
        if hasattr(route, "dependant"):
            yield route
        else:
            inner = route if hasattr(route, "routes") else getattr(route, "original_router", None)
            yield from described(inner.routes if inner is not None else ())


def calls(dependant: Any) -> Iterator[Any]:
    yield dependant.call
    for each in dependant.dependencies:
        yield from calls(each)
