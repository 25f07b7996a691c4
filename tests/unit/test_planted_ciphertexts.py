"""A ciphertext of one user, which another user plants in a run of their own, is not decrypted."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.sealing import KeysTopic, process_of

from runfold.encryption.sealing import Sealing
from runfold.encryption.subjects import user_subject
from runfold_projections.memory import MemoryRecord
from runfold_projections.run import RunRecord
from runfold_projections.session import SessionRecord
from runfold_schemas.codec import encode_unchecked, new_data, new_event
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import MemoryCreated, memory_key
from runfold_schemas.runs import RunFailed, RunLabeled
from runfold_schemas.sessions import SessionCreated, StateChanged

ALICE, BOB = user_subject("alice"), user_subject("bob")
NOW = datetime.now(UTC)


@pytest.fixture
def topic() -> KeysTopic:
    return KeysTopic()


@pytest.fixture
def sealing(topic: KeysTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sealing:
    return Sealing(process_of(topic, tmp_path / "key", monkeypatch)(), clear_labels=("team",))


async def sealed(sealing: Sealing, data: Any, subject: str = ALICE, **envelope: Any) -> AnyEvent:
    event = new_event(data, event_id=str(uuid4()), run_id="ra", timestamp=NOW, **envelope)
    skeleton, _ = await sealing.seal_value(event, encode_unchecked(event), subject=subject)
    return skeleton


def session(user: str, **fields: Any) -> SessionRecord:
    ids = {"session_id": "s", "app": "desk", "run_id": "ra", "log_id": "l"}
    return SessionRecord.model_validate({**ids, "user": user, "created_at": NOW, "changed_at": NOW, **fields})


async def test_a_value_of_state_is_shown_to_its_user_in_its_run_under_its_key(sealing: Sealing) -> None:
    changed = await sealed(
        sealing, new_data(StateChanged), state_delta={"card": "4111", "user:pin": "0000", "app:x": "open"}
    )
    assert changed.state_delta is not None
    card, pin = changed.state_delta["card"], changed.state_delta["user:pin"]
    assert changed.state_delta["app:x"] == "open"

    assert await sealing.reveal_state({"card": card, "user:pin": pin}, ALICE, "ra") == {
        "card": "4111",
        "user:pin": "0000",
    }
    # All sessions of the user share `user:` values.
    assert await sealing.reveal_state({"user:pin": pin}, ALICE) == {"user:pin": "0000"}
    for subject, run_id in ((BOB, "ra"), (BOB, "rb"), (ALICE, "rb")):
        assert await sealing.reveal_state({"card": card}, subject, run_id) == {"card": card}
    for planted in (
        {"user:pin": pin},
        {"user:pin": card},
        {"app:x": pin},
        {"app:pin": "sealed:v1:" + "k" * 22 + ":AA"},
    ):
        assert await sealing.reveal_state(planted, BOB, "ra") == planted
    assert await sealing.reveal_state({"pin": card, "label:card": card}, ALICE, "ra") == {
        "pin": card,
        "label:card": card,
    }


async def test_labels_errors_and_names_are_shown_in_their_run_alone(sealing: Sealing) -> None:
    labeled = await sealed(sealing, new_data(RunLabeled, labels={"diag": "flu"}))
    failed = await sealed(sealing, new_data(RunFailed, error="no flu"))
    label, error = labeled.data.labels["diag"], failed.data.error  # type: ignore[union-attr]

    async def shown(user: str, run_id: str) -> tuple[Any, Any]:
        record = RunRecord(run_id=run_id, user_id=user, labels={"diag": label}, error=error)
        clear = await sealing.reveal_run(record)
        return clear.labels["diag"], clear.error

    assert await shown("alice", "ra") == ("flu", "no flu")
    assert await shown("bob", "ra") == (label, error)
    assert await shown("alice", "rb") == (label, error)

    created = await sealed(
        sealing,
        new_data(
            SessionCreated, session_id="s", app="desk", user="alice", log_id="0" * 32, display_name="ill"
        ),
    )
    name = created.data.display_name  # type: ignore[union-attr]
    assert (await sealing.reveal_session(session("alice", display_name=name))).display_name == "ill"
    assert (await sealing.reveal_session(session("bob", display_name=name))).display_name == name


async def test_a_memory_is_shown_in_its_scope_alone(sealing: Sealing) -> None:
    memory = {"fact": "ill", "scope": {"user": "alice"}}
    created = await sealed(sealing, new_data(MemoryCreated, bank_id="b", memory_id="m", memory=memory))
    stored = created.data.memory  # type: ignore[union-attr]
    record = MemoryRecord(
        bank_id="b", memory_id="m", memory=stored, revision_id="1", created_at=NOW, updated_at=NOW
    )
    assert (await sealing.reveal_memory(record)).memory.fact == "ill"
    planted = record.model_copy(update={"memory": stored.model_copy(update={"scope": {"user": "bob"}})})
    assert (await sealing.reveal_memory(planted)).memory.fact == "[sealed]"

    text = stored.model_extra["sealed"]
    state = {memory_key("b", "m"): text}
    for subject in (ALICE, BOB):
        assert await sealing.reveal_state(state, subject, "ra") == state


async def test_a_clear_label_that_looks_like_a_ciphertext_is_refused(sealing: Sealing) -> None:
    with pytest.raises(InvalidEventError, match="clear label"):
        await sealed(sealing, new_data(RunLabeled, labels={"team": "sealed:v1:x"}), BOB)


async def test_many_ciphertexts_with_unknown_keys_cost_one_look(sealing: Sealing, topic: KeysTopic) -> None:
    text = "sealed:v1:{:022d}:AAAA"
    values = {f"k{number}": text.format(number) for number in range(5_000)}

    for _ in range(2):
        shown = await sealing.reveal_state(values, BOB, "ra")
        assert set(shown.values()) == {"[erased]"}
    assert topic.looks == 1
