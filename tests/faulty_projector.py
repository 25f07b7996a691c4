"""A projector that fails at marked data, as a program: `python faulty_projector.py serve projector
--port N`. The variable `RUNFOLD_TEST_FAULTS` has the faults, `place=effect` separated by commas.

An effect is `raise`, `kill` (the process ends as if for its memory), `memory` (a real allocation
beyond the process' limit), `hang` (it never ends) or `slow` (it takes 3 s).
"""

import asyncio
import os
import resource
import signal
from collections.abc import Callable
from itertools import count
from typing import Any

from runfold.cli import main
from runfold.log import catalog_group
from runfold.projector.absent_shared_topics import AbsentSharedTopics
from runfold.projector.backlog import Backlog
from runfold.projector.ended import EndedRuns
from runfold.projector.parking import Parking
from runfold.projector.quarantine import Quarantine
from runfold.projector.shared import SharedTopics
from runfold.projector.sweep import Sweep
from runfold.store.pages import PageStore
from runfold.store.runs import RunStore
from runfold_projections import admission, session, tally
from runfold_projections import memory as memory_folds
from runfold_schemas.codec import Record

MARK = b"the-fault-is-here"
HEADROOM_BYTES = 200 * 1024 * 1024
SLOW_SECONDS = 3.0


class InjectedError(Exception):
    """A fault of a test."""


def fail(effect: str) -> None:
    if effect == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif effect == "memory":
        bytearray(8 * 1024**3)
    while effect == "hang":
        pass
    raise InjectedError("injected by a test")


def at_runs(effect: str) -> None:
    """Decoding a record of a run fails, with its model and without."""
    _patch_decoding(admission, effect)
    _patch_decoding(tally, effect, name="fields_of")


def at_memories(effect: str) -> None:
    """Decoding a record of the memories fails."""
    _patch_decoding(memory_folds, effect)


def at_sessions(effect: str) -> None:
    """Decoding a record of the sessions fails."""
    _patch_decoding(session, effect)


def _patch_decoding(module: Any, effect: str, *, name: str = "decode_record") -> None:
    decode: Callable[[Record], Any] = getattr(module, name)

    def decode_or_fail(record: Record) -> Any:
        if MARK in (record.value or b""):
            fail(effect)
        return decode(record)

    setattr(module, name, decode_or_fail)


def at_memory_folds(effect: str) -> None:
    """Folding a change of a memory fails."""
    take = memory_folds.MemoryFold.take

    def take_or_fail(self: Any, key: str, event: Any, offset: int) -> None:
        if MARK in event.model_dump_json().encode():
            fail(effect)
        take(self, key, event, offset)

    memory_folds.MemoryFold.take = take_or_fail  # type: ignore[method-assign]


def at_session_folds(effect: str) -> None:
    """Folding a change of a session fails."""
    take = session.SharedFold.take

    def take_or_fail(self: Any, key: str, event: Any, offset: int) -> None:
        if MARK in event.model_dump_json().encode():
            fail(effect)
        take(self, key, event, offset)

    session.SharedFold.take = take_or_fail  # type: ignore[method-assign]


def at_pages(effect: str) -> None:
    """Storing a page fails."""
    insert = PageStore.insert

    async def insert_or_fail(self: Any, pages: Any) -> Any:
        pages = list(pages)
        if any(MARK in (record.value or b"") for page in pages for record in page.records()):
            fail(effect)
        return await insert(self, pages)

    PageStore.insert = insert_or_fail  # type: ignore[method-assign]


def at_states(effect: str) -> None:
    """Storing a run's state fails."""
    save = RunStore.save

    async def save_or_fail(self: Any, states: Any) -> None:
        states = list(states)
        if any(MARK in state.record.model_dump_json().encode() for state in states):
            fail(effect)
        await save(self, states)

    RunStore.save = save_or_fail  # type: ignore[method-assign]


def at_catalog(effect: str) -> None:
    """Storing a run that was announced fails."""
    add = RunStore.add

    async def add_or_fail(self: Any, states: Any) -> Any:
        if any(MARK in state.run_id.encode() for state in states):
            fail(effect)
        return await add(self, states)

    RunStore.add = add_or_fail  # type: ignore[method-assign]


def at_entries(effect: str) -> None:
    """Decoding a record of the catalog fails."""
    entry_of = catalog_group.entry_of

    def entry_or_fail(key: bytes | None, value: bytes | None) -> Any:
        if MARK in (value or b""):
            fail(effect)
        return entry_of(key, value)

    catalog_group.entry_of = entry_or_fail


def at_loading(effect: str) -> None:
    """Loading the quarantine takes a while."""
    load = Quarantine.load

    async def load_slowly(self: Any, partitions: Any) -> None:
        await asyncio.sleep(SLOW_SECONDS)
        await load(self, partitions)

    Quarantine.load = load_slowly  # type: ignore[method-assign]


def at_retries(effect: str) -> None:
    """Trying a key again fails."""

    async def retry_or_fail(self: Any, entry: Any) -> None:
        fail(effect)

    SharedTopics.retry = retry_or_fail  # type: ignore[method-assign]


def at_looks(effect: str) -> None:
    """The first of each of the looks at all runs fails, and so does the first change of
    partitions.
    """
    for kind, name in (
        (Parking, "_is_quiet"),
        (EndedRuns, "look"),
        (Backlog, "find_logs"),
        (AbsentSharedTopics, "work"),
        (Sweep, "look"),
        (Quarantine, "load"),
    ):
        _patch_first_call(kind, name, effect)


def _patch_first_call(kind: Any, name: str, effect: str) -> None:
    method = getattr(kind, name)
    calls = count()

    def fail_first(self: Any, *given: Any, **named: Any) -> Any:
        if next(calls) == 0:
            fail(effect)
        return method(self, *given, **named)

    setattr(kind, name, fail_first)


PLACES = {
    "looks": at_looks,
    "runs": at_runs,
    "memories": at_memories,
    "sessions": at_sessions,
    "memory_folds": at_memory_folds,
    "session_folds": at_session_folds,
    "pages": at_pages,
    "states": at_states,
    "catalog": at_catalog,
    "entries": at_entries,
    "loading": at_loading,
    "retries": at_retries,
}


if __name__ == "__main__":
    faults = dict(each.split("=") for each in os.environ.get("RUNFOLD_TEST_FAULTS", "").split(",") if each)
    for place, effect in faults.items():
        PLACES[place](effect)
    if "memory" in faults.values():
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (used + HEADROOM_BYTES, used + HEADROOM_BYTES))
    main()
