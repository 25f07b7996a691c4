"""The seed of everything that tests leave to chance. It is the same for each session, so that a
session fails because of the code. `RUNFOLD_TEST_SEED` gives another one, or draws it: `make soak`
sets the variable to `random`.

A seed repeats the choices of a test. It cannot repeat how processes and threads interleave.
"""

import os
import random
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from operator import attrgetter

import pytest

VARIABLE = "RUNFOLD_TEST_SEED"
SEED_DEFAULT = 20_261_126


@cache
def session_seed() -> int:
    """The seed of this session. The environment hands it on to the workers of pytest-xdist."""
    if os.environ.get(VARIABLE) == "random":
        os.environ[VARIABLE] = str(random.randrange(2**32))
    return int(os.environ.setdefault(VARIABLE, str(SEED_DEFAULT)))


def random_of(test: pytest.Item) -> random.Random:
    """The random numbers of one test, which are the same whatever other tests the session runs."""
    return random.Random(f"{session_seed()} {test.nodeid}")


def shuffled(tests: Iterable[pytest.Item], seed: int) -> list[pytest.Item]:
    """Files in a random order, and the tests of each file, which stay together."""
    chance = random.Random(seed)
    files = [list(group) for _, group in groupby(tests, key=attrgetter("path"))]
    chance.shuffle(files)
    for file in files:
        chance.shuffle(file)
    return [test for file in files for test in file]


def is_random(test: pytest.Item) -> bool:
    """Whether the test takes the fixture `chance`, or Hypothesis draws its examples."""
    is_property = getattr(getattr(test, "obj", None), "is_hypothesis_test", False)
    return is_property or "chance" in getattr(test, "fixturenames", ())
