"""Keys of subjects in several processes, and records of the topic of keys that should not be."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.sealing import KeysTopic, process_of

from runfold.encryption.cipher import new_key
from runfold.encryption.key_file import KeyFile
from runfold.encryption.key_ring import KeyRing, TenantKey, subject_record, tenant_record
from runfold.encryption.keys import SubjectKeys
from runfold_schemas.errors import ConfigurationError


@pytest.fixture
def topic() -> KeysTopic:
    return KeysTopic()


@pytest.fixture
def process(topic: KeysTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], SubjectKeys]:
    return process_of(topic, tmp_path / "key", monkeypatch)


async def test_a_key_that_another_process_destroyed_is_made_anew(process: Callable[[], SubjectKeys]) -> None:
    first, second = process(), process()
    before = await first.of("user:alice")
    await second.of("user:bob")
    assert await second.destroy("user:alice") == 1

    after = await first.of("user:alice")

    assert after.key_id != before.key_id
    assert (await second.of("user:alice")).key_id == after.key_id


async def test_a_key_that_cannot_be_unwrapped_is_passed_over(
    process: Callable[[], SubjectKeys], topic: KeysTopic
) -> None:
    first = process()
    key = await first.of("user:alice")
    [wrap] = topic.state.wraps(key.key_id)
    name = subject_record(key.key_id, wrap.tenant_key)
    stored = wrap.model_copy(update={"wrapped": b"x" * 60})
    await topic.append(None, None, name, stored.model_dump_json().encode())

    assert (await process().of("user:alice")).key_id != key.key_id


@pytest.fixture
def forged(topic: KeysTopic) -> Callable[..., Awaitable[None]]:
    """Writes a key of the tenant that the operator's key does not unwrap."""

    async def forge(key_id: str = "f" * 22, *, generation: int = 99) -> None:
        key = TenantKey(key_id=key_id, wrapped=b"x" * 92, generation=generation)
        await topic.append(None, None, tenant_record(key_id), key.model_dump_json().encode())

    return forge


async def test_a_forged_key_of_the_tenant_is_passed_over(
    process: Callable[[], SubjectKeys], forged: Callable[..., Awaitable[None]], topic: KeysTopic
) -> None:
    first = process()
    alice = await first.of("user:alice")
    await forged()

    for keys in (first, process()):
        assert (await keys.of("user:alice")).key_id == alice.key_id
        assert (await keys.of("user:bob")).key_id != alice.key_id
        assert keys.cipher(alice.key_id) is not None
        assert await keys.destroy("user:bob") == 1
    [wrap] = topic.state.wraps(alice.key_id)
    assert wrap.tenant_key in topic.state.tenant_keys


async def test_a_key_that_a_forged_one_wraps_is_passed_over(
    process: Callable[[], SubjectKeys], forged: Callable[..., Awaitable[None]], topic: KeysTopic
) -> None:
    keys = process()
    alice = await keys.of("user:alice")
    [wrap] = topic.state.wraps(alice.key_id)
    await forged()
    await keys.destroy("user:alice")
    planted = wrap.model_copy(update={"key_id": "p" * 22, "tenant_key": "f" * 22})
    name = subject_record(planted.key_id, planted.tenant_key)
    await topic.append(None, None, name, planted.model_dump_json().encode())

    assert (await keys.of("user:alice")).key_id not in (alice.key_id, planted.key_id)


async def test_a_key_of_the_tenant_with_other_names_wraps_nothing(
    process: Callable[[], SubjectKeys], topic: KeysTopic, tmp_path: Path
) -> None:
    alice = await process().of("user:alice")
    wrapped = await KeyFile(str(tmp_path / "key")).wrap(new_key() + new_key())
    other = TenantKey(key_id="o" * 22, wrapped=wrapped, generation=99)
    await topic.append(None, None, tenant_record(other.key_id), other.model_dump_json().encode())

    assert (await process().of("user:alice")).key_id == alice.key_id


async def test_without_a_key_of_the_tenant_that_opens_none_is_made(
    process: Callable[[], SubjectKeys], forged: Callable[..., Awaitable[None]], topic: KeysTopic
) -> None:
    await forged()

    with pytest.raises(ConfigurationError):
        await process().of("user:alice")
    assert len(topic.state.tenant_keys) == 1


async def test_a_destroyed_key_does_not_come_back(
    process: Callable[[], SubjectKeys], topic: KeysTopic
) -> None:
    keys = process()
    key_id = (await keys.of("user:alice")).key_id
    [wrap] = topic.state.wraps(key_id)
    name = subject_record(key_id, wrap.tenant_key)
    await keys.destroy("user:alice")

    await topic.append(None, None, name, wrap.model_dump_json().encode())

    assert topic.state.wraps(key_id) == []


async def test_without_the_tenants_key_its_subjects_count_as_erased(
    process: Callable[[], SubjectKeys], topic: KeysTopic
) -> None:
    keys = process()
    key_id = (await keys.of("user:alice")).key_id
    epoch = keys.epoch
    [tenant] = topic.state.tenant_keys
    await topic.append(None, None, tenant_record(tenant), None)

    assert keys.cipher(key_id) is None
    assert keys.epoch != epoch


async def test_many_unknown_keys_cost_one_look(process: Callable[[], SubjectKeys], topic: KeysTopic) -> None:
    keys = process()
    await keys.of("user:alice")
    looks = topic.looks
    with await keys.all_read():
        assert [keys.cipher(f"{number:022d}") for number in range(1_000)] == [None] * 1_000
    assert [keys.cipher(f"{number:022d}") for number in range(1_000)] == [None] * 1_000
    assert topic.looks == looks + 1


def test_no_two_rings_of_a_process_have_one_epoch() -> None:
    numbers = set()
    for _ in range(100):
        numbers.add(KeyRing().number)
    assert len(numbers) == 100


async def test_the_epoch_of_a_new_ring_never_was_before(
    process: Callable[[], SubjectKeys], topic: KeysTopic
) -> None:
    keys = process()
    epochs = set()
    for _ in range(10):
        topic.state = KeyRing()
        epochs.add(keys.epoch)
    assert len(epochs) == 10
