"""Comparing sessions, and the state that they share, in MongoDB with the log: every difference, by
its key.
"""

import asyncio
from collections.abc import Iterator, Mapping

from runfold.client.session_log import fold_shared
from runfold.log.settings import LogSettings
from runfold.store.edition import Edition
from runfold.store.state import own_scope
from runfold.verify.runs import WAIT_SECONDS, told_apart
from runfold.verify.shared import SharedDifference, differences, lag
from runfold_projections.state import Value
from runfold_schemas.topics import CATALOG_PARTITIONS, Topics

_LOOK_SECONDS = 0.1

Values = Mapping[tuple[str, str], Value]
"""By scope and key."""


async def verify_sessions(
    log: LogSettings, stores: Edition, *, wait_seconds: float = WAIT_SECONDS
) -> tuple[int, list[SharedDifference]]:
    """How many sessions there are, and what is different about them and about the state that they
    share.

    Projectors may work meanwhile: what is different is looked at again, for `wait_seconds` at the
    most.
    """
    deadline = asyncio.get_running_loop().time() + wait_seconds
    while True:
        expected = await fold_shared(log, range(CATALOG_PARTITIONS))
        stored = await stores.sessions.all()
        held = {
            (one.scope, one.key): one.value for one in await stores.values.all() if not _is_own(one.scope)
        }
        found = [
            *differences(
                "session", {key: one for key, one in expected.sessions.items() if one is not None}, stored
            ),
            *_value_differences(expected.values, held),
            *[one async for one in lag(log, stores, Topics(log.prefix).sessions)],
        ]
        if not found or asyncio.get_running_loop().time() > deadline:
            return len(stored), found
        await asyncio.sleep(_LOOK_SECONDS)


def _value_differences(expected: Values, held: Values) -> Iterator[SharedDifference]:
    for scope, key in sorted(expected.keys() | held.keys()):
        if expected.get((scope, key)) != held.get((scope, key)):
            detail = told_apart(key, expected.get((scope, key)), held.get((scope, key)))
            yield SharedDifference(f"state {scope}", "wrong state", detail)


def _is_own(scope: str) -> bool:
    return scope.startswith(own_scope(""))
