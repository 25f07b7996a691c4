"""Nobody empties a bank by accident."""

import pytest
from tests.memory_verbs import memories_by

from runfold import InvalidEventError, Memory
from runfold.client.memory import MemorySelection

SCOPE = {"user": "ann"}


@pytest.mark.parametrize("way", ["log", "stored", "http"])
async def test_a_purge_of_nothing_that_was_named_deletes_nothing(settings, stored, way):
    async with memories_by(way, settings) as memories:
        bank = (await memories.create_bank()).bank_id
        await memories.create(bank, Memory(fact="likes tea", scope=SCOPE), memory_id="a")

        for selection, everything in (
            (None, False),
            (MemorySelection(), False),
            (MemorySelection(scope=SCOPE), True),
        ):
            for force in (True, False):
                with pytest.raises(InvalidEventError) as refused:
                    await memories.purge(bank, selection, everything=everything, force=force)
                assert refused.value.field == "scope"

        assert [one.memory_id for one in (await memories.list(bank))[0]] == ["a"]
        assert await memories.purge(bank, everything=True, force=False) == 1
        assert await memories.purge(bank, everything=True) == 1
