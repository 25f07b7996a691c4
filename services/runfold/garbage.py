"""The cyclic garbage collector of a process that folds and serves."""

import gc


def collect_rarely() -> None:
    """Events, folds and answers are trees, which die by their reference counts; walking over them took half of a fold's time and a
    third of a large ledger's. Call it once per process, when everything is imported.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
