"""Generation on real servers: what is said becomes memories once, by a log that any number of
processes may answer.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from tests.builders import EPOCH
from tests.memory_verbs import check_memories_rebuild
from tests.processes import until
from tests.querying import served
from tests.remembering import ScriptedModel, fact
from tests.scripted_completions import Endpoint
from tests.session_verbs import Projector

from runfold import Runfold, UserMessage
from runfold.client.memories import Memories
from runfold.client.run import Run
from runfold.client.sessions import Sessions
from runfold.generation.answering import Trigger, log_run_id
from runfold.generation.generator import Generator, publish_trigger
from runfold.generation.model import Action, Found
from runfold.generation.options import (
    ChangedMemory,
    Contents,
    DirectFacts,
    GenerationOptions,
    SessionSource,
)
from runfold.generation.service import Generation
from runfold.generation.trigger_runner import TriggerRunner
from runfold.query.reading import Reading
from runfold.settings import Settings
from runfold_schemas.errors import (
    GenerationFailedError,
    InvalidEventError,
    NoModelError,
    SessionNotFoundError,
    UnavailableError,
)
from runfold_schemas.memories import BankConfig, GenerationRequested, MemoriesGenerated, MemoryTopic

HELLO = Contents([{"role": "user", "parts": [{"text": "I prefer window seats."}]}])
SEATS = Found(fact="Prefers window seats", topics=["USER_PREFERENCES"])
PREFERENCES = (MemoryTopic(managed="USER_PREFERENCES"),)


@pytest.fixture(scope="module")
async def reading(settings: Settings, projector: Projector) -> AsyncIterator[Reading]:
    async with Reading(settings) as reading:
        yield reading


@dataclass(frozen=True)
class World:
    """What a generation works on, in a scope that no other test has."""

    runfold: Runfold
    memories: Memories
    sessions: Sessions
    scope: dict[str, str]
    bank: str = "bank"

    def generator(self, model: ScriptedModel | None) -> Generator:
        return Generator(self.memories, self.runfold, model, sessions=self.sessions)

    async def facts(self, scope: dict[str, str] | None = None) -> list[str]:
        near = await self.memories.nearest(self.bank, scope or self.scope, "x", limit=100)
        return sorted(one.record.memory.fact for one in near)

    async def log_of(self, generated: ChangedMemory) -> Run:
        """The run that the memory's last change comes from."""
        found, _ = await self.memories.revisions(self.bank, generated.memory_id)
        return await self.runfold.get_run(found[0].run_id)


@pytest.fixture(scope="module")
async def memories(runfold: Runfold, reading: Reading) -> Memories:
    memories = Memories(runfold.connection, reading.stored_memories, similarity=reading.similarity)
    await memories.create_bank("bank")
    return memories


@pytest.fixture
def world(runfold: Runfold, reading: Reading, memories: Memories) -> World:
    sessions = Sessions(runfold.connection, reading.stored_sessions)
    return World(runfold, memories, sessions, scope={"user": uuid4().hex})


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel(found=[SEATS])


@pytest.fixture
def generator(world: World, model: ScriptedModel) -> Generator:
    return world.generator(model)


@pytest.fixture
def without_model(world: World) -> Generator:
    return world.generator(None)


async def trigger_of(world: World, run: Run) -> Trigger:
    async for one in run.history():
        if isinstance(one.event.data, GenerationRequested):
            return Trigger(world.runfold.connection.appender_of(run.life), one.event, one.record.offset)
    raise AssertionError("nothing was asked for")


async def test_facts_are_remembered_without_a_model(world, without_model):
    given = DirectFacts([fact("Likes tea", "drinks"), fact("Lives in Oslo")])

    generated = await without_model.generate(world.bank, world.scope, given)

    assert [one.action for one in generated] == ["CREATED", "CREATED"]
    made = await world.memories.get(world.bank, generated[0].memory_id)
    assert (made.memory.fact, made.memory.scope) == ("Likes tea", world.scope)
    assert made.memory.topics == (MemoryTopic(custom="drinks"),)
    [revision], _ = await world.memories.revisions(world.bank, made.memory_id)
    assert [one.fact for one in revision.extracted] == ["Likes tea"]


