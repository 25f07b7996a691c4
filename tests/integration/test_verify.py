"""`verify` finds what is wrong in MongoDB, whatever it is, and nothing where all is right."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from tests.processes import Projections, projections, reaches, until, working
from tests.servers import OwnSettings

from runfold import AssistantMessage, Run, Runfold, UserMessage
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.pages import MERGE_AT, PageStore
from runfold.store.run_state import RunState, document_of
from runfold.store.runs import RunStore
from runfold.verify.runs import verify
from runfold_projections.run import RunRecord


class Projected(NamedTuple):
    run: Run
    stored: Projections
    database: Any
    pages: Any
    runs: Any

    async def differences(self) -> set[str]:
        return {one.kind for one in await self.stored.differences(wait_seconds=0)}


@pytest.fixture
async def projected(kafka: str, mongo: str, prefix: str, database: str) -> AsyncIterator[Projected]:
    """A run in four pages, folded to its end, and no projector any more."""
    settings = Settings(kafka=kafka, mongo=mongo, prefix=prefix, database=database)
    async with projections(settings) as stored, Runfold.of(settings.log()) as runfold:
        async with working(settings, stored.edition):
            run = await runfold.open_run(agent_id="a")
            await until(lambda: reaches(stored, run, 0), what="the state of the run")
            for number in range(3):
                end = (
                    await run.publish_batch(
                        [UserMessage(message="hi"), AssistantMessage(message=str(number))]
                    )
                )[-1].offset
                await until(lambda end=end: reaches(stored, run, end), what="the state of the run")
        async with connect(mongo, database) as raw:
            yield Projected(run, stored, raw, raw[f"pages.{stored.edition}"], raw[f"runs.{stored.edition}"])


async def test_a_right_projection_has_no_differences(projected: Projected) -> None:
    assert await projected.differences() == set()


async def test_one_flipped_byte_is_found(projected: Projected) -> None:
    page = await projected.pages.find_one({"first_offset": 1})
    for index in range(0, len(page["body"]), len(page["body"]) // 16):
        flipped = bytes(byte ^ (index == place) for place, byte in enumerate(page["body"]))
        await projected.pages.update_one({"_id": page["_id"]}, {"$set": {"body": flipped}})

        assert "wrong checksum" in await projected.differences(), f"byte {index} of {len(flipped)}"


async def test_a_missing_page_is_found(projected: Projected) -> None:
    await projected.pages.delete_one({"first_offset": 3})

    assert await projected.differences() == {"missing page"}


async def test_missing_first_and_last_pages_are_found(projected: Projected) -> None:
    await projected.pages.delete_one({"first_offset": 0})
    await projected.pages.delete_one({"first_offset": 5})

    found = await projected.stored.differences(wait_seconds=0)

    assert [(one.kind, one.offset) for one in found] == [("missing page", 0), ("missing page", 5)]


async def test_a_page_that_claims_more_than_it_holds_is_found(projected: Projected) -> None:
    await projected.pages.update_one({"first_offset": 1}, {"$set": {"next_offset": 4}})

    assert "missing record" in await projected.differences()


async def test_what_an_overtaken_worker_put_inside_a_page_is_no_difference(projected: Projected) -> None:
    merged = PageStore(projected.database, projected.stored.edition)
    small = await merged.all(projected.run.life.log_id)
    await merged.merge(projected.run.life.log_id, first_offset=0)
    assert len(await merged.all(projected.run.life.log_id)) == 1

    assert await merged.insert(small[1:2]) == set()

    assert await projected.differences() == set()


async def test_a_stale_state_is_found(projected: Projected) -> None:
    state = await projected.stored.runs.get(projected.run.run_id)
    assert state is not None
    stale = state.record.model_copy(update={"next_offset": 3})
    await projected.runs.update_one({}, {"$set": {"next_offset": 3, "record": stale.model_dump_json()}})

    assert "stale state" in await projected.differences()


async def test_a_position_that_contradicts_its_record_is_found(projected: Projected) -> None:
    await projected.runs.update_one({}, {"$set": {"next_offset": 3}})

    assert await projected.differences() == {"wrong state"}


async def test_a_state_that_is_not_the_fold_is_found(projected: Projected) -> None:
    record = (await projected.runs.find_one({}))["record"]
    await projected.runs.update_one({}, {"$set": {"record": record.replace('"running"', '"completed"')}})

    assert await projected.differences() == {"wrong state"}


async def test_a_run_without_records_that_an_earlier_version_announced_is_no_difference(
    projected: Projected,
) -> None:
    record = RunRecord(run_id="announced", agent_id="a")
    stored = document_of(RunState(log_id="f" * 32, partition=0, active=True, record=record))
    del stored["activity"]
    await projected.runs.insert_one({**stored, "_id": "announced"})

    assert await projected.stored.runs.inconsistent_fields("announced") == []


async def test_a_page_whose_summary_is_wrong_is_found(projected: Projected) -> None:
    await projected.pages.update_one({"first_offset": 1}, {"$set": {"counts": {"user_message": 7}}})

    assert await projected.differences() == {"wrong page"}


async def test_a_run_that_mongodb_lacks_and_one_that_kafka_lacks_are_found(projected: Projected) -> None:
    document = await projected.runs.find_one({})
    await projected.runs.delete_one({})
    record = document["record"].replace(projected.run.run_id, "ghost")
    await projected.runs.insert_one({**document, "_id": "ghost", "record": record})

    assert await projected.differences() == {"no state", "no log"}


async def test_a_run_that_is_removed_a_moment_after_its_topic_is_no_difference(
    projected: Projected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is how a deletion that a projector is about to notice looks."""
    document = await projected.runs.find_one({})
    record = document["record"].replace(projected.run.run_id, "deleted")
    await projected.runs.insert_one({**document, "_id": "deleted", "record": record})

    read, seen = RunStore.progress, list[bool]()

    async def progress(store: RunStore) -> AsyncIterator[tuple[str, int]]:
        names = list[str]()
        async for name, position in read(store):
            names.append(name)
            yield name, position
        seen.append("deleted" in names)
        if len(seen) == 2:
            await projected.runs.delete_one({"_id": "deleted"})

    # The document is there when verify looks for it again, and gone a look later.
    monkeypatch.setattr(RunStore, "progress", progress)

    assert await projected.stored.differences() == []
    assert seen[:3] == [True, True, False]


