"""What stands beside the content of a response, as an event can hold it."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from runfold_projections.providers.values import plain
from runfold_schemas.whole_texts import whole

_BYTES_MAX: Final = 1024 * 1024
"""The size of a member beside the content as JSON. The log probabilities of a long text may have
more than an event holds.
"""


def plain_members(members: Mapping[str, Any], fault: Callable[[str], None]) -> dict[str, Any]:
    """Members of SDK objects as decoded JSON, without those that make the event too large or cannot
    be read. `fault` gets a sentence for each of them.
    """
    kept: dict[str, Any] = {}
    for name, value in members.items():
        try:
            member = plain(value)
            size = len(json.dumps(member))
        except Exception as error:  # noqa: BLE001  # objects of the caller may raise anything
            fault(f"{name} could not be read: {type(error).__name__}")
            continue
        if size > _BYTES_MAX:
            fault(f"{name} has more than {_BYTES_MAX} bytes and is not kept")
        else:
            kept[whole(str(name))] = member
    return kept
