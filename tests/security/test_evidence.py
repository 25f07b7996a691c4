"""Signed heads of logs: what was changed since in Kafka or MongoDB is found and named, and a proof
is checked by a program without Runfold.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.commands import command
from tests.documentation import ROOT
from tests.evidence import (
    changed_at,
    faults_of,
    inserted_at,
    new_keys,
    records_of,
    removed_at,
    report_of,
    rewrite_log,
    rewrite_pages,
    signer,
    swapped_at,
)
from tests.processes import Projections, projections, projector, reaches, until, working
from tests.servers import OwnSettings
from tests.tails import delete_topics

from runfold import Memory, Run, Runfold, UserMessage
from runfold.evidence.keys import add_key, read_keys
from runfold.log.shared import deciding
from runfold.projector.signing import HeadSigner
from runfold.secret_urls import SecretUrl
from runfold.settings import Settings
from runfold_schemas.memories import memory_key
from runfold_schemas.topics import Partition

EVENTS = 20
"""The number of records of a run: the opening, and messages."""


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    name, keys = f"t{uuid4().hex[:8]}", new_keys(tmp_path_factory.mktemp("keys"))
    return Settings(kafka=kafka, mongo=mongo, prefix=name, database=name, partitions=2, signing_keys=keys)


@pytest.fixture(scope="module")
async def stored(settings: Settings) -> AsyncIterator[Projections]:
    """A worker in this process, and what it stores. It signs nothing."""
    async with projections(settings) as stored, working(settings, stored.edition):
        yield stored


@pytest.fixture(scope="module")
async def signing(settings: Settings, stored: Projections) -> AsyncIterator[HeadSigner]:
    async with signer(settings, stored) as signing:
        yield signing


async def signed_run(runfold: Runfold, stored: Projections, signing: HeadSigner) -> Run:
    """A run whose head was signed at offsets 10 and 20."""
    run = await runfold.open_run(agent_id="desk")
    for begin, end in ((1, EVENTS // 2), (EVENTS // 2, EVENTS)):
        await run.publish_batch([UserMessage(message=f"message {uuid4()}") for _ in range(begin, end)])
        await until(lambda end=end: reaches(stored, run, end - 1), what="the state")
        await signing.sign_new()
    return run


def log_of(runfold: Runfold, run: Run) -> Partition:
    return Partition(runfold.connection.topics.run(run.run_id, run.life.log_id), 0)


MUTATIONS = {
    "changed": (changed_at(12), {"changed record": "offset 12"}),
    "removed": (removed_at(12), {"removed record": "offset 12", "moved record": "offsets 12 to 18"}),
    "inserted": (inserted_at(12), {"inserted record": "offset 12", "moved record": "offsets 13 to 19"}),
    "moved": (swapped_at(3, 12), {"moved record": "offset 3", "moved record ": "offset 12"}),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
async def test_a_mutation_in_kafka_is_found_and_named(
    settings: Settings, runfold: Runfold, stored: Projections, signing: HeadSigner, mutation: str
):
    mutate, expected = MUTATIONS[mutation]
    run = await signed_run(runfold, stored, signing)
    assert await faults_of(settings, stored, run.run_id) == []

    await rewrite_log(settings, log_of(runfold, run), mutate)

    found = await faults_of(settings, stored, run.run_id)
    wanted = [(kind.strip(), f"Kafka: {offsets}") for kind, offsets in expected.items()]
    assert [fault for fault in found if fault[0] != "changed time"] == wanted


@pytest.mark.parametrize("mutation", ["changed", "moved"])
async def test_a_mutation_in_mongodb_is_found_and_named(
    settings: Settings, runfold: Runfold, stored: Projections, signing: HeadSigner, mutation: str
):
    mutate, expected = MUTATIONS[mutation]
    run = await signed_run(runfold, stored, signing)

    await rewrite_pages(stored, run.life.log_id, mutate)

    found = await faults_of(settings, stored, run.run_id)
    assert found == [(kind.strip(), f"MongoDB: {offsets}") for kind, offsets in expected.items()]


async def test_a_record_that_is_missing_in_mongodb_is_named(
    settings: Settings, runfold: Runfold, stored: Projections, signing: HeadSigner
):
    run = await signed_run(runfold, stored, signing)

    await rewrite_pages(stored, run.life.log_id, lambda log: [each for each in log if each.offset != 5])

    assert await faults_of(settings, stored, run.run_id) == [("removed record", "MongoDB: offset 5")]


async def test_the_same_change_in_kafka_and_mongodb_is_found(
    settings: Settings, runfold: Runfold, stored: Projections, signing: HeadSigner
):
    run = await signed_run(runfold, stored, signing)

    await rewrite_log(settings, log_of(runfold, run), changed_at(12))
    await rewrite_pages(stored, run.life.log_id, changed_at(12))

    (fault,) = await faults_of(settings, stored, run.run_id)
    assert fault[0] == "changed records"
    assert "offsets 10 to 19 are not those that were signed, in Kafka and in MongoDB" in fault[1]


async def test_a_state_of_an_earlier_version_is_signed_by_its_pages(
    settings: Settings, runfold: Runfold, stored: Projections, signing: HeadSigner
):
    run = await signed_run(runfold, stored, signing)
    runs = stored.database[f"runs.{stored.edition}"]
    await runs.update_one({"_id": run.run_id}, {"$unset": {"chain": "", "signed": ""}})
    before = await report_of(settings, stored, run.run_id)

    await signing.sign_new()

    after = await report_of(settings, stored, run.run_id)
    assert (after.faults, after.trees) == ([], before.trees + 1)
    assert (await runs.find_one({"_id": run.run_id}))["signed"] == EVENTS


async def test_nothing_is_signed_twice_without_a_new_record(
    settings: Settings, runfold: Runfold, stored: Projections, signing: HeadSigner
):
    await signed_run(runfold, stored, signing)
    before = await report_of(settings, stored)

    await signing.sign_new()

    assert (await report_of(settings, stored)).trees == before.trees


async def test_a_forged_tree_is_named(own_settings: OwnSettings, tmp_path: Path):
    """A stranger signs heads, and the signer goes on behind that."""
    settings = own_settings(partitions=2, signing_keys=new_keys(tmp_path))
    (tmp_path / "strange").mkdir()
    strange = settings.model_copy(update={"signing_keys": new_keys(tmp_path / "strange")})
    async with Runfold.of(settings.log()) as runfold, projections(settings) as stored:
        async with (
            working(settings, stored.edition),
            signer(settings, stored) as signing,
            signer(strange, stored) as stranger,
        ):
            await signed_run(runfold, stored, signing)
            await signed_run(runfold, stored, stranger)
            await signed_run(runfold, stored, signing)

        faults = await faults_of(settings, stored)

    assert [kind for kind, _ in faults] == ["forged tree"] * 2
    assert all("is not trusted" in detail for _, detail in faults)


async def test_a_changed_memory_is_found(own_settings: OwnSettings, tmp_path: Path):
    settings = own_settings(partitions=2, signing_keys=new_keys(tmp_path))
    async with Runfold.of(settings.log()) as runfold, projections(settings) as stored:
        async with working(settings, stored.edition), signer(settings, stored) as signing:
            await runfold.memories.create_bank("desk")
            memory = await runfold.memories.create("desk", Memory(fact="Likes tea", scope={"user": "ann"}))
            await signing.sign_new()
        assert (await report_of(settings, stored)).faults == []
        report = await report_of(settings, stored)
        assert report.logs == 2  # a partition with the bank, and one with the memory
        at = deciding(runfold.connection.topics, memory_key("desk", memory.memory_id))

        await rewrite_log(settings, at, changed_at(0))

        (fault,) = (await report_of(settings, stored)).faults
        assert (fault.kind, fault.where) == ("changed records", f"{at.topic}, partition {at.partition}")


async def test_a_removed_tree_is_noticed_by_the_next_one(own_settings: OwnSettings, tmp_path: Path):
    settings = own_settings(partitions=2, signing_keys=new_keys(tmp_path))
    async with Runfold.of(settings.log()) as runfold, projections(settings) as stored:
        async with working(settings, stored.edition), signer(settings, stored) as signing:
            await signed_run(runfold, stored, signing)
            await signed_run(runfold, stored, signing)
        assert (await report_of(settings, stored)).faults == []

        await rewrite_log(settings, Partition(f"{settings.prefix}.evidence", 0), removed_at(1))

        faults = (await report_of(settings, stored)).faults
        assert {fault.kind for fault in faults} == {"changed trees"}
        assert "offset 1" in faults[0].where


async def test_the_bucket_shows_that_the_last_trees_were_removed(own_settings: OwnSettings, tmp_path: Path):
    folder = tmp_path / "bucket"
    bucket = SecretUrl(folder.as_uri())
    settings = own_settings(partitions=2, signing_keys=new_keys(tmp_path), evidence_bucket=bucket)
    evidence = Partition(f"{settings.prefix}.evidence", 0)
    async with Runfold.of(settings.log()) as runfold, projections(settings) as stored:
        async with working(settings, stored.edition), signer(settings, stored) as signing:
            run = await signed_run(runfold, stored, signing)
        async with signer(settings, stored) as signing:  # a restart copies nothing twice
            await signing.sign_new()
        copies = {path.name: path.read_bytes() for path in folder.rglob("*.json")}
        assert list(copies.values()) == [record.value for record in await records_of(settings, evidence)]
        assert await faults_of(settings, stored) == []

        await rewrite_log(settings, evidence, lambda log: log[:-1])
        await rewrite_log(settings, log_of(runfold, run), lambda log: log[:-1])

        kinds = [kind for kind, _ in await faults_of(settings, stored)]
        assert kinds == ["changed trees"]


async def test_the_log_of_a_deleted_session_is_no_fault(
    settings: Settings, runfold: Runfold, stored: Projections, signing: HeadSigner
):
    session = await runfold.sessions.create(app="desk", user="ann")
    await runfold.sessions.append(session.session_id, UserMessage(message="Hello"))
    (life,) = [life async for life in runfold.session_runs(session.session_id)]
    run_id = life.run_id

    async def is_folded() -> bool:
        state = await stored.runs.get(run_id)
        return state is not None and state.record.next_offset > 1

    await until(is_folded, what="the state")
    await signing.sign_new()
    assert (await report_of(settings, stored, run_id)).logs == 1

    await runfold.sessions.delete(session.session_id)

    async def is_gone() -> bool:
        return (await report_of(settings, stored, run_id)).deleted == 1

    await until(is_gone, what="the deletion of the log")
    report = await report_of(settings, stored, run_id)
    assert ([each.run_id for each in report.deletions], report.faults) == ([run_id], [])


async def test_a_log_that_only_mongodb_calls_deleted_is_missing(
    settings: Settings, runfold: Runfold, stored: Projections, signing: HeadSigner
):
    run = await signed_run(runfold, stored, signing)
    runs = stored.database[f"runs.{stored.edition}"]
    await runs.update_one({"_id": run.run_id}, {"$set": {"deleted": True}})

    await delete_topics(settings.kafka, log_of(runfold, run).topic)

    async def is_gone() -> bool:
        return (await report_of(settings, stored, run.run_id)).logs == 0

    await until(is_gone, what="the deletion of the log")
    report = await report_of(settings, stored, run.run_id)
    assert [fault.kind for fault in report.faults] == ["missing log"]
    assert report.deletions == []


async def test_a_run_that_was_never_signed_is_named(
    settings: Settings, runfold: Runfold, stored: Projections, signing: HeadSigner
):
    await signed_run(runfold, stored, signing)

    assert await faults_of(settings, stored, "r-typo") == [("unsigned log", "no head of this run was signed")]


async def test_a_run_that_mongodb_keeps_from_being_signed_is_named(
    settings: Settings, runfold: Runfold, stored: Projections, signing: HeadSigner
):
    signed = await signed_run(runfold, stored, signing)
    run = await runfold.open_run(agent_id="desk")
    await until(lambda: reaches(stored, run, 0), what="the state")
    runs = stored.database[f"runs.{stored.edition}"]
    await runs.update_one({"_id": run.run_id}, {"$set": {"without_log": True}})
    await signing.sign_new()

    report = await report_of(settings, stored, unsigned_seconds=0)

    named = [fault.where for fault in report.faults if fault.kind == "unsigned log"]
    assert f"run {run.run_id}" in named
    assert f"run {signed.run_id}" not in named


async def test_records_behind_the_last_head_are_counted(
    settings: Settings, runfold: Runfold, stored: Projections, signing: HeadSigner
):
    run = await signed_run(runfold, stored, signing)
    await run.publish(UserMessage(message="later"))

    report = await report_of(settings, stored, run.run_id)

    assert (report.faults, report.unsigned) == ([], 1)


async def test_a_service_signs_and_a_stranger_checks_the_proof(own_settings: OwnSettings, tmp_path: Path):
    settings = own_settings(partitions=2, signing_keys=new_keys(tmp_path), signing_seconds=0.3)
    assert settings.signing_keys is not None
    keys = settings.signing_keys
    service = projector(settings, tmp_path / "projector.log")
    await service.start()
    async with Runfold.of(settings.log()) as runfold:
        run = await runfold.open_run(agent_id="desk")
        await run.publish_batch([UserMessage(message=f"message {number}") for number in range(40)])

        async def is_proved() -> bool:
            return (await command(settings, "proof", run.run_id, "7"))[0] == 0

        await until(is_proved, seconds=240, what="a signed head")
        _, printed = await command(settings, "proof", run.run_id, "7")
    await service.stop()
    code, output = await command(settings, "verify", "--chain")
    assert (code, ": 0 differences" in output) == (0, True)
    code, output = await command(settings, "verify", "--chain", "r-typo")
    assert (code, "no head of this run was signed" in output) == (1, True)
    (public,) = read_keys(keys).trusted
    proof = json.loads(printed)

    code, output = await checked(proof, public, tmp_path)

    assert (code, output.splitlines()[0].startswith("PROVED: offset 7 of ")) == (0, True)
    assert '"message 6"' in output
    for field, value in proof.items():
        for mutated in mutations_of(value):
            code, output = await checked(proof | {field: mutated}, public, tmp_path)
            assert (code, output.startswith("NOT PROVED")) == (1, field != "format"), (field, mutated)
    other = add_key(keys)
    assert (await checked(proof, other, tmp_path))[0] == 1
    # After a rotation, the trees before still count.
    assert (await command(settings, "verify", "--chain"))[0] == 0
    assert (await command(settings, "evidence", "keys"))[1].split() == [other, public]


def mutations_of(value: object) -> list[object]:
    match value:
        case str() if value.startswith("runfold-"):
            return []
        case str():
            return [value[:-1] + ("0" if value[-1] != "0" else "1"), value[2:], value + "00"]
        case int():
            return [value + 1, -1]
        case list():
            return [[*value, "00" * 32], value[1:]] if value else [["00" * 32]]
        case _:
            raise AssertionError(value)


async def checked(proof: dict[str, object], public: str, folder: Path) -> tuple[int, str]:
    """What the program says that needs no Runfold: it runs without any installed package."""
    path = folder / "proof.json"
    path.write_text(json.dumps(proof))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        str(ROOT / "docs" / "check_proof.py"),
        str(path),
        public,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode()
