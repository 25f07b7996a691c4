"""What users import from `runfold`: all errors, and all that the verbs take and return. The verbs
of the three ways have the same signatures, and importing has no effects.
"""

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import UnionType
from typing import Any, Literal, Union, Unpack, get_args, get_origin, get_type_hints

import pytest
from tests.faces import FACES, INTERNAL, public_methods

import runfold
from runfold import AsOfOptions, Envelope, LedgerOptions, Memories, Run, Runfold, Sessions
from runfold.access.direct import _DirectGeneration
from runfold.cli.quarantine_commands import KindName
from runfold.cli.run_commands import SortName, StatusName
from runfold.client.envelope import RecordOptions, event_of
from runfold.client.memory import MemoryVerbs
from runfold.client.memory_changes import check_memory
from runfold.client.runfold import LogOptions, RunOptions
from runfold.client.session import SessionVerbs
from runfold.generation.generator import Generator
from runfold.generation.verbs import GenerationVerbs
from runfold.log.settings import LogSettings
from runfold.permissions.memories import PermittedMemories
from runfold.permissions.sessions import PermittedSessions
from runfold.query.parameters import as_of, validator
from runfold.query.run_selection import RunSelection
from runfold.remote.memories import HttpMemories
from runfold.remote.operations import HttpOperations
from runfold.remote.runs import HttpRun, HttpRuns, RunFilters
from runfold.remote.sessions import HttpSessions
from runfold_projections.providers import ValidateOptions
from runfold_schemas import errors
from runfold_schemas.lists import QuarantineKind, RunSort, ShownStatus

GENERATION = {"generate", "ingest"}


def test_every_error_is_importable_from_runfold():
    names = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.RunfoldError)
    }

    assert names <= set(runfold.__all__)
    assert len(names) > 25


def test_every_type_that_a_verb_takes_or_returns_is_importable_from_runfold():
    named = {
        kind.__name__
        for face in FACES
        for name, method in public_methods(face).items()
        if name not in INTERNAL.get(face, ())
        for annotation in get_type_hints(method).values()
        for kind in classes_in(annotation)
        if kind.__module__.partition(".")[0].startswith("runfold")
    }

    events = {kind.__name__ for kind in get_args(runfold.AnyEvent)}  # known as `AnyEvent`
    assert named - events <= set(runfold.__all__)


def test_every_class_of_data_is_importable_from_runfold():
    """Of the events that agents publish; sessions, memories and frameworks have verbs of their
    own.
    """
    assert {"UserMessage", "ToolCall", "PlannerNote", "TokenUsage", "StateChanged"} <= set(runfold.__all__)


def test_all_that_is_named_can_be_imported():
    for name in runfold.__all__:
        assert getattr(runfold, name) is not None
    assert sorted(runfold.__all__) == sorted(set(runfold.__all__))


def test_the_clients_over_http_are_importable_from_runfold_too():
    assert runfold.HttpSessions is HttpSessions
    assert runfold.HttpMemories is HttpMemories
    assert runfold.HttpRuns is HttpRuns
    assert runfold.HttpOperations is HttpOperations
    with pytest.raises(AttributeError, match="no attribute 'HttpSession'"):
        _ = runfold.HttpSession


@pytest.mark.parametrize(
    ("verbs", "ways"),
    [
        (SessionVerbs, (Sessions, HttpSessions, PermittedSessions)),
        (MemoryVerbs, (Memories, HttpMemories, PermittedMemories)),
    ],
)
def test_the_verbs_of_all_ways_have_the_same_signatures(verbs: type, ways: tuple[type, ...]):
    """Names, order, kinds, defaults and annotations of all parameters, and what is returned."""
    expected = signatures(verbs, set(public_methods(verbs)))
    for way in ways:
        found = set(public_methods(way)) - INTERNAL[way] - (GENERATION if way is HttpMemories else set())
        assert signatures(way, found) == expected, way


def test_the_verbs_of_generation_have_the_same_signatures_in_all_ways():
    expected = signatures(GenerationVerbs, GENERATION)

    assert signatures(HttpMemories, GENERATION) == expected
    assert signatures(_DirectGeneration, GENERATION) == expected
    assert signatures(Generator, {"generate"}) == {"generate": expected["generate"]}


@pytest.mark.parametrize("verb", ["faults", "fork", "state_changes", "view"])
def test_the_verbs_of_a_run_have_the_same_parameters_over_http(verb: str):
    (*expected, _), (*found, _) = signatures(Run, {verb})[verb], signatures(HttpRun, {verb})[verb]

    assert found == expected


