"""Imports of commands and services are spared by the garbage collector."""

import gc

import pytest

from runfold.cli.garbage import uncollected_imports


def test_imports_run_without_collections_and_later_ones_skip_what_was_imported():
    frozen = gc.get_freeze_count()

    with uncollected_imports():
        assert not gc.isenabled()
        imported: list[object] = [[] for _ in range(1000)]

    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + len(imported)


def test_a_failed_import_leaves_the_collector_at_work():
    with pytest.raises(ModuleNotFoundError), uncollected_imports():
        raise ModuleNotFoundError

    assert gc.isenabled()


def test_a_program_without_a_collector_stays_without_it():
    gc.disable()
    try:
        with uncollected_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
