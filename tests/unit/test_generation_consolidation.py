"""Facts in, decisions about memories out; what a model decides counts only within what it was
shown.
"""

import pytest
from tests.remembering import ScriptedModel, fact, record

from runfold.client.memory import NearestMemory
from runfold.embeddings.nearest import DUPLICATE_DISTANCE
from runfold.generation.consolidation import FACT_LENGTH_MAX, Decision, FindNearby, consolidate
from runfold.generation.facts import are_same_fact
from runfold.generation.model import Action


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


async def test_a_fact_in_other_words_updates_the_memory_with_the_newer_words():
    known = record("The user likes tea")

    [updated] = await decided(fact("User likes a tea"), known=[known], distance=DUPLICATE_DISTANCE)

    assert (updated.kind, updated.text, updated.before) == ("update", "User likes a tea", known)


@pytest.mark.parametrize(
    ("known", "said", "kind"),
    [
        ("The user likes tea", "User likes tea", "update"),
        ("Prefers window seats", "Prefers a window seat", "update"),
        ("Takes the left lane", "Takes the right lane", "create"),
        ("The pill comes before meals", "The pill comes after meals", "create"),
    ],
)
async def test_a_little_farther_away_the_words_that_carry_something_decide(known: str, said: str, kind: str):
    [one] = await decided(fact(said), known=[record(known)], distance=0.22)

    assert one.kind == kind


async def test_a_fact_that_is_only_similar_is_a_new_memory():
    [new] = await decided(fact("Likes green tea"), known=[record("Likes tea")], distance=0.2)

    assert new.kind == "create"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Has order 8841", "Has order 8842"),
        ("The user can eat nuts", "The user cannot eat nuts"),
        ("The user does like tea", "The user doesn't like tea"),
        ("Is married to Ann", "Is married to Bob"),
        ("Likes 🍎", "Likes 🍐"),
        ("Isst Nüsse", "Isst Nusse"),
        ("Lives in Rome", "No longer lives in Rome"),
    ],
)
async def test_what_vectors_do_not_tell_apart_stays_apart(one: str, other: str):
    [new] = await decided(fact(one), known=[record(other)], distance=0.0)

    assert new.kind == "create"
    assert not are_same_fact(other, one, distance=0.0)


async def test_a_fact_that_is_told_twice_is_one_memory():
    [new] = await decided(fact("Likes tea", "food"), fact("likes tea.", "drinks"))

    assert new.sources == (fact("Likes tea", "food"), fact("likes tea.", "drinks"))


async def test_two_facts_about_one_memory_are_one_change():
    known = record("The user likes tea")

    [updated] = await decided(
        fact("User likes tea"), fact("This user likes tea"), known=[known], distance=0.0
    )

    assert updated.text == "This user likes tea"
    assert updated.sources == (fact("User likes tea"), fact("This user likes tea"))


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