def test_a_ledger_is_read_as_of_the_same_moments_over_http():
    assert get_type_hints(HttpRun.ledger)["options"] == Unpack[AsOfOptions]
    assert set(get_type_hints(AsOfOptions)) == inspect.signature(as_of).parameters.keys()
    assert set(get_type_hints(AsOfOptions)) < set(get_type_hints(LedgerOptions))
    assert get_type_hints(Run.ledger)["options"] == Unpack[LedgerOptions]


def test_what_a_client_over_http_takes_and_returns_is_importable_from_runfold():
    annotations = [
        *get_type_hints(RunFilters).values(),
        *(
            annotation
            for face in (HttpRuns, HttpRun, HttpOperations)
            for method in public_methods(face).values()
            for annotation in get_type_hints(method).values()
        ),
    ]
    named = {
        kind.__name__
        for annotation in annotations
        for kind in classes_in(annotation)
        if kind.__module__.partition(".")[0].startswith("runfold")
    }
    choices = [choice for annotation in annotations for choice in choices_in(annotation)]
    offered = [getattr(runfold, name) for name in (*runfold.__all__, *runfold._OVER_HTTP)]

    assert {"RunSummary", "AgentDocument", "DeadLetterEntry", "QuarantineEntry", "RunFilters"} <= named
    assert all(hasattr(runfold, name) for name in named)
    assert {"open", "tokens", "record"} <= {text for choice in choices for text in get_args(choice)}
    assert all(choice in offered for choice in choices)
    assert runfold.Moment == datetime | timedelta | str


def test_runs_are_listed_over_http_by_the_parameters_of_every_selection():
    assert set(get_type_hints(RunFilters)) == set(RunSelection.model_fields)
    assert get_type_hints(HttpRuns.list)["filters"] == Unpack[RunFilters]
    assert get_type_hints(RunFilters)["sort"] == RunSelection.model_fields["sort"].annotation


@pytest.mark.parametrize(
    ("of_commands", "choices"),
    [(StatusName, ShownStatus), (SortName, RunSort), (KindName, QuarantineKind)],
)
def test_commands_offer_the_choices_of_lists(of_commands: type[StrEnum], choices: Any):
    assert {each.value for each in of_commands} == set(get_args(choices))


async def test_a_filter_of_runs_that_is_none_does_not_restrict():
    """`pairs` is the only one that does not pass None on."""
    optional = {name for name, kind in get_type_hints(RunFilters).items() if type(None) in get_args(kind)}
    assert optional == set(RunSelection.model_fields) - {"status", "sort", "ascending"}

    with pytest.raises(runfold.UnavailableError):
        await HttpRuns("http://127.0.0.1:1").list(**dict.fromkeys(optional))


def signatures(kind: type, names: set[str]) -> dict[str, list[Any]]:
    found = {}
    for name in names:
        method = getattr(kind, name)
        hints = get_type_hints(method)
        parameters = inspect.signature(method).parameters.values()
        shown = [(one.name, one.kind, one.default, hints.get(one.name)) for one in parameters]
        found[name] = [*shown, hints["return"]]
    return found


def test_the_envelope_has_every_field_of_an_event_that_a_publisher_may_set():
    decided_elsewhere = {"run_id", "data", "schema_version", "type"}
    fields = {name for kind in get_args(runfold.AnyEvent) for name in kind.model_fields}

    assert set(Envelope.__annotations__) == fields - decided_elsewhere
    parameters = inspect.signature(event_of).parameters
    assert {name: one.annotation for name, one in list(parameters.items())[2:]} == get_type_hints(Envelope)


@pytest.mark.parametrize("verb", [Run.publish, Run.send, Run.event, Sessions.append, HttpSessions.append])
def test_verbs_show_the_fields_of_an_envelope(verb: Any):
    assert get_type_hints(verb)["envelope"] == Unpack[Envelope]


def test_recording_and_opening_show_their_options():
    assert get_type_hints(Run.record)["options"] == Unpack[RecordOptions]
    assert get_type_hints(Run.record_stream)["options"] == Unpack[RecordOptions]
    assert get_type_hints(inspect.unwrap(Runfold.run))["options"] == Unpack[RunOptions]
    assert get_type_hints(Runfold.__init__)["options"] == Unpack[LogOptions]

    opening = inspect.signature(Runfold.open_run).parameters
    assert list(opening) == ["self", "agent_id", *get_type_hints(RunOptions)]
    assert set(get_type_hints(LogOptions)) == set(LogSettings.model_fields) - {"kafka", "prefix"}


