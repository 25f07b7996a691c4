"""Checks of the state that callers pass in."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from runfold.printable import shortened
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.whole_texts import whole_value


@contextmanager
def naming_state_key(
    deltas: Iterable[Mapping[str, Any] | None], *, field: str = "state_delta"
) -> Iterator[None]:
    """If an `InvalidEventError` is raised inside because of one of these deltas, its place is taken
    by one that names the key.

    The deltas are only looked at after an error. An event is checked as a whole when it is encoded.
    """
    try:
        yield
    except InvalidEventError as error:
        for delta in deltas:
            check_state(delta or {}, field=field, index=error.index)
        raise


def check_state(delta: Mapping[str, Any], *, field: str = "state_delta", index: int | None = None) -> None:
    """Raises `InvalidEventError` naming the first key whose value JSON cannot carry exactly."""
    for key, value in delta.items():
        try:
            survives = whole_value(json.loads(json.dumps(value, allow_nan=False))) == whole_value(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidEventError(
                f"{field}: the value of {_quoted(key)} is not JSON: {error}",
                field=f"{field}.{key}",
                index=index,
            ) from error
        if not survives:
            raise InvalidEventError(
                f"{field}: the value of {_quoted(key)} would change on its way through JSON: use lists,"
                " string keys and finite numbers",
                field=f"{field}.{key}",
                index=index,
            )


def checked_state_key(key: str, prefix: str) -> str:
    """The key, if it begins with the prefix of its scope. Otherwise raises `InvalidEventError`."""
    if not key.startswith(prefix):
        raise InvalidEventError(f"key: {_quoted(key)} does not begin with {prefix!r}", field="key")
    return key


def _quoted(key: str) -> str:
    return shortened(repr(key))
