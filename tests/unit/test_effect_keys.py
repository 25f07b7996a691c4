"""The keys of effects: their file, and what a signature covers."""

import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from runfold.cli.program import app
from runfold.client.records import outgoing
from runfold.ids import new_event_id
from runfold.log.effect_keys import (
    HEADER,
    EffectKeys,
    add_effect_key,
    effect_signer_of,
    may_change_others,
    read_effect_keys,
)
from runfold.log.publisher import Outgoing
from runfold.settings import Settings
from runfold_projections.state import changes_others, forwards
from runfold_schemas.codec import Record, new_event
from runfold_schemas.data import Data
from runfold_schemas.errors import ConfigurationError
from runfold_schemas.events import AnyEvent, UserMessage
from runfold_schemas.memories import BankDeleted

TOPIC = "runfold.run.travel-1.00000000000000000000000000000000"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.txt"


def event_of(data: Data, **envelope: object) -> AnyEvent:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return new_event(data, event_id=new_event_id(), run_id="travel-1", timestamp=now, **envelope)


def signed(keys: EffectKeys, event: AnyEvent, topic: str = TOPIC) -> Outgoing:
    return outgoing(event, source="test", signer=effect_signer_of(keys, topic))


def logged(record: Outgoing) -> Record:
    return Record(7, 0, record.key, tuple(record.headers), record.value)


def new_keys(path: Path) -> EffectKeys:
    add_effect_key(path)
    return read_effect_keys(path)


DELETION = event_of(BankDeleted(bank_id="b"))


def test_a_signed_event_may_change_others(path: Path):
    keys = new_keys(path)
    assert may_change_others(keys, TOPIC, logged(signed(keys, DELETION)))


def test_an_event_without_effects_has_no_signature(path: Path):
    keys = new_keys(path)
    own = event_of(UserMessage(message="m"), state_delta={"own": 1, "temp:x": 1})
    for event in (event_of(UserMessage(message="m")), own):
        assert HEADER not in dict(signed(keys, event).headers)


@pytest.mark.parametrize(
    "event",
    [
        DELETION,
        event_of(UserMessage(message="m")),
        event_of(UserMessage(message="m"), state_delta={"own": 1}),
        event_of(UserMessage(message="m"), state_delta={"own": 1, "app:a": 1}),
        event_of(UserMessage(message="m"), state_delta={"user:a": 1}),
    ],
)
def test_the_events_that_are_forwarded_are_the_events_that_are_signed(event: AnyEvent):
    assert changes_others(event) == bool(forwards(event, app="desk", user="ann"))


def test_a_signature_counts_for_its_topic_and_its_value_alone(path: Path):
    keys = new_keys(path)
    record = logged(signed(keys, DELETION))
    other = logged(signed(keys, event_of(BankDeleted(bank_id="other"))))
    assert not may_change_others(keys, f"{TOPIC}0", record)
    assert not may_change_others(keys, TOPIC, other._replace(headers=record.headers))
    assert not may_change_others(keys, TOPIC, record._replace(value=None))


@pytest.mark.parametrize("header", [b"", b":", b"x", b"\xff:\xff", b"nobody:AAAA", None])
def test_a_wrong_header_signs_nothing(path: Path, header: bytes | None):
    keys = new_keys(path)
    record = logged(signed(keys, DELETION))._replace(headers=((HEADER, header),))  # type: ignore[arg-type]
    assert not may_change_others(keys, TOPIC, record)
    assert not may_change_others(keys, TOPIC, record._replace(headers=()))


def test_each_event_may_change_others_without_keys():
    record = logged(outgoing(DELETION, source="test", signer=effect_signer_of(None, TOPIC)))
    assert HEADER not in dict(record.headers)
    assert may_change_others(None, TOPIC, record)


def test_after_a_rotation_the_new_key_signs_and_the_old_one_counts(path: Path):
    old = new_keys(path)
    before = logged(signed(old, DELETION))
    new = new_keys(path)
    after = logged(signed(new, DELETION))
    assert [*new.keys][1:] == [*old.keys]
    assert may_change_others(new, TOPIC, before)
    assert may_change_others(new, TOPIC, after)
    assert not may_change_others(old, TOPIC, after)


def test_the_file_is_its_owners_alone_and_the_keys_are_not_shown(path: Path):
    keys = new_keys(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "keys=" not in repr(keys)
    settings = Settings(effect_keys=path)
    assert settings.log().effect_keys == keys
    assert "effect_keys" not in repr(settings.log())


@pytest.mark.parametrize(
    "content",
    [
        *("", "# only a comment\n", "one\n", "one AAAA\n", "one not base64!\n"),
        "one AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n" * 2,
        "o:e AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n",
    ],
)
def test_a_file_without_usable_keys_is_refused_and_not_quoted(path: Path, content: str):
    path.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        read_effect_keys(path)
    assert "has no key" in str(caught.value)
    assert "AAAA" not in str(caught.value)
    with pytest.raises(ValueError, match="has no key"):
        Settings(effect_keys=path)


def test_the_commands_make_a_key_and_show_its_id(path: Path, monkeypatch: pytest.MonkeyPatch):
    made = CliRunner().invoke(app, ["effects", "generate", str(path)])
    monkeypatch.setenv("RUNFOLD_EFFECT_KEYS", str(path))
    shown = CliRunner().invoke(app, ["effects", "keys"])
    (key_id,) = read_effect_keys(path).keys
    assert (made.exit_code, shown.output.split()) == (0, [key_id])
    assert key_id in made.output