IMPORTING = """
import atexit, gc, importlib, json, logging, pkgutil, signal, sys, threading, warnings

def everything():
    root = logging.getLogger()
    loggers = {
        name: [logger.level, logger.propagate, len(logger.filters), len(logger.handlers)]
        for name, logger in root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger)
    }
    return {
        "root": [root.level, len(root.handlers), len(root.filters)],
        "changed loggers": {name: told for name, told in loggers.items() if told != [0, True, 0, 0]},
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), len(gc.callbacks)],
        "signals": {int(one): str(signal.getsignal(one)) for one in signal.valid_signals()},
        "hooks": [sys.excepthook is sys.__excepthook__, threading.active_count(), atexit._ncallbacks()],
        "filters": len(warnings.filters),
    }

import asyncio, aiokafka, pydantic
before = everything()
import runfold, runfold.stores, runfold.sync, runfold.client, runfold.log
for package in (runfold.client, runfold.log):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if module.name != "runfold.log.catalog_group":
            importlib.import_module(module.name)
print(json.dumps([before, everything()]))
"""


def test_importing_the_client_changes_nothing_of_the_process():
    done = subprocess.run([sys.executable, "-I", "-c", IMPORTING], capture_output=True, text=True, check=True)

    before, after = json.loads(done.stdout)
    assert after == before
    assert done.stderr == ""


def test_what_is_no_event_is_refused_with_what_is_expected():
    for data in ({"message": "hi"}, "hi", None, runfold.UserMessage):
        with pytest.raises(runfold.InvalidEventError, match=r"UserMessage\(message="):
            event_of(data, "r-1")
    with pytest.raises(runfold.InvalidEventError, match="a dict is not an event"):
        event_of({"message": "hi"}, "r-1")


def test_what_is_no_memory_is_refused_with_what_is_expected():
    with pytest.raises(runfold.InvalidEventError, match=r"a dict is not a memory: .*Memory\(fact="):
        check_memory({"fact": "Likes tea"}, datetime.now(UTC))


async def test_what_is_no_event_is_refused_before_anything_is_sent():
    async with HttpSessions("http://127.0.0.1:1") as sessions:
        with pytest.raises(runfold.InvalidEventError, match="a dict is not an event"):
            await sessions.append("s-1", {"message": "hi"})
        with pytest.raises(runfold.InvalidEventError, match="a str is not an event") as refused:
            await sessions.append_batch("s-1", [runfold.UserMessage(message="hi"), "hi"])
    assert refused.value.index == 1


def test_a_field_that_no_envelope_has_is_a_type_error():
    with pytest.raises(TypeError, match="turn"):
        event_of(runfold.UserMessage(message="hi"), "r-1", turn="t-1")


async def test_a_client_that_was_not_entered_says_so():
    client = Runfold("127.0.0.1:1")
    message = runfold.UserMessage(message="hi")
    calls = [
        lambda: client.open_run(agent_id="a"),
        lambda: client.get_run("r-1"),
        lambda: anext(client.runs()),
        lambda: client.sessions.create(app="a"),
        lambda: client.sessions.view("s-1"),
        lambda: client.sessions.append("s-1", message),
        client.sessions.list,
        lambda: client.memories.create_bank("b"),
        lambda: client.memories.bank("b"),
        lambda: client.memories.list("b"),
        lambda: client.memories.create("b", runfold.Memory(fact="f", scope={"user": "ann"})),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="enter the client first, `async with Runfold"):
            await call()
    with pytest.raises(RuntimeError, match="enter the client first"):
        async with client.run(agent_id="a"):
            pass


async def test_a_client_over_http_need_not_be_entered():
    """It connects with the first call, so the first error is about the server."""
    with pytest.raises(runfold.UnavailableError):
        await HttpSessions("http://127.0.0.1:1").view("s-1")
    with pytest.raises(runfold.UnavailableError):
        await HttpMemories("http://127.0.0.1:1").bank("b")


def classes_in(annotation: Any) -> Iterator[type]:
    """The classes that an annotation is made of."""
    origin = get_origin(annotation)
    if origin is Unpack:
        yield from classes_in(get_args(annotation)[0])
    elif origin is not None or isinstance(annotation, UnionType):
        if isinstance(origin, type) and origin not in (Union, UnionType):
            yield origin
        for argument in get_args(annotation):
            yield from classes_in(argument)
    elif isinstance(annotation, type):
        yield annotation


def choices_in(annotation: Any) -> Iterator[Any]:
    """The `Literal`s that an annotation is made of."""
    if get_origin(annotation) is Literal:
        yield annotation
    else:
        for argument in get_args(annotation):
            yield from choices_in(argument)


def test_a_ledger_is_validated_with_the_same_parameters_everywhere():
    """What the log itself says is no parameter."""
    options = ValidateOptions.__annotations__.keys() - {"broken_off", "blobs"}

    assert inspect.signature(Run.faults).parameters.keys() - {"self", "provider", "options"} == options
    assert get_type_hints(Run.faults)["options"] == Unpack[AsOfOptions]
    assert inspect.signature(validator).parameters.keys() - {"validate"} == options
