"""The rotation of a tenant's key: services go on, destroyed keys stay destroyed, and old backups
open nothing without the operator's old key.
"""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.commands import command
from tests.processes import until

from runfold import Run, Runfold
from runfold.encryption.cipher import new_key
from runfold.encryption.key_ring import KeyRing, TenantKey, keys_topic, tenant_record
from runfold.encryption.keys import SubjectKeys
from runfold.encryption.rotation import Report, _Rotation, rotate
from runfold.encryption.wrapping import wrapping_of
from runfold.log.compacted import append, read_all
from runfold.log.publisher import Publisher
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold.settings import Settings
from runfold.tenants.administration import TenantAdministration
from runfold_schemas.codec import Record
from runfold_schemas.errors import ConfigurationError
from runfold_schemas.events import UserMessage


def new_line() -> str:
    return b64encode(new_key()).decode() + "\n"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(new_line())
    return path


@pytest.fixture
def settings(kafka: str, key_file: Path) -> LogSettings:
    name = f"t{uuid4().hex[:8]}"
    names = {"prefix": name, "database": name}
    return Settings(kafka=kafka, partitions=2, encryption_key=f"file:{key_file}", **names).log()


@pytest.fixture
async def publisher(settings: LogSettings) -> AsyncIterator[Publisher]:
    async with Publisher.connect(settings) as publisher:
        yield publisher


async def rotated(settings: LogSettings, publisher: Publisher, pause_seconds: float = 1.0) -> int | None:
    assert settings.encryption_key is not None
    return await rotate(
        settings,
        wrapping_of(settings.encryption_key),
        publisher,
        report=lambda done, total: None,
        pause_seconds=pause_seconds,
    )


async def messages(run: Run) -> list[str]:
    events = [event.data async for event in run.events()]
    return [event.message or "" for event in events if isinstance(event, UserMessage)]


async def read_anew(settings: LogSettings, run: Run) -> list[str]:
    """The messages as a process shows them that starts now."""
    async with Runfold.of(settings) as runfold:
        return await messages(await runfold.get_run(run.run_id))


async def ring_of(settings: LogSettings) -> KeyRing:
    return (await read_all(settings, keys_topic(settings.topics)))[0]


async def stored_keys(settings: LogSettings) -> list[Record]:
    return [record async for records in read(settings, settings.topics.keys) for record in records]


async def test_services_go_on_and_the_operators_old_key_is_not_needed_any_more(
    settings: LogSettings, publisher: Publisher, key_file: Path
):
    async with Runfold.of(settings) as runfold:
        runs = [await runfold.open_run(agent_id="desk") for _ in range(3)]
        for run in runs:
            await run.publish(UserMessage(message="before"))
        [old_key] = (await ring_of(settings)).tenant_keys.values()
        key_file.write_text(new_line() + key_file.read_text())
        rotation = asyncio.create_task(rotated(settings, publisher))
        count = 0
        while not rotation.done():
            await runs[0].publish(UserMessage(message=f"meanwhile {count}"))
            assert (await messages(runs[0]))[-1] == f"meanwhile {count}"
            count += 1
        assert await rotation == 3
        assert count > 1
        key_file.write_text(key_file.read_text().splitlines()[0])
        await runs[1].publish(UserMessage(message="after"))
        assert await messages(runs[1]) == ["before", "after"]

    assert await read_anew(settings, runs[0]) == ["before", *(f"meanwhile {n}" for n in range(count))]
    assert await read_anew(settings, runs[1]) == ["before", "after"]
    ring = await ring_of(settings)
    assert old_key.key_id not in ring.tenant_keys
    assert len(ring.key_ids) == 3
    assert {key.tenant_key for id_ in ring.key_ids for key in ring.wraps(id_)} == set(ring.tenant_keys)
    with pytest.raises(ConfigurationError):
        await wrapping_of(f"file:{key_file}").unwrap(old_key.wrapped)


async def test_a_rotation_removes_a_forged_key_of_the_tenant(settings: LogSettings, publisher: Publisher):
    async with Runfold.of(settings) as runfold:
        run = await runfold.open_run(agent_id="desk")
        await run.publish(UserMessage(message="before"))
        forged = TenantKey(key_id="f" * 22, wrapped=b"x" * 92, generation=99)
        name, value = tenant_record(forged.key_id), forged.model_dump_json().encode()
        await append(publisher, keys_topic(settings.topics), name, value)
        other = await runfold.open_run(agent_id="desk")
        await other.publish(UserMessage(message="other"))

        assert await rotated(settings, publisher) == 2

        await run.publish(UserMessage(message="after"))
    assert await read_anew(settings, run) == ["before", "after"]
    assert await read_anew(settings, other) == ["other"]
    assert [key.generation for key in (await ring_of(settings)).tenant_keys.values()] == [100]


