"""Loading a run from what is stored, with both drivers: whatever a crash left, the rule of outcomes
goes on where it was.
"""

import pytest
from tests.builders import event
from tests.records import admit, record, records

from runfold.projector.active import load
from runfold.store.page import packed_records
from runfold.store.pages import PageStore, pages_of
from runfold.store.runs import RunState
from runfold_projections.admission import Admission
from runfold_projections.chain import START, extend
from runfold_projections.run import RunRecord, fold
from runfold_schemas.codec import Record
from runfold_schemas.events import AssistantMessage, UserMessage

LOG = "0" * 31 + "1"
LOGGED = records(*[AssistantMessage(message="a")] * 60)


@pytest.fixture
async def pages(store, edition) -> PageStore:
    pages = PageStore(store, edition)
    await pages.create_indexes()
    await pages.insert(pages_of(LOG, admit(LOGGED), first_offset=0, next_offset=60))
    return pages


def state_after(count: int) -> RunState:
    record = fold(RunRecord(run_id="run-1"), admit(LOGGED[:count])).model_copy(update={"next_offset": count})
    return RunState(LOG, partition=0, active=True, record=record, last_offset=count - 1)


@pytest.mark.parametrize("saved", [0, 1, 20, 59, 60])
@pytest.mark.parametrize("overtaken", [None, 0, 20, 25, 55])
async def test_a_run_is_loaded_as_if_nothing_had_happened(
    pages: PageStore, saved: int, overtaken: int | None
):
    if overtaken is not None:
        # The page of a writer that another one overtook: inside the one that is there.
        again = admit(LOGGED)[overtaken : overtaken + 5]
        await pages.insert(pages_of(LOG, again, first_offset=overtaken, next_offset=overtaken + 5))

    run = await load(pages, state_after(saved), "topic")

    everything = Admission("run-1")
    for one in LOGGED:
        everything.admit(one)
    later = [*LOGGED, record(event(UserMessage(message="new")), 60)]
    assert run.next_offset == 60
    assert run.record == state_after(60).record
    # The states of this test are those of an earlier version, which has no chain.
    assert run.chain == extend(START, packed_records(LOGGED))
    for one in later:
        again_there = record_at(one, 61)
        assert run.admission.admit(again_there).outcome == everything.admit(again_there).outcome


def record_at(one, offset: int) -> Record:
    return one._replace(offset=offset)
