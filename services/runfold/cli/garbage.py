"""The cyclic garbage collector of a process that folds and serves."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected_imports() -> Iterator[None]:
    """Imports within this block run without garbage collections, and later collections skip the
    imported objects. Modules stay for good, and collections took an eighth of a service's imports.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def spare_imports() -> None:
    """Excludes everything imported so far from garbage collection. Call it once per process, after
    the imports.
    """
    gc.collect()
    gc.freeze()


def collect_rarely() -> None:
    """As `spare_imports`, and makes collections rare. Events, folds and answers are trees, which
    are freed by their reference counts; traversing them took half of a fold's time, and a third of
    the time of a large ledger.

    Do not call it in a service that receives bodies: reference cycles keep the bodies of refused
    requests alive, 8 MiB each, until a collection.
    """
    spare_imports()
    gc.set_threshold(50_000, 20, 100)