@pytest.mark.parametrize("moment", ["before it is compared", "while it is compared"])
async def test_a_run_that_is_deleted_while_verify_runs_is_no_difference(
    own_settings: OwnSettings, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = own_settings()
    async with (
        projections(settings) as stored,
        Runfold.of(settings.log()) as runfold,
        working(settings, stored.edition),
    ):
        run = await runfold.open_run(agent_id="a")
        await until(lambda: reaches(stored, run, 0), what="the state of the run")
        look = RunStore.document if moment == "before it is compared" else RunStore.inconsistent_fields

        async def is_gone() -> bool:
            pages = [page async for page in stored.pages.documents(run.life.log_id)]
            return not pages and not await document(stored.runs, run.run_id)

        async def after_the_deletion(store: RunStore, run_id: str) -> object:
            if not deleted:
                deleted.append(run_id)
                await runfold.delete_run(run_id)
                await until(is_gone, what="the end of the run's data")
            return await look(store, run_id)

        deleted, document = list[str](), RunStore.document
        monkeypatch.setattr(RunStore, look.__name__, after_the_deletion)

        assert await stored.differences() == []
        assert deleted == [run.run_id]


async def test_verify_waits_for_a_projector_that_gets_on(
    projected: Projected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is behind gets to the run later than `verify` waits without progress."""
    document = await projected.runs.find_one({})
    await projected.runs.delete_one({})
    others = 0

    async def fold_another() -> None:
        nonlocal others
        others += 1
        record = document["record"].replace(projected.run.run_id, f"other-{others}")
        await projected.runs.insert_one({**document, "_id": f"other-{others}", "record": record})

    async def get_on() -> None:
        for _ in range(8):
            await fold_another()
            await asyncio.sleep(0.3)
        await projected.runs.insert_one(document)

    getting_on = asyncio.create_task(get_on())
    verifying = verify(
        projected.stored.settings.log(), projected.stored.stores, run_id=projected.run.run_id, wait_seconds=1
    )
    found = [one async for _, of_run in verifying for one in of_run]
    await getting_on

    assert found == []


async def test_verifying_again_and_again_while_projectors_work_finds_nothing(
    kafka: str, mongo: str, prefix: str, database: str
) -> None:
    settings = Settings(kafka=kafka, mongo=mongo, prefix=prefix, database=database)
    async with (
        projections(settings) as stored,
        Runfold.of(settings.log()) as runfold,
        working(settings, stored.edition),
    ):
        run = await runfold.open_run(agent_id="a")
        talking = asyncio.create_task(talk(run))
        visits = asyncio.gather(*(come_and_go(runfold, times=20) for _ in range(3)))
        found, rounds, end = [], 0, 0
        # On a busy machine it takes longer than the visits until pages were merged meanwhile.
        while not visits.done() or rounds < 3 or end <= 2 * MERGE_AT:
            found += await stored.differences()
            rounds += 1
            end = await stored.end(run.life.log_id)
            assert not talking.done()
        talking.cancel()
        await asyncio.gather(visits, talking, return_exceptions=True)

    assert found == []


async def test_a_topic_without_a_record_is_no_difference(projected: Projected) -> None:
    async with Runfold.of(projected.stored.settings.log()) as runfold:
        await runfold.connection.admin.create_run_topic(runfold.connection.topics.run("begun", "0" * 32))

    assert await projected.differences() == set()


async def talk(run: Run) -> None:
    """Endless, event by event, so that each becomes a page."""
    while True:
        await run.publish(AssistantMessage(message="and"))
        await asyncio.sleep(0.005)


async def come_and_go(runfold: Runfold, *, times: int) -> None:
    """Runs that are opened and completed, one after the other."""
    for _ in range(times):
        async with runfold.run(agent_id="a") as run:
            await run.publish(UserMessage(message="hi"))
            await asyncio.sleep(0.2)