async def test_a_fact_that_is_known_updates_its_memory(world, without_model):
    [first] = await without_model.generate(world.bank, world.scope, DirectFacts([fact("The user likes tea")]))
    before = await world.memories.get(world.bank, first.memory_id)

    [same] = await without_model.generate(world.bank, world.scope, DirectFacts([fact("the user likes tea")]))
    [near] = await without_model.generate(world.bank, world.scope, DirectFacts([fact("User likes tea!")]))
    [other] = await without_model.generate(
        world.bank, world.scope, DirectFacts([fact("The user does not like tea")])
    )

    assert same == ChangedMemory(first.memory_id, "UPDATED", before.revision_id)
    assert near.action == other.action == "CREATED"
    assert await world.facts() == ["The user does not like tea", "The user likes tea", "User likes tea!"]
    found, _ = await world.memories.revisions(world.bank, first.memory_id)
    assert [one.extracted[0].fact for one in found] == ["the user likes tea", "The user likes tea"]


async def test_the_same_fact_told_by_many_at_once_is_one_memory(world, without_model):
    told = [
        without_model.generate(world.bank, world.scope, DirectFacts([fact("Likes tea")])) for _ in range(5)
    ]

    answers = await asyncio.gather(*told)

    assert sorted(one.action for [one] in answers) == ["CREATED"] + 4 * ["UPDATED"]
    assert await world.facts() == ["Likes tea"]


async def test_without_consolidation_every_fact_is_a_memory(world, without_model):
    options = GenerationOptions(disable_consolidation=True)

    await without_model.generate(
        world.bank, world.scope, DirectFacts([fact("Likes tea"), fact("Likes tea")]), options
    )

    assert await world.facts() == ["Likes tea", "Likes tea"]


@pytest.mark.parametrize("given", [[], [fact("x")] * 6, [fact(" ")]])
async def test_one_to_five_facts_with_a_text_are_taken(world, without_model, given):
    with pytest.raises(InvalidEventError, match="facts"):
        await without_model.generate(world.bank, world.scope, DirectFacts(given))


async def test_what_needs_a_model_says_how_to_configure_one(world, without_model):
    runs = len([run async for run in world.runfold.runs()])

    for source in (HELLO, SessionSource("s")):
        with pytest.raises(NoModelError, match="RUNFOLD_GENERATION_MODEL"):
            await without_model.generate(world.bank, world.scope, source)

    assert len([run async for run in world.runfold.runs()]) == runs


async def test_a_conversation_is_a_log_with_its_trigger_and_its_answer(world, generator, model):
    [made] = await generator.generate(world.bank, world.scope, HELLO)

    assert made.action == "CREATED"
    assert (await world.memories.get(world.bank, made.memory_id)).memory.topics == PREFERENCES
    [(read, _)] = model.read
    assert read == '{"role": "user", "text": "I prefer window seats."}'
    run = await world.log_of(made)
    assert [event.type async for event in run.events()] == [
        "run_opened",
        "framework_event",
        "generation_requested",
        "memories_generated",
        "run_completed",
    ]
    [revision], _ = await world.memories.revisions(world.bank, made.memory_id)
    assert [one.fact for one in revision.extracted] == ["Prefers window seats"]


