"""The reasons of what a projector has set aside."""

import traceback
from types import SimpleNamespace
from typing import Any

import pytest

from runfold.projector.forwarding import HeldBackError
from runfold.projector.quarantine import DIED, Quarantine, reason_of
from runfold.projector.shared import REFOLDED
from runfold.store.quarantine import Quarantined, no_topic, short_log
from runfold_schemas.topics import Partition

MARKER = "card 4711"
TOPIC = "t.run.r-1.0198"


@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize(
    ("reason", "hidden"),
    [
        (reason_of(ValueError(MARKER)), "ValueError"),
        (reason_of(ValueError()), None),
        (reason_of(HeldBackError("key:session:s-1")), None),
        (DIED, None),
        (REFOLDED, None),
        (no_topic(TOPIC), None),
        (short_log(TOPIC, end=3, position=5), None),
    ],
)
async def test_no_reason_of_an_encrypted_tenant_has_the_message_of_an_error(
    caplog: pytest.LogCaptureFixture, reason: str, hidden: str | None, *, has_keys: bool
):
    stored: list[Quarantined] = []

    async def add(entry: Quarantined) -> None:
        stored.append(entry)

    async def look_for_keys() -> bool:
        return has_keys

    store: Any = SimpleNamespace(add=add)
    quarantine = Quarantine(store, has_keys=look_for_keys)

    await quarantine.set_aside_run("r-1", Partition(TOPIC, 0), range(2, 3), reason, owner=0)

    expected = hidden if has_keys and hidden else reason
    assert [entry.reason for entry in stored] == [expected]
    assert f": {expected}; see" in caplog.text


@pytest.mark.parametrize("has_keys", [False, True])
async def test_a_trace_of_an_encrypted_tenant_has_no_message(*, has_keys: bool):
    async def look_for_keys() -> bool:
        return has_keys

    store: Any = SimpleNamespace()
    try:
        int(MARKER)
    except ValueError as error:
        logged = await Quarantine(store, has_keys=look_for_keys).loggable(error)
    trace = "".join(traceback.format_exception(logged))

    assert (MARKER in trace) is not has_keys
    assert "ValueError" in trace
    assert __file__ in trace
