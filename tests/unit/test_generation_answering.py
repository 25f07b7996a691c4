"""What becomes of facts whose changes were refused, because somebody else has changed the
memory.
"""

import pytest
from tests.remembering import SCOPE, RememberedMemories, fact, record

from runfold.generation.answering import Answers
from runfold.generation.options import GenerationOptions
from runfold_schemas.errors import MemoryChangedError
from runfold_schemas.memories import MemoryTopic

DRINKS = MemoryTopic(custom="drinks")


async def test_a_fact_that_is_tried_again_has_the_topics_that_it_had():
    memories = RememberedMemories(record("Likes tea", memory_id="tea", topics=(MemoryTopic(custom="old"),)))

    def delete() -> None:
        memories.records.pop("tea", None)

    memories.before_change = delete

    [made] = await Answers(memories, None).change_memories(
        "bank", SCOPE, [fact("Likes tea", "drinks")], GenerationOptions()
    )

    assert made.action == "CREATED"
    assert memories.records[made.memory_id].memory.topics == (DRINKS,)


async def test_a_memory_that_others_change_again_and_again_is_given_up():
    memories = RememberedMemories(record("Likes tea", memory_id="tea"))

    def change() -> None:
        memories.records["tea"] = record("Likes tea", memory_id="tea")

    memories.before_change = change

    with pytest.raises(MemoryChangedError, match="tea"):
        await Answers(memories, None).change_memories("bank", SCOPE, [fact("Likes tea")], GenerationOptions())


async def test_an_answer_is_in_the_order_of_the_facts():
    # A fact that a memory has word for word is decided first.
    memories = RememberedMemories(record("Likes tea", memory_id="tea"))

    done = await Answers(memories, None).change_memories(
        "bank", SCOPE, [fact("Has a dog"), fact("Lives in Lyon"), fact("Likes tea")], GenerationOptions()
    )

    assert [change.action for change in done] == ["CREATED", "CREATED", "UPDATED"]
    assert [memories.records[change.memory_id].memory.fact for change in done] == [
        "Has a dog",
        "Lives in Lyon",
        "Likes tea",
    ]
