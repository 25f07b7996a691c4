"""Compares sessions and shared state in MongoDB with the log and reports every difference."""

from collections.abc import Iterator, Mapping

from runfold.client.session_log import fold_shared
from runfold.log.partition_counts import counted
from runfold.log.settings import LogSettings
from runfold.log.shared import partitions_of
from runfold.store.edition import Edition
from runfold.store.state import own_scope
from runfold.verify.patience import WAIT_SECONDS
from runfold.verify.runs import describe_difference
from runfold.verify.shared import SharedDifference, differences, left_out, settled
from runfold_projections.state import Value
from runfold_schemas.sessions import session_key

Values = Mapping[tuple[str, str], Value]
"""Values by scope and key."""


async def verify_sessions(
    log: LogSettings, stores: Edition, *, wait_seconds: float = WAIT_SECONDS
) -> tuple[int, list[SharedDifference]]:
    """The number of sessions, and the differences of sessions and of shared state (see
    `settled`).
    """
    log = await counted(log)
    topic = log.topics.sessions

    async def compare() -> tuple[int, list[SharedDifference]]:
        skipped = await left_out(log, stores, {topic})
        stored = await stores.sessions.all()
        values = {
            (entry.scope, entry.key): entry.value
            for entry in await stores.values.all()
            if not _is_own(entry.scope)
        }
        expected = await fold_shared(log, partitions_of(log.topics, topic), skipped)
        sessions = {key: session for key, session in expected.sessions.items() if session is not None}
        return len(stored), [
            *differences("session", sessions, stored, key_of=session_key),
            *_value_differences(expected.values, values),
        ]

    return await settled(log, stores, {topic}, compare, wait_seconds=wait_seconds)


def _value_differences(expected: Values, stored: Values) -> Iterator[SharedDifference]:
    for scope, key in sorted(expected.keys() | stored.keys()):
        if expected.get((scope, key)) != stored.get((scope, key)):
            detail = describe_difference(key, expected.get((scope, key)), stored.get((scope, key)))
            yield SharedDifference(f"state {scope}", "wrong state", detail, scope)


def _is_own(scope: str) -> bool:
    return scope.startswith(own_scope(""))