async def test_a_model_updates_and_deletes_what_is_known_in_the_scope(world, generator, model):
    elsewhere = {"user": "somebody else"}
    await generator.generate(world.bank, elsewhere, DirectFacts([fact("Prefers aisle seats")]))
    [seats, tea] = await generator.generate(
        world.bank, world.scope, DirectFacts([fact("Prefers aisle seats"), fact("Likes tea")])
    )
    shown = {
        one.record.memory.fact: None
        for one in await world.memories.nearest(world.bank, world.scope, SEATS.fact)
    }
    places = {text: place for place, text in enumerate(shown)}
    model.actions = [
        Action(kind="update", facts=[0], memory=places["Prefers aisle seats"], text="Prefers window seats"),
        Action(kind="delete", facts=[0], memory=places["Likes tea"], text=None),
        Action(kind="delete", facts=[0], memory=2, text=None),
    ]

    generated = await generator.generate(world.bank, world.scope, HELLO)

    assert [(one.memory_id, one.action) for one in generated] == [
        (seats.memory_id, "UPDATED"),
        (tea.memory_id, "DELETED"),
    ]
    assert await world.facts() == ["Prefers window seats"]
    assert await world.facts(elsewhere) == ["Prefers aisle seats"]
    [gone, before], _ = await world.memories.revisions(world.bank, tea.memory_id)
    assert (gone.action, generated[1].previous_revision_id) == ("deleted", before.revision_id)


async def test_options_reach_the_memory_and_its_revision(world, generator):
    until = datetime.now(UTC) + timedelta(days=2)
    options = GenerationOptions(
        revision_labels={"source": "test"}, revision_expires_at=until, metadata={"trip": "oslo"}
    )

    [made] = await generator.generate(world.bank, world.scope, HELLO, options)

    [revision], _ = await world.memories.revisions(world.bank, made.memory_id)
    assert (revision.labels, revision.expires_at) == ({"source": "test"}, until)
    assert (await world.memories.get(world.bank, made.memory_id)).memory.metadata == {"trip": "oslo"}


async def test_without_revisions_a_generation_leaves_none(world, generator):
    [made] = await generator.generate(
        world.bank, world.scope, HELLO, GenerationOptions(disable_revisions=True)
    )

    assert (await world.memories.revisions(world.bank, made.memory_id))[0] == []


@pytest.mark.parametrize(
    ("strategy", "expected", "count"),
    [
        ("OVERWRITE", {"b": 2.0}, 1),
        ("MERGE", {"a": 1.0, "b": 2.0}, 1),
        ("REQUIRE_EXACT_MATCH", {"b": 2.0}, 2),
    ],
)
async def test_metadata_is_merged_as_asked(world, without_model, strategy, expected, count):
    told = DirectFacts([fact("Likes tea")])
    await without_model.generate(world.bank, world.scope, told, GenerationOptions(metadata={"a": 1.0}))

    options = GenerationOptions(metadata={"b": 2.0}, metadata_merge=strategy)
    [made] = await without_model.generate(world.bank, world.scope, told, options)

    assert (await world.memories.get(world.bank, made.memory_id)).memory.metadata == expected
    assert len(await world.facts()) == count


async def test_times_to_live_are_the_banks(world, without_model):
    config = BankConfig(generate_created_ttl_seconds=1_000, generate_updated_ttl_seconds=90_000)
    bank = (await world.memories.create_bank(config=config)).bank_id

    [made] = await without_model.generate(bank, world.scope, DirectFacts([fact("Likes tea")]))
    created = await world.memories.get(bank, made.memory_id)
    await without_model.generate(bank, world.scope, DirectFacts([fact("Likes tea")]))
    updated = await world.memories.get(bank, made.memory_id)

    for record, seconds in ((created, 1_000), (updated, 90_000)):
        lives = record.memory.expires_at - record.updated_at
        assert abs(lives - timedelta(seconds=seconds)) < timedelta(seconds=30)


async def test_a_session_of_ours_is_remembered_within_a_range_of_time(world, generator, model):
    session = await world.sessions.create(app="shop", user=f"ann-{uuid4().hex}")
    for hour, said in enumerate(("Before", "Within", "After")):
        at = EPOCH + timedelta(hours=hour)
        await world.sessions.append(session.session_id, UserMessage(message=said), timestamp=at)
    hours = [EPOCH + timedelta(hours=hour) for hour in (1, 2)]

    [made] = await generator.generate(world.bank, None, SessionSource(session.session_id, *hours))

    assert [read for read, _ in model.read] == ['{"role": "user", "text": "Within"}']
    assert (await world.memories.get(world.bank, made.memory_id)).memory.scope == {
        "user_id": session.record.user
    }