async def test_a_rotation_that_broke_off_is_repeated(settings: LogSettings, publisher: Publisher):
    async with Runfold.of(settings) as runfold:
        run, gone = [await runfold.open_run(agent_id="desk") for _ in range(2)]
        for each in (run, gone):
            await each.publish(UserMessage(message="m"))
        broken = asyncio.create_task(rotated(settings, publisher, pause_seconds=60))

        async def is_wrapped() -> bool:
            ring = await ring_of(settings)
            return all(len(ring.wraps(key_id)) == 2 for key_id in ring.key_ids)

        await until(is_wrapped, what="the first half of the rotation")
        broken.cancel()
        assert await read_anew(settings, run) == ["m"]
        assert runfold.connection.sealing is not None
        assert await runfold.connection.sealing.keys.destroy(f"run:{gone.run_id}") == 1

        assert await rotated(settings, publisher) == 1

        await run.publish(UserMessage(message="after"))
    ring = await ring_of(settings)
    assert len(ring.tenant_keys) == 1
    assert [len(ring.wraps(key_id)) for key_id in ring.key_ids] == [1]
    assert await read_anew(settings, run) == ["m", "after"]
    assert await read_anew(settings, gone) == ["[erased]"]


async def test_a_key_that_is_wrapped_while_it_is_destroyed_stays_destroyed(
    settings: LogSettings, publisher: Publisher
):
    async with Runfold.of(settings) as runfold:
        run = await runfold.open_run(agent_id="desk")
        await run.publish(UserMessage(message="m"))
        [late] = [record for record in await stored_keys(settings) if (record.key or b"")[:8] == b"subject:"]
        assert runfold.connection.sealing is not None
        assert await runfold.connection.sealing.keys.destroy(f"run:{run.run_id}") == 1
        assert late.key is not None
        await append(publisher, keys_topic(settings.topics), late.key, late.value)
        assert await messages(run) == ["[erased]"]

    assert await read_anew(settings, run) == ["[erased]"]
    assert (await ring_of(settings)).leftovers() == [late.key]
    await rotated(settings, publisher)
    assert (await ring_of(settings)).leftovers() == []


async def test_a_key_that_is_made_during_a_rotation_is_not_lost(
    settings: LogSettings, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
):
    appends: Any = SubjectKeys._append
    rotations = []

    async def late(keys: SubjectKeys, name: bytes, value: Any) -> int:
        if name.startswith(b"subject:") and not rotations:
            rotations.append(await rotated(settings, publisher, pause_seconds=0))
        return int(await appends(keys, name, value))

    async with Runfold.of(settings) as runfold:
        first = await runfold.open_run(agent_id="desk")
        await first.publish(UserMessage(message="first"))
        monkeypatch.setattr(SubjectKeys, "_append", late)
        run = await runfold.open_run(agent_id="desk")
        await run.publish(UserMessage(message="m"))

    assert rotations == [1]
    assert await read_anew(settings, run) == ["m"]
    assert await read_anew(settings, first) == ["first"]


async def test_of_two_rotations_one_ends(
    settings: LogSettings, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
):
    wrap_all, may_go_on = _Rotation.wrap_all, asyncio.Event()
    rotations: list[_Rotation] = []

    async def wrap_all_and_wait(rotation: _Rotation, report: Report) -> KeyRing:
        ring = await wrap_all(rotation, report)
        rotations.append(rotation)
        if rotation is rotations[0]:
            await may_go_on.wait()
        return ring

    async def has_wrapped() -> bool:
        return bool(rotations)

    async with Runfold.of(settings) as runfold:
        run = await runfold.open_run(agent_id="desk")
        await run.publish(UserMessage(message="m"))
    monkeypatch.setattr(_Rotation, "wrap_all", wrap_all_and_wait)
    first = asyncio.create_task(rotated(settings, publisher, pause_seconds=0))

    await until(has_wrapped, what="the first rotation")
    assert await rotated(settings, publisher, pause_seconds=0) == 1
    may_go_on.set()
    with pytest.raises(ConfigurationError, match="another rotation"):
        await first
    assert len((await ring_of(settings)).tenant_keys) == 1
    assert await read_anew(settings, run) == ["m"]


async def test_the_command_rotates_the_keys_of_all_tenants(
    settings: LogSettings, publisher: Publisher, key_file: Path
):
    installation = Settings(
        kafka=settings.kafka, prefix=settings.prefix, database="unused", encryption_key=f"file:{key_file}"
    )
    name = f"t{uuid4().hex[:8]}"
    await TenantAdministration(installation, publisher).add(name, database=None, partitions=1)
    tenant = installation.of_tenant(name, database=name, partitions=1).log()
    runs, before = [], set[str]()
    for each in (settings, tenant):
        async with Runfold.of(each) as runfold:
            runs.append(await runfold.open_run(agent_id="desk"))
            await runs[-1].publish(UserMessage(message="m"))
        before |= (await ring_of(each)).tenant_keys.keys()

    code, shown = await command(installation, "encryption", "rotate")

    assert code == 0, shown
    assert "remove the operator's old key" in " ".join(shown.split())
    for each, run in zip((settings, tenant), runs, strict=True):
        assert len((await ring_of(each)).tenant_keys) == 1
        assert before.isdisjoint((await ring_of(each)).tenant_keys)
        assert await read_anew(each, run) == ["m"]
