"""The synchronous classes have every public verb of the asynchronous ones, with its parameters."""

import inspect
from typing import Any

import pytest

from runfold import sync
from runfold.client.memories import Memories
from runfold.client.run import Run
from runfold.client.runfold import Runfold
from runfold.client.sessions import Sessions

PAIRS = [(Runfold, sync.Runfold), (Run, sync.Run), (Sessions, sync.Sessions), (Memories, sync.Memories)]

NOT_VERBS = {"connection", "of"}
"""What services use: the connection of an event loop, and a client with their settings."""

ADDED = {"close", "life", "is_new"}
"""Properties for attributes of a run, and the end of a connection that needs no block."""


def public(kind: type) -> dict[str, Any]:
    return {
        name: inspect.getattr_static(kind, name)
        for name in dir(kind)
        if not name.startswith("_") and name not in NOT_VERBS
    }


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS)
def test_every_public_name_is_there(asynchronous: type, synchronous: type):
    names, twins = public(asynchronous).keys(), public(synchronous).keys()

    assert names - twins == set()
    assert twins - names <= ADDED


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS)
def test_every_verb_takes_the_same_parameters(asynchronous: type, synchronous: type):
    for name, attribute in public(asynchronous).items():
        if isinstance(attribute, property):
            assert isinstance(public(synchronous)[name], property), name
        else:
            twin = getattr(synchronous, name)
            assert parameters(twin) == parameters(getattr(asynchronous, name)), name
            assert not inspect.iscoroutinefunction(twin)
            assert not inspect.isasyncgenfunction(twin)


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS)
def test_every_verb_is_documented(asynchronous: type, synchronous: type):
    documented = [name for name, method in public(asynchronous).items() if method.__doc__]

    assert documented
    assert [name for name in documented if not public(synchronous)[name].__doc__] == []


def parameters(method: Any) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults. A stream that is recorded is a plain iterable here."""
    return [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]


def test_options_are_checked_before_anything_connects():
    with pytest.raises(ValueError, match="replication_factor"):
        sync.Runfold(replication_factor=0)