async def test_a_session_that_is_not_there_is_told(world, generator):
    with pytest.raises(SessionNotFoundError):
        await generator.generate(world.bank, world.scope, SessionSource("nobody's"))


@pytest.mark.parametrize(
    "failure", [UnavailableError("The model", reason="away"), GenerationFailedError("it refuses")]
)
async def test_a_generation_that_fails_changes_nothing_and_says_why(world, generator, model, failure):
    model.failure = failure

    with pytest.raises(type(failure)):
        await generator.generate(world.bank, world.scope, HELLO)

    assert await world.facts() == []
    run = max([run async for run in world.runfold.runs()], key=lambda run: run.life.log_id)
    events = [event async for event in run.events()]
    assert [event.type for event in events][-2:] == ["memories_generated", "run_failed"]
    assert isinstance(events[-2].data, MemoriesGenerated)
    assert events[-2].data.error == str(failure)


async def test_a_trigger_is_answered_once_whoever_answers(world, generator, model):
    [made] = await generator.generate(world.bank, world.scope, HELLO)
    trigger = await trigger_of(world, await world.log_of(made))
    other = ScriptedModel(found=[Found(fact="Something else", topics=["USER_PREFERENCES"])])

    again = await world.generator(other).answer(trigger)

    assert other.read, "the second one has asked, and its answer came too late"
    assert again == [made]
    assert await world.facts() == ["Prefers window seats"]
    found, _ = await world.memories.revisions(world.bank, made.memory_id)
    assert len(found) == 1


async def test_what_others_change_meanwhile_is_consolidated_again(world):
    [tea] = await world.generator(None).generate(world.bank, world.scope, DirectFacts([fact("Likes tea")]))

    class Interrupted(ScriptedModel):
        async def consolidate(self, facts: Any, known: Any) -> Any:
            if not self.asked:
                await world.memories.update(world.bank, tea.memory_id, {"fact": "Likes green tea"})
            await super().consolidate(facts, known)
            return [Action(kind="update", facts=[0], memory=0, text=f"{known[0]}; prefers window seats")]

    model = Interrupted(found=[SEATS])

    [updated] = await world.generator(model).generate(world.bank, world.scope, HELLO)

    assert (updated.memory_id, updated.action) == (tea.memory_id, "UPDATED")
    assert [known for _, known in model.asked] == [["Likes tea"], ["Likes green tea"]]
    assert await world.facts() == ["Likes green tea; prefers window seats"]
    run = await world.log_of(updated)
    assert [event.type async for event in run.events()].count("generation_requested") == 2


async def test_what_was_to_delete_a_memory_keeps_its_topics_when_it_is_consolidated_again(world):
    [tea] = await world.generator(None).generate(world.bank, world.scope, DirectFacts([fact("Likes tea")]))

    class Interrupted(ScriptedModel):
        async def consolidate(self, facts: Any, known: Any) -> Any:
            await super().consolidate(facts, known)
            if len(self.asked) > 1:
                return [Action(kind="create", facts=[0], memory=None, text=facts[0])]
            await world.memories.update(world.bank, tea.memory_id, {"fact": "Likes green tea"})
            return [Action(kind="delete", facts=[0], memory=0, text=None)]

    [made] = await world.generator(Interrupted(found=[SEATS])).generate(world.bank, world.scope, HELLO)

    assert (await world.memories.get(world.bank, made.memory_id)).memory.topics == PREFERENCES


async def is_completed(run: Run) -> bool:
    return [event.type async for event in run.events()][-1] == "run_completed"


@pytest.mark.parametrize("is_answered", [False, True])
async def test_what_a_process_has_left_another_one_answers_and_completes(
    world, generator, model, is_answered
):
    run = await world.runfold.open_run(agent_id=world.bank, run_id=log_run_id(world.scope["user"]))
    bank = await world.memories.bank(world.bank)
    trigger = await publish_trigger(
        world.runfold.connection.appender_of(run.life), bank, world.scope, HELLO, GenerationOptions()
    )
    if is_answered:
        await generator.answer(trigger)

    async with TriggerRunner(lambda: generator, sweep_seconds=0.1, take_up_seconds=0):
        await until(lambda: is_completed(run), what="the end of another process' generation")

    assert await world.facts() == ["Prefers window seats"]
    assert len(model.read) == 1


