"""The cyclic garbage collector of a process that folds and serves."""

import gc


def spare_imports() -> None:
    """What is imported stays, and is not walked over again. Call it once per process, when
    everything is imported.
    """
    gc.collect()
    gc.freeze()


def collect_rarely() -> None:
    """As `spare_imports`, and has the collector come rarely. Events, folds and answers are trees,
    which die by their reference counts; walking over them took half of a fold's time and a third of
    a large ledger's.

    Not for a service that takes bodies: those of refused requests are held by cycles, 8 MiB each.
    """
    spare_imports()
    gc.set_threshold(50_000, 20, 100)
