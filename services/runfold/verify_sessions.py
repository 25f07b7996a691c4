"""Comparing sessions and state in MongoDB with the log: every difference, by its key."""

import asyncio
from collections.abc import Iterator, Mapping

from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold.session_log import fold_shared
from runfold.store.generation import Generation
from runfold.store.state import own_scope
from runfold.verify import WAIT_SECONDS
from runfold.verify_shared import SharedDifference, differences, lag
from runfold_projections.admission import Admission
from runfold_projections.state import Value, own_changes
from runfold_schemas.topics import CATALOG_PARTITIONS, Topics

_LOOK_SECONDS = 0.1

Values = Mapping[tuple[str, str], Value]
"""By scope and key."""


async def verify_sessions(
    log: LogSettings, stores: Generation, *, wait_seconds: float = WAIT_SECONDS
) -> tuple[int, list[SharedDifference]]:
    """How many sessions there are, and what is different about them and about the state that they share.

    Projectors may work meanwhile: what is different is looked at again, for `wait_seconds` at the most.
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


async def verify_own_state(log: LogSettings, stores: Generation, run_id: str) -> list[SharedDifference]:
    """What is different about the state that the run's own log decides."""
    state = await stores.runs.get(run_id)
    if state is None:
        return []
    scope = own_scope(state.log_id)
    held = (await stores.values.read([scope]))[scope]
    end = max([state.record.next_offset, *(value.offset + 1 for value in held.values())])
    expected: dict[str, Value] = {}
    admission = Admission(run_id)
    async for records in read(log, Topics(log.prefix).run(run_id, state.log_id), end=end):
        for record in records:
            expected |= {
                key: value
                for key, value in own_changes(admission.admit(record)).items()
                # What is set behind the saved state may be stored already, or not yet.
                if value.offset < state.record.next_offset
                or (key in held and value.offset <= held[key].offset)
            }
    return list(
        _value_differences(
            {(scope, key): value for key, value in expected.items()},
            {(scope, key): value for key, value in held.items()},
        )
    )


def _value_differences(expected: Values, held: Values) -> Iterator[SharedDifference]:
    for scope, key in sorted(expected.keys() | held.keys()):
        if expected.get((scope, key)) != held.get((scope, key)):
            wanted, found = _told(expected.get((scope, key))), _told(held.get((scope, key)))
            detail = f"the log has {wanted} for {key!r}, MongoDB {found}"
            yield SharedDifference(f"state {scope}", "wrong state", detail)


def _told(value: Value | None) -> str:
    return "nothing" if value is None else f"{value.value!r:.80} of offset {value.offset}"


def _is_own(scope: str) -> bool:
    return scope.startswith(own_scope(""))
