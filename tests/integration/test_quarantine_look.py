"""What the query service remembers of the quarantine."""

from datetime import UTC, datetime

import pytest

from runfold.query import quarantine_look
from runfold.query.quarantine_look import QuarantineLook
from runfold.query.stored_runs import StoredRuns
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.store.quarantine import Quarantined


def entry(entry_id: str) -> Quarantined:
    kind = entry_id.partition(":")[0]
    assert kind in ("run", "key", "record")
    return Quarantined(entry_id, kind, "t", 0, 0, 1, 0, "a reason", datetime.now(UTC))  # type: ignore[arg-type]


async def test_a_run_is_remembered_behind_many_entries_of_other_kinds(
    mongo: str, database: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(quarantine_look, "REMEMBERED_MAX", 3)
    async with connect(mongo, database) as opened:
        edition = Edition.of(opened, await Editions(opened).current_or_first())
        look = QuarantineLook()
        assert look.may_have("run:healthy", edition), "before the first look"
        for number in range(4):
            await edition.quarantine.add(entry(f"key:{number}"))
            await edition.quarantine.add(entry(f"record:t-0:{number}"))
        await edition.quarantine.add(entry("run:ill"))

        await look.repeat(edition)

        assert look.may_have("run:ill", edition)
        assert not look.may_have("run:healthy", edition)
        assert look.may_have("key:9", edition), "too many keys to remember"
        assert look.may_have("run:healthy", Edition.of(opened, "another"))


async def test_a_service_that_has_just_started_knows_the_quarantine(mongo: str, database: str):
    async with connect(mongo, database) as opened:
        edition = Edition.of(opened, await Editions(opened).current_or_first())
        await edition.quarantine.add(entry("run:ill"))

        async with StoredRuns(Settings(mongo=mongo, database=database)) as stored_runs:
            assert stored_runs.may_be_quarantined("run:ill")
            assert not stored_runs.may_be_quarantined("run:healthy")


async def test_a_service_that_has_not_reached_mongodb_yet_does_not_call_a_run_free(database: str):
    settings = Settings(mongo="mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100", database=database)

    async with StoredRuns(settings) as stored_runs:
        assert stored_runs.may_be_quarantined("run:any")
