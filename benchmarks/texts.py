"""Random texts that compress about as well as texts of people and models."""

import random

_RANDOM = random.Random(20260102)
_WORDS = ["".join(_RANDOM.choices("etaoinshrdlucmfwypvbgk", k=_RANDOM.randint(2, 10))) for _ in range(2_000)]
_POOL = " ".join(_RANDOM.choices(_WORDS, k=200_000))


def text(length: int) -> str:
    start = _RANDOM.randrange(len(_POOL) - length)
    return _POOL[start : start + length]