async def test_what_was_refused_of_a_dead_process_answer_another_one_tries_again(world, monkeypatch):
    [tea] = await world.generator(None).generate(world.bank, world.scope, DirectFacts([fact("Likes tea")]))

    async def die(*_: Any) -> Trigger:
        raise asyncio.CancelledError

    class Interrupted(ScriptedModel):
        async def consolidate(self, facts: Any, known: Any) -> Any:
            await world.memories.update(world.bank, tea.memory_id, {"fact": "Likes green tea"})
            return [Action(kind="delete", facts=[0], memory=0, text=None)]

    run = await world.runfold.open_run(agent_id=world.bank, run_id=log_run_id(world.scope["user"]))
    bank = await world.memories.bank(world.bank)
    trigger = await publish_trigger(
        world.runfold.connection.appender_of(run.life), bank, world.scope, HELLO, GenerationOptions()
    )
    with monkeypatch.context() as patch:
        patch.setattr("runfold.generation.answering._publish_retry", die)
        with pytest.raises(asyncio.CancelledError):
            await world.generator(Interrupted(found=[SEATS])).answer(trigger)
    assert await world.facts() == ["Likes green tea"]

    other = world.generator(ScriptedModel())
    async with TriggerRunner(lambda: other, sweep_seconds=0.1, take_up_seconds=0):
        await until(lambda: is_completed(run), what="the end of another process' generation")

    assert await world.facts() == ["Likes green tea", "Prefers window seats"]


async def test_a_trigger_that_says_nonsense_is_answered_with_what_is_wrong(world, generator, monkeypatch):
    monkeypatch.setattr("runfold.generation.trigger_runner._RETRY_SECONDS", 0.1)
    run = await world.runfold.open_run(agent_id=world.bank, run_id=log_run_id(world.scope["user"]))
    bank = await world.memories.bank(world.bank)
    trigger = await publish_trigger(
        world.runfold.connection.appender_of(run.life), bank, world.scope, HELLO, GenerationOptions()
    )
    nonsense = trigger.data.model_copy(update={"options": {"options": {"nobody": "knows"}}})
    await generator.answer(trigger)
    await run.publish(nonsense)

    async with TriggerRunner(lambda: generator, sweep_seconds=0.1, take_up_seconds=0):
        await until(lambda: is_completed(run), what="the end of the generation")

    answers = [event.data async for event in run.events() if isinstance(event.data, MemoriesGenerated)]
    assert [one.error for one in answers] == [None, "nobody: Extra inputs are not permitted"]


async def test_the_model_of_the_settings_extracts_and_consolidates(world, settings, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    endpoint = Endpoint(
        {"facts": [{"fact": "Prefers window seats", "topics": ["USER_PREFERENCES"]}]},
        {"actions": [{"kind": "update", "facts": [0], "memory": 0, "text": "Prefers window seats now"}]},
    )
    [aisle] = await world.generator(None).generate(
        world.bank, world.scope, DirectFacts([fact("Prefers aisle seats")])
    )
    async with served(endpoint.app) as client:
        named = {"generation_model": "openai:scripted", "generation_url": f"{client.base_url}/v1"}
        async with Generation(
            settings.model_copy(update=named),
            runfold=lambda: world.runfold,
            memories=lambda: world.memories,
            sessions=lambda: world.sessions,
        ) as generation:
            [updated] = await generation.generator().generate(world.bank, world.scope, HELLO)

    assert (updated.memory_id, updated.action) == (aisle.memory_id, "UPDATED")
    assert await world.facts() == ["Prefers window seats now"]
    assert aisle.memory_id not in json.dumps(endpoint.requests)


async def test_a_rebuild_which_has_no_model_reads_the_same(settings, projector):
    await check_memories_rebuild(settings)
