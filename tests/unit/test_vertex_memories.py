"""Messages of memories and of engines, without servers."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.builders import EPOCH, event_id

from runfold.vertex.bank_config import bank_fields, wire_form
from runfold.vertex.engine_documents import EngineInput, EngineMessage
from runfold.vertex.memory_documents import CreateMemory, MemoryMessage, MetadataValue, RevisionMessage
from runfold.vertex.memory_filters import FilterParameters, memory_query
from runfold.vertex.names import Name
from runfold_projections.memory import BankRecord, MemoryRecord, Revision
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.memories import (
    BankConfig,
    ConversationMessage,
    Customization,
    Example,
    ExampleMemory,
    Memory,
    MemoryTopic,
    Moment,
    TopicConfig,
)

ENGINE = Name.parse("projects/p/locations/l/reasoningEngines/1")


def record(**memory: Any) -> MemoryRecord:
    return MemoryRecord(
        bank_id="1",
        memory_id="m",
        memory=Memory(**{"fact": "Likes tea", "scope": {"user_id": "ann"}, **memory}),
        revision_id=event_id(1),
        created_at=EPOCH,
        updated_at=EPOCH,
    )


def bank(config: BankConfig) -> BankRecord:
    return BankRecord(
        bank_id="1",
        config=config,
        created_by=event_id(0),
        changed_by=event_id(0),
        created_at=EPOCH,
        updated_at=EPOCH,
    )


values = st.one_of(
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=50),
    st.datetimes(datetime(2, 1, 1), datetime(9997, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001
        lambda time: Moment(timestamp=time)
    ),
)


@given(metadata=st.dictionaries(st.text(max_size=20), values, max_size=5))
def test_metadata_is_on_the_wire_what_it_is_here(metadata: dict[str, Any]):
    message = MemoryMessage.of(record(metadata=metadata), ENGINE).json_form()

    created = CreateMemory.model_validate(message).memory(EPOCH)

    assert created.metadata == metadata
    assert [type(value) for value in created.metadata.values()] == list(map(type, metadata.values()))


topics = st.sampled_from([MemoryTopic(managed="USER_PREFERENCES"), MemoryTopic(custom="drinks")])
examples = st.builds(
    Example,
    conversation=st.lists(
        st.builds(ConversationMessage, role=st.sampled_from(["user", "model"])), max_size=2
    ).map(tuple),
    memories=st.lists(
        st.builds(ExampleMemory, fact=st.text(min_size=1), topics=st.lists(topics, max_size=2).map(tuple)),
        max_size=2,
    ).map(tuple),
)
customizations = st.builds(
    Customization,
    scope_keys=st.lists(st.text(min_size=1), max_size=2).map(tuple),
    topics=st.lists(st.builds(TopicConfig, topic=topics.filter(lambda topic: topic.custom)), max_size=2).map(
        tuple
    ),
    examples=st.lists(examples, max_size=2).map(tuple),
)
seconds = st.none() | st.integers(1, 10**12).map(lambda microseconds: microseconds / 10**6)


@given(
    config=st.builds(
        BankConfig,
        display_name=st.none(),
        labels=st.just({}),
        foreign=st.just({}),
        agents=st.just(()),
        memory_ttl_seconds=seconds,
        create_ttl_seconds=seconds,
        generate_created_ttl_seconds=seconds,
        generate_updated_ttl_seconds=seconds,
        revision_ttl_seconds=seconds,
        customizations=st.lists(customizations, max_size=2).map(tuple),
    )
)
def test_a_configuration_of_our_own_verbs_is_understood_on_the_wire(config: BankConfig):
    said = bank_fields(wire_form(config, {}))

    assert {name: getattr(config, name) for name in said} == said


@pytest.mark.parametrize(("seconds", "nearest"), [(1e-9, "0.000001s"), (3e9, "3000000000s")])
def test_a_time_to_live_that_the_wire_cannot_say_is_the_nearest_that_it_can(seconds: float, nearest: str):
    form = wire_form(BankConfig(memory_ttl_seconds=seconds), {})

    assert form["ttlConfig"]["defaultTtl"] == nearest


def test_a_configuration_is_given_back_as_it_came():
    given = {"ttlConfig": {"defaultTtl": "1.50s", "unknown": [1]}, "customizationConfigs": [{"more": {}}]}
    config = EngineInput.model_validate({"context_spec": {"memory_bank_config": given}, "odd": {"a_b": 1}})

    message = EngineMessage.of(bank(config.config()), ENGINE).json_form()

    assert message["contextSpec"] == {"memoryBankConfig": given}
    assert message["odd"] == {"aB": 1}
    assert config.config().memory_ttl_seconds == 1.5


def test_what_our_verbs_changed_is_told_instead():
    given = {"ttlConfig": {"defaultTtl": "1s"}, "disableMemoryRevisions": True, "other": 1}
    config = EngineInput.model_validate({"contextSpec": {"memoryBankConfig": given}}).config()

    changed = config.model_copy(update={"disable_revisions": False, "memory_ttl_seconds": 2.0})

    form = EngineMessage.of(bank(changed), ENGINE).json_form()
    assert form["contextSpec"]["memoryBankConfig"] == {"ttlConfig": {"defaultTtl": "2s"}, "other": 1}


def test_nothing_of_an_answer_is_taken_for_something_that_was_given():
    before = BankConfig(display_name="a", foreign={"spec": {"x": 1}})
    answer = EngineMessage.of(bank(before), ENGINE).json_form()

    changes = EngineInput.model_validate(answer).changes(before, None)

    assert BankConfig.model_validate({**dict(before), **changes}) == before


@pytest.mark.parametrize(
    "foreign",
    [
        {"name": 1, "create_time": 2, "createTime": 3, "model_config": 4, "self": 5, "json_form": 6},
        {"contextSpec": 1},
        {"contextSpec": {"memoryBankConfig": [1]}},
        {"contextSpec": {"memoryBankConfig": {"ttlConfig": "x"}}},
    ],
)
def test_a_bank_with_anything_beside_its_configuration_is_an_engine(foreign: dict[str, Any]):
    message = EngineMessage.of(bank(BankConfig(foreign=foreign, memory_ttl_seconds=1)), ENGINE).json_form()

    assert message["name"] == str(ENGINE)
    assert message["createTime"] == message["updateTime"]
    assert message["contextSpec"] == {"memoryBankConfig": {"ttlConfig": {"defaultTtl": "1s"}}}


@pytest.mark.parametrize("mask", ["labels", "description,labels", "context_spec,labels,encryption_spec"])
def test_what_a_mask_names_and_the_message_does_not_have_is_taken_away(mask: str):
    before = BankConfig(
        labels={"a": "b"}, display_name="kept", memory_ttl_seconds=1, foreign={"encryptionSpec": {}}
    )

    after = before.model_copy(update=EngineInput().changes(before, mask))

    assert (after.labels, after.display_name) == ({}, "kept")
    assert after.memory_ttl_seconds == (None if "context_spec" in mask else 1)
    assert ("encryptionSpec" in after.foreign) == ("encryption_spec" not in mask)


def test_a_revision_of_a_deletion_has_an_empty_fact():
    revision = Revision(
        bank_id="1",
        memory_id="m",
        revision_id=event_id(1),
        action="deleted",
        offset=3,
        run_id="-",
        created_at=EPOCH,
        expires_at=EPOCH + timedelta(days=1),
    )

    message = RevisionMessage.of(revision, ENGINE.child("memories", "m")).json_form()

    assert message["fact"] == ""
    assert message["name"] == f"{ENGINE}/memories/m/revisions/{event_id(1)}"


@pytest.mark.parametrize("value", [{}, {"string_value": "a", "double_value": 1}, {"doubleValue": "x"}])
def test_a_value_of_metadata_is_exactly_one(value: dict[str, Any]):
    with pytest.raises(ValidationError):
        MetadataValue.model_validate(value)


def test_only_a_whole_scope_that_is_meant_for_all_is_looked_up():
    scope = '{\\"a\\": \\"b\\"}'

    assert memory_query(f'scope="{scope}" AND fact="x"').scope == {"a": "b"}
    assert memory_query(f'scope="{scope}" OR fact="x"').scope is None
    assert memory_query(f'NOT scope="{scope}"').scope is None
    assert memory_query('scope.a="b"').scope is None
    assert memory_query(None).matches is None
    with pytest.raises(InvalidEventError):
        memory_query("fact")


def test_a_number_is_no_truth_and_a_missing_value_is_only_not():
    def holds(op: str, *, negate: bool = False, **value: Any) -> bool:
        one = {"key": "k", "op": op, "negate": negate, "value": value}
        matches = FilterParameters.model_validate({"filterGroups": [{"filters": [one]}]}).predicate()
        assert matches is not None
        return matches(record(metadata={"k": 1.0}))

    assert holds("EQUAL", double_value=1)
    assert holds("OPERATOR_UNSPECIFIED", double_value=1)
    assert not holds("EQUAL", bool_value=True)
    assert not holds("LESS_THAN", string_value="2")
    assert holds("LESS_THAN", string_value="2", negate=True)
