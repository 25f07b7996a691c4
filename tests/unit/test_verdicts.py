"""Claims of the catalog that runs are deleted, and the verdicts of projectors about them."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runfold.log import verdicts as module
from runfold.log.catalog import entry_of, life_key, life_record
from runfold.log.driver import TopicRefusedError
from runfold.log.publisher import Outgoing
from runfold.log.reader import LogGoneError
from runfold.log.settings import LogSettings
from runfold.log.verdict_log import VerdictLog
from runfold.log.verdicts import CATALOG, DELETED, Begin, Deletion, Verdicts, _Hashes
from runfold_schemas.catalog import Life
from runfold_schemas.codec import Record
from runfold_schemas.errors import UnavailableError
from runfold_schemas.topics import Partition

AT = Partition("runfold.runs", 3)

LIFE = Life(run_id="r", log_id="1", agent_id="a", deleted=True)


class Topic:
    """The topic of verdicts. None: it does not exist."""

    def __init__(self) -> None:
        self.records: list[Record] | None = None
        self.reads = 0
        self.is_refused = False

    async def read(
        self, settings: LogSettings, topic: str, *, first_offset: int, leaders: Any
    ) -> AsyncGenerator[list[Record], None]:
        self.reads += 1
        if self.is_refused:
            raise TopicRefusedError(topic)
        if self.records is None:
            raise LogGoneError(topic)
        yield self.records[first_offset:]

    def add(self, key: bytes, value: bytes) -> None:
        self.records = self.records or []
        self.records.append(Record(len(self.records), 0, key, (), value))

    def require(self, offset: int) -> None:
        begin = Begin(partition=AT.partition, offset=offset)
        self.add(CATALOG + b"3", begin.model_dump_json().encode())

    def delete(self, life: Life) -> None:
        deletion = Deletion(run_id=life.run_id, log_id=life.log_id)
        self.add(DELETED + life.run_id.encode(), deletion.model_dump_json().encode())


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    topic = Topic()
    monkeypatch.setattr(module, "read", topic.read)
    return topic


def logged(offset: int, value: bytes | None, key: bytes = life_key("r")) -> Record:
    return Record(offset, 0, key, (), value)


async def deleted_in(verdicts: Verdicts, *records: Record) -> list[bool]:
    """For each record whether it says that its run is deleted, after it was settled."""
    settled = await verdicts.settle(records, AT)
    assert [(record.offset, record.key) for record in settled] == [
        (each.offset, each.key) for each in records
    ]
    return [isinstance(entry := entry_of(each.key, each.value), Life) and entry.deleted for each in settled]


def claim(offset: int, life: Life = LIFE) -> Record:
    return logged(offset, life_record(life).value)


async def test_claims_count_as_long_as_nobody_requires_verdicts(topic: Topic):
    verdicts = Verdicts(LogSettings())
    assert await deleted_in(verdicts, claim(0), claim(7)) == [True, True]
    topic.delete(LIFE)
    assert await deleted_in(Verdicts(LogSettings()), claim(9)) == [True]


async def test_a_claim_needs_a_verdict_from_an_offset_on(topic: Topic):
    topic.require(5)
    verdicts = Verdicts(LogSettings())
    assert await deleted_in(verdicts, claim(4), claim(5)) == [True, False]
    topic.delete(LIFE.model_copy(update={"log_id": "2"}))
    topic.delete(LIFE.model_copy(update={"run_id": "s"}))
    assert await deleted_in(verdicts, claim(6)) == [False]
    topic.delete(LIFE)
    assert await deleted_in(verdicts, claim(5), claim(7)) == [True, True]


async def test_a_verdict_about_another_log_of_the_run_replaces_none(topic: Topic):
    class Broker:
        async def create_compacted_topic(self, *_: object) -> None: ...

        async def send(self, _: str, record: Outgoing) -> None:
            topic.add(record.key or b"", record.value or b"")

        async def wait(self, _: object) -> None: ...

    topic.require(0)
    broker: Any = Broker()
    log = VerdictLog(LogSettings(), Verdicts(LogSettings()), admin=broker, publisher=broker, leaders=broker)
    await log.delete([LIFE, LIFE.model_copy(update={"log_id": "2"})])
    kept = {record.key: record for record in topic.records or []}
    topic.records = [record for record in topic.records or [] if kept[record.key] is record]

    assert await deleted_in(Verdicts(LogSettings()), claim(9)) == [True]


async def test_a_verdict_of_another_partition_requires_nothing_here(topic: Topic):
    topic.require(5)
    verdicts = Verdicts(LogSettings())
    settled = await verdicts.settle([claim(9)], Partition(AT.topic, 4))
    assert settled == [claim(9)]


async def test_a_catalog_that_was_made_anew_needs_verdicts_from_its_beginning(topic: Topic):
    verdicts = Verdicts(LogSettings())
    topic.require(offset=10)
    await verdicts.read()

    other = Partition(AT.topic, 1)
    assert verdicts.new_begins({AT: 10}) == []
    assert verdicts.new_begins({AT: 9, other: 4}) == [
        Begin(partition=AT.partition, offset=0),
        Begin(partition=other.partition, offset=4),
    ]


async def test_a_claim_that_does_not_count_is_a_life_that_is_not_deleted(topic: Topic):
    topic.require(0)
    (settled,) = await Verdicts(LogSettings()).settle([claim(0)], AT)
    assert entry_of(settled.key, settled.value) == LIFE.model_copy(update={"deleted": False})


@pytest.mark.parametrize(
    "value",
    [
        b'{"run_id":"r","log_id":"1","agent_id":"a","deleted":true}',
        b'{"run_id":"r","log_id":"1","agent_id":"a","deleted":true,"x":{"deleted":false}}',
        b'{"run_id":"r","log_id":"1","agent_id":"a","deleted":true,"x\\",\\"deleted":false}',
        b'{"run_id":"r","log_id":"1","agent_id":"a","deleted": 1}',
        b'{"run_id":"r","log_id":"1","agent_id":"a","deleted":"yes"}',
        b'{"run_id":"r","log_id":"1","agent_id":"a","\\u0064eleted":true}',
        b'{"run_id":"r","log_id":"1","agent_id":"a","deleted":false,"deleted":true}',
        b'{"run_id":"r","log_id":"1","agent_id":"a","deleted":false,"\\u0064eleted":true}',
    ],
)
async def test_no_form_of_a_claim_is_overlooked(topic: Topic, value: bytes):
    life = entry_of(life_key("r"), value)
    assert isinstance(life, Life)
    assert life.deleted
    assert await deleted_in(Verdicts(LogSettings()), logged(0, value)) == [True]
    topic.require(0)
    assert await deleted_in(Verdicts(LogSettings()), logged(0, value)) == [False]


@pytest.mark.parametrize(
    "value",
    [
        b'{"run_id":"r","log_id":"1","agent_id":"a","deleted":true,"deleted":false}',
        b'{"run_id":"r","log_id":"1","agent_id":"a","\\u0064eleted":true,"deleted":false}',
    ],
)
async def test_the_last_word_of_a_life_counts(topic: Topic, value: bytes):
    life = entry_of(life_key("r"), value)
    assert isinstance(life, Life)
    assert not life.deleted
    assert await deleted_in(Verdicts(LogSettings()), logged(0, value)) == [False]


async def test_lives_that_claim_nothing_are_not_looked_at(topic: Topic):
    topic.require(0)
    alive = Life(run_id="r", log_id="1", agent_id="deleted", ended=True)
    records = [claim(0, alive), logged(1, None), logged(2, b"garbage"), logged(3, None, key=b"bell:r")]
    assert await Verdicts(LogSettings()).settle(records, AT) is records
    assert topic.reads == 0


async def test_verdicts_are_read_again_only_for_a_claim_without_one(topic: Topic):
    topic.require(0)
    topic.delete(LIFE)
    verdicts = Verdicts(LogSettings())
    for offset in range(5):
        assert await deleted_in(verdicts, claim(offset)) == [True]
    assert topic.reads == 1
    assert await deleted_in(verdicts, claim(9, LIFE.model_copy(update={"log_id": "2"}))) == [False]
    assert topic.reads == 2


async def test_verdicts_that_cannot_be_read_any_more_decide_nothing(topic: Topic):
    topic.require(0)
    verdicts = Verdicts(LogSettings())
    assert await deleted_in(verdicts, claim(0)) == [False]
    topic.records = None
    with pytest.raises(UnavailableError):
        await verdicts.settle([claim(1)], AT)


async def test_a_login_that_may_not_read_verdicts_believes_the_catalog(topic: Topic):
    """Its rights are from before there were verdicts. It deletes nothing."""
    topic.require(0)
    topic.is_refused = True
    assert await deleted_in(Verdicts(LogSettings()), claim(0)) == [True]


async def test_a_verdict_that_cannot_be_decoded_changes_nothing(topic: Topic):
    topic.require(5)
    topic.add(CATALOG + b"3", b"{}")
    topic.add(DELETED + b"r", b"\xff")
    topic.add(b"other", b"1")
    assert await deleted_in(Verdicts(LogSettings()), claim(4), claim(5)) == [True, False]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5_000), st.integers(-(2**63), 2**63 - 1))
def test_hashes_are_a_set(added: Sequence[int], other: int):
    hashes = _Hashes()
    for number in added:
        hashes.add(number)
    assert all(number in hashes for number in added)
    assert (other in hashes) == (other in added)
