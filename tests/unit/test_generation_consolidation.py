"""Facts in, decisions about memories out; what a model decides counts only within what it was
shown.
"""

from pathlib import Path

import pytest
from tests.remembering import ScriptedModel, fact, record

from runfold.client.memory import NearestMemory
from runfold.generation.consolidation import FACT_LENGTH_MAX, Decision, FindNearby, consolidate
from runfold.generation.model import Action

PAIRS = [line.split("\t") for line in (Path(__file__).parents[1] / "fact_pairs.tsv").read_text().splitlines()]
"""Each has its language, its kind, which is "same" or "other", and two facts."""


def nearby(*known, distance=0.3) -> FindNearby:
    async def near(text) -> list[NearestMemory]:
        return [NearestMemory(one, distance) for one in known]

    return near


async def decided(*facts, known=(), actions=None, distance=0.3) -> list[Decision]:
    model = None if actions is None else ScriptedModel(actions=actions)
    return await consolidate(facts, find_nearby=nearby(*known, distance=distance), model=model)


def action(kind, *facts, memory=None, text=None) -> Action:
    return Action(kind=kind, facts=list(facts), memory=memory, text=text)


async def test_a_fact_that_nobody_knew_is_a_new_memory():
    [new] = await decided(fact("Likes tea"))

    assert (new.kind, new.text, new.before) == ("create", "Likes tea", None)
    assert new.sources == (fact("Likes tea"),)


@pytest.mark.parametrize("said", ["Likes tea", "likes  TEA.", "Likes tea!"])
async def test_a_fact_that_is_known_updates_its_memory_and_leaves_its_text(said: str):
    known = record("Likes tea")

    [updated] = await decided(fact(said), known=[known])

    assert (updated.kind, updated.text, updated.before) == ("update", "Likes tea", known)


@pytest.mark.parametrize("language", ["en", "de", "es", "ja", "ru", "zh"])
async def test_without_a_model_no_fact_is_lost_for_another(language: str):
    lost = []
    for kind, one, other in (pair[1:] for pair in PAIRS if pair[0] == language):
        kinds = [
            decision.kind
            for said, known in ((one, other), (other, one))
            for decision in await decided(fact(said), known=[record(known)], distance=0.0)
        ]
        both = await decided(fact(one), fact(other))
        if (kinds, len(both)) != ((["update"] * 2, 1) if kind == "same" else (["create"] * 2, 2)):
            lost.append((kind, one, other))

    assert lost == []


async def test_a_fact_that_is_told_twice_is_one_memory():
    [new] = await decided(fact("Likes tea", "food"), fact("likes tea.", "drinks"))

    assert new.sources == (fact("Likes tea", "food"), fact("likes tea.", "drinks"))


async def test_facts_that_no_decision_of_a_model_names_are_kept():
    near = record("Anna lent Tom 50 euros")

    [new] = await decided(fact("Tom lent Anna 50 euros"), known=[near], actions=[], distance=0.0)

    assert (new.kind, new.text) == ("create", "Tom lent Anna 50 euros")


async def test_without_consolidation_every_fact_is_a_new_memory():
    decisions = await consolidate([fact("Likes tea"), fact("Likes tea")], find_nearby=None, model=None)

    assert [one.kind for one in decisions] == ["create", "create"]


async def test_a_model_complements_contradicts_and_deletes():
    known = [record("Likes tea"), record("Lives in Rome"), record("Has a dog")]

    decisions = await decided(
        fact("Takes tea without sugar"),
        fact("Moved to Oslo"),
        fact("Forget my dog"),
        fact("Sails"),
        known=known,
        actions=[
            action("update", 0, memory=0, text="Likes tea, without sugar"),
            action("update", 1, memory=1, text="Lives in Oslo"),
            action("delete", 2, memory=2),
            action("create", 3, text="Sails"),
        ],
    )

    assert [(one.kind, one.text, one.before) for one in decisions] == [
        ("update", "Likes tea, without sugar", known[0]),
        ("update", "Lives in Oslo", known[1]),
        ("delete", "", known[2]),
        ("create", "Sails", None),
    ]


async def test_a_model_sees_places_and_texts_and_never_an_id():
    model = ScriptedModel()

    await consolidate([fact("Sails")], find_nearby=nearby(record("Likes tea")), model=model)

    assert model.asked == [(["Sails"], ["Likes tea"])]


async def test_what_is_known_letter_by_letter_costs_no_question():
    model = ScriptedModel()

    await consolidate([fact("Likes tea")], find_nearby=nearby(record("Likes tea")), model=model)

    assert model.asked == []


@pytest.mark.parametrize(
    "forbidden",
    [
        action("update", 0, memory=7, text="x"),
        action("update", 0, memory=-1, text="x"),
        action("update", 0, memory=None, text="x"),
        action("update", 0, memory=0, text="  "),
        action("update", 0, memory=0, text="x" * (FACT_LENGTH_MAX + 1)),
        action("update", memory=0, text="of no fact"),
        action("update", 9, -1, memory=0, text="of a fact that there is none of"),
        action("delete", memory=0),
        action("delete", 0, memory=1),
        action("create", 0, text=None),
        action("create", text="out of the air"),
    ],
)
async def test_an_action_that_names_what_was_not_shown_is_left_out(forbidden: Action):
    [new] = await decided(fact("Sails"), known=[record("Likes tea")], actions=[forbidden])

    assert (new.kind, new.text) == ("create", "Sails")


async def test_a_model_decides_once_about_each_memory():
    known = record("Likes tea")

    decisions = await decided(
        fact("Hates tea"),
        fact("Sails"),
        known=[known],
        actions=[
            action("update", 0, memory=0, text="Hates tea"),
            action("delete", 1, memory=0),
        ],
    )

    assert [(one.kind, one.text) for one in decisions] == [("update", "Hates tea"), ("create", "Sails")]


async def test_a_model_that_says_far_too_much_is_cut_short():
    decisions = await decided(
        fact("Sails"),
        known=[record("Likes tea")],
        actions=[action("create", 0, text=f"Fact {number}") for number in range(10_000)],
    )

    assert len(decisions) == 200


async def test_a_fact_that_the_model_passes_over_is_not_lost():
    known = record("Likes tea")

    [updated] = await decided(fact("Hates tea"), known=[known], actions=[])

    assert (updated.kind, updated.text) == ("create", "Hates tea")
