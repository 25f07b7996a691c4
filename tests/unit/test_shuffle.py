"""`--shuffle`: all tests in a random order, file by file."""

from itertools import groupby, product
from typing import NamedTuple, cast

import pytest
from tests.seeds import shuffled


class Case(NamedTuple):
    path: str
    number: int


CASES = [Case(*each) for each in product("abcdef", range(6))]


def ordered(seed: int) -> list[Case]:
    return cast("list[Case]", shuffled(cast("list[pytest.Item]", CASES), seed))


def test_all_tests_run_and_those_of_a_file_one_after_the_other() -> None:
    order = ordered(1)

    assert sorted(order) == CASES
    assert [len(list(group)) for _, group in groupby(order, key=lambda case: case.path)] == [6] * 6


def test_a_seed_repeats_the_order_and_another_one_changes_files_and_tests() -> None:
    first, again, other = ordered(1), ordered(1), ordered(2)

    assert first == again
    assert [case.path for case in first] != [case.path for case in other]
    assert [case for case in first if case.path == "a"] != [case for case in other if case.path == "a"]
