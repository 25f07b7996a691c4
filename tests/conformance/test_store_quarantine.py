"""The quarantine and the skips, with each driver."""

from datetime import UTC, datetime, timedelta
from typing import Any

from runfold.store.quarantine import Quarantined, QuarantineStore, key_id_of, run_id_of
from runfold.store.skips import SkipStore
from runfold_schemas.catalog import Skip
from runfold_schemas.topics import Partition

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def _run(run_id: str = "r", **fields: Any) -> Quarantined:
    given = {"offset": 7, "next_offset": 8, "owner": 3, "reason": "too deep", "since": NOW, **fields}
    return Quarantined(id=run_id_of(run_id), kind="run", topic=f"p.run.{run_id}.1", partition=0, **given)


async def test_what_is_set_aside_is_found_by_id_owner_and_kind(store, edition):
    quarantine = QuarantineStore(store, edition)
    key = Quarantined(key_id_of("session:s"), "key", "p.sessions", 4, 0, 1, 4, "too deep", NOW)
    await quarantine.add(_run())
    await quarantine.add(key)

    assert await quarantine.get("run:r") == _run()
    assert await quarantine.get("run:other") is None
    assert await quarantine.all() == [key, _run()]
    assert await quarantine.all(owners={3}) == [_run()]
    assert await quarantine.all(kind="key") == [key]
    assert await quarantine.all(after="key:session:s", limit=1) == [_run()]
    assert await quarantine.count() == 2
    assert await quarantine.count(owners={4}) == 1


async def test_another_failure_keeps_the_first_time_and_counts(store, edition):
    quarantine = QuarantineStore(store, edition)
    await quarantine.add(_run())
    await quarantine.add(_run(offset=9, next_offset=10, reason="too large", since=NOW + timedelta(hours=1)))

    assert await quarantine.all() == [_run(offset=9, next_offset=10, reason="too large", attempts=2)]


async def test_a_request_reaches_the_owner_and_ends_with_the_next_failure(store, edition):
    quarantine = QuarantineStore(store, edition)
    await quarantine.add(_run())
    await quarantine.request("run:r", "retry", owner=3)
    await quarantine.request("run:healthy", "refold", owner=5)

    assert await quarantine.requests({3, 5}) == {"run:r": "retry", "run:healthy": "refold"}
    assert await quarantine.requests({5}) == {"run:healthy": "refold"}
    assert await quarantine.count() == 1, "a request alone is no quarantine"
    assert await quarantine.get("run:healthy") is None

    await quarantine.add(_run())
    await quarantine.remove(["run:healthy"])
    assert await quarantine.requests({3, 5}) == {}


async def test_skips_are_found_by_topic_and_written_once(store, edition):
    skips = SkipStore(store, edition)
    await skips.add([])
    await skips.add(
        [Skip(topic="p.run.r.1", offset=3, next_offset=4), Skip(topic="p.run.r.1", offset=9, next_offset=12)]
    )
    await skips.add(
        [
            Skip(topic="p.run.r.1", offset=3, next_offset=4),
            Skip(topic="p.sessions", partition=2, offset=0, next_offset=1),
        ]
    )

    run, sessions = Partition("p.run.r.1", 0), Partition("p.sessions", 2)
    assert await skips.all() == {run: {range(3, 4), range(9, 12)}, sessions: {range(1)}}
    assert await skips.all(["p.sessions"]) == {sessions: {range(1)}}
