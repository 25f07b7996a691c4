"""Ids: UUIDv7, so that they sort by the millisecond of their making."""

import time
import uuid

from runfold import ids
from runfold_schemas.codec import new_event
from runfold_schemas.events import UserMessage
from runfold_schemas.topics import Topics

MILLISECOND = 1_000_000


def test_an_id_is_a_uuid_of_version_7():
    made = ids.uuid7()

    assert made.version == 7
    assert made.variant == uuid.RFC_4122


def test_an_id_begins_with_the_millisecond_of_its_making():
    before = time.time_ns() // MILLISECOND
    made = ids.uuid7()
    after = time.time_ns() // MILLISECOND

    assert before <= made.int >> 80 <= after


def test_ids_of_later_milliseconds_sort_behind_also_as_text(monkeypatch):
    clock = iter(range(1_767_225_600_000 * MILLISECOND, 2**63, MILLISECOND))
    monkeypatch.setattr(ids.time, "time_ns", lambda: next(clock))

    event_ids = [ids.new_event_id() for _ in range(300)]
    log_ids = [ids.new_log_id() for _ in range(300)]

    assert event_ids == sorted(event_ids)
    assert log_ids == sorted(log_ids)


def test_ids_of_one_millisecond_differ_in_all_74_random_bits(monkeypatch):
    monkeypatch.setattr(ids.time, "time_ns", lambda: 1_767_225_600_000 * MILLISECOND)

    made = [ids.uuid7().int for _ in range(500)]
    ones = zeros = 0
    for one in made:
        ones |= one
        zeros |= ~one & (1 << 128) - 1

    assert len(set(made)) == 500
    assert ones & zeros == (0xFFF << 64) | (1 << 62) - 1


def test_an_event_takes_a_new_event_id():
    event_id = ids.new_event_id()

    event = new_event(
        UserMessage(message="hi"), event_id=event_id, run_id="r", timestamp="2026-01-01T00:00:00Z"
    )

    assert event.event_id == event_id


def test_a_topic_takes_a_new_log_id():
    log_id = ids.new_log_id()

    assert Topics().parse_run(Topics().run("r", log_id)) == ("r", log_id)
    assert ":" not in log_id
    assert len(log_id) == 32
