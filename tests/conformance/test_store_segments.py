"""Where sealed logs lie, with each driver: entries only move forward."""

from itertools import permutations

from runfold.log.catalog import folded_segments, segments_record
from runfold.store.segments import SegmentStore
from runfold_schemas.catalog import Segments

SEALED = Segments(run_id="$r", log_id="$1", base=1000, end=10, sealed_base=0)
ARCHIVED = SEALED.model_copy(update={"sealed_base": None, "archived_end": 9, "archived_records": 9})
SECOND_CHOICE = Segments(run_id="$r", log_id="$1", base=1001, end=11, sealed_base=0)
REOPENED = Segments(run_id="$r", log_id="$1", base=5000, end=1020, sealed_base=1000)


async def test_entries_are_folded_as_in_the_catalog_in_any_order(store, edition):
    segments = SegmentStore(store, edition)
    every = list(permutations([SEALED, ARCHIVED, SECOND_CHOICE, REOPENED]))

    for number, order in enumerate(every):
        entries = [entry.model_copy(update={"run_id": f"$r{number}"}) for entry in order]
        await segments.add(entries[:2])
        await segments.add([*entries[1:], entries[0]])

        folded = None
        for entry in [*entries[:2], *entries[1:], entries[0]]:
            record = segments_record(entry)
            folded = folded_segments(folded, record.key or b"", record.value)
        assert (await segments.get([f"$r{number}", "other"])) == {f"$r{number}": folded}

    assert len(await segments.get([f"$r{number}" for number in range(len(every))])) == 24


async def test_the_log_of_another_life_replaces_the_entry(store, edition):
    segments = SegmentStore(store, edition)
    other = Segments(run_id="$r", log_id="$2", base=7, end=1)
    await segments.add([REOPENED])
    await segments.add([other])
    await segments.add([])

    assert await segments.get(["$r"]) == {"$r": other}
