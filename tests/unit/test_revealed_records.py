"""Records of many kinds and keys are revealed together as each of them is revealed alone."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.sealing import KeysTopic, process_of

from runfold.encryption.sealing import Sealing
from runfold.encryption.subjects import user_subject
from runfold_projections.admission import Admission
from runfold_schemas.codec import Record, decode, encode_unchecked, new_data, new_event
from runfold_schemas.events import ToolCall, UserMessage
from runfold_schemas.memories import MemoryCreated
from runfold_schemas.sessions import StateChanged

ALICE, BOB, CAROL = map(user_subject, ("alice", "bob", "carol"))


@pytest.fixture
def sealing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sealing:
    return Sealing(process_of(KeysTopic(), tmp_path / "key", monkeypatch)())


async def stored(sealing: Sealing, subject: str, data: Any, **envelope: Any) -> tuple[bytes, bytes]:
    """An event as its writer has it, and as it is stored."""
    event = new_event(data, event_id=str(uuid4()), run_id="r", timestamp=datetime.now(UTC), **envelope)
    value = encode_unchecked(event)
    _, sealed = await sealing.seal_value(event, value, subject=subject)
    return value, sealed


def record(offset: int, value: bytes | None) -> Record:
    return Record(offset, 1, b"r", (), value)


def said(text: str) -> UserMessage:
    return new_data(UserMessage, message=text)


async def test_records_of_many_keys_are_revealed_together_as_alone(sealing: Sealing) -> None:
    memory = new_data(
        MemoryCreated,
        bank_id="b",
        memory_id="m",
        memory={"fact": 'She said ","sealed":"sealed:v1:', "scope": {"user": "alice"}},
    )
    both = [
        await stored(sealing, ALICE, said("one")),
        await stored(sealing, BOB, said('two ","data":{"message":"x"}')),
        await stored(sealing, CAROL, said("three")),
        await stored(sealing, ALICE, memory, turn_id='","sealed":"sealed:v1:'),
        await stored(sealing, ALICE, new_data(StateChanged), state_delta={"sealed": "four", "app:a": 1}),
        await stored(sealing, CAROL, said("five")),
        await stored(sealing, ALICE, new_data(ToolCall, tool_call_id="c", tool_name="t", payload={"q": "6"})),
    ]
    clear, sealed = [list(values) for values in zip(*both, strict=True)]
    other, swapped = both[0][1], both[0][1].replace(b"sealed:v1:", b"sealed:v1:A", 1)
    moved = sealed[1].replace(b'"run_id":"r"', b'"run_id":"s"')
    values = [*sealed, clear[0], None, b"no event", b'{"sealed":"', swapped, moved, other]
    await sealing.keys.destroy(CAROL)

    together = await sealing.reveal([record(number, value) for number, value in enumerate(values)])

    alone = [(await sealing.reveal([record(number, value)]))[0] for number, value in enumerate(values)]
    assert together == alone
    shown = [each.value for each in together]
    assert [shown[number] for number in (0, 1, 3, 6)] == [clear[number] for number in (0, 1, 3, 6)]
    assert b"[erased]" in (shown[2] or b"")
    assert b"[erased]" in (shown[5] or b"")
    assert shown[7:] == [clear[0], None, b"no event", b'{"sealed":"', swapped, moved, clear[0]]


async def test_admitted_records_are_revealed_with_their_events(sealing: Sealing) -> None:
    (one, sealed_one), (two, sealed_two) = [
        await stored(sealing, ALICE, said(text)) for text in ("one", "two")
    ]
    admission = Admission("r")
    values = [sealed_one, b"no event", sealed_one, sealed_two]
    admitted = [admission.admit(record(number, value)) for number, value in enumerate(values)]

    revealed = await sealing.reveal_admitted(admitted)

    assert [each.outcome for each in revealed] == ["accepted", "undecodable", "duplicate", "accepted"]
    assert [each.record.value for each in revealed] == [one, b"no event", one, two]
    assert [revealed[number].event for number in (0, 1, 3)] == [decode(one), None, decode(two)]
