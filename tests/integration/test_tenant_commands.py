"""`runfold tenants` on real servers: tenants that are added, listed, limited and dropped."""

import asyncio
import base64
import hashlib
import json
import time
from pathlib import Path
from uuid import uuid4

import pytest
from tests.commands import command
from tests.media import png
from tests.tails import create_topics, delete_topics

from runfold import ImagePart, Runfold, TextPart, UserMessage
from runfold.cli.tenants import drop
from runfold.identity.administration import KeyAdministration
from runfold.log.admin import LogAdmin
from runfold.log.publisher import Outgoing, Publisher
from runfold.log.reader import read
from runfold.log.verdicts import Begin
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.tenants import dropping
from runfold.tenants.dropping import drop_tenant
from runfold.tenants.registry import Tenant, mark_dropping, read_tenants, settings_of, tenant_topic
from runfold_schemas.codec import Record
from runfold_schemas.errors import ConfigurationError

PICTURE = png(bytes(4000))


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    name = f"t{uuid4().hex[:8]}"
    blobs = f"file://{tmp_path_factory.mktemp('blobs')}"
    return Settings(kafka=kafka, mongo=mongo, prefix=name, database=name, blobs=blobs, blob_bytes_min=1024)


@pytest.fixture
def name() -> str:
    return f"t{uuid4().hex[:8]}"


@pytest.fixture
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drop in this process does not wait for processes to leave the tenant."""
    monkeypatch.setattr(dropping, "LEAVE_SECONDS", 0.1)


async def run(settings: Settings, *arguments: str) -> str:
    code, output = await command(settings, "tenants", *arguments)
    assert code == 0, output
    return output


async def fails(settings: Settings, *arguments: str) -> str:
    code, output = await command(settings, "tenants", *arguments)
    assert code != 0, output
    return output


async def listed(settings: Settings) -> dict[str, dict[str, object]]:
    output = await run(settings, "list", "--json")
    lines = [json.loads(line) for line in output.splitlines()]
    assert lines[0]["name"] == settings.prefix
    return {line["name"]: line for line in lines}


async def tenant_of(settings: Settings, name: str) -> Tenant:
    tenant = (await read_tenants(settings)).active(name)
    assert tenant is not None
    return tenant


async def topics_of(settings: Settings, prefix: str) -> list[str]:
    async with LogAdmin.connect(settings.log()) as admin:
        return [topic for topic in await admin._client.list_topics() if topic.startswith(f"{prefix}.")]


async def test_an_installation_without_tenants_has_no_registry(settings):
    assert list(await listed(settings)) == [settings.prefix]
    assert f"{settings.prefix}.tenants" not in await topics_of(settings, settings.prefix)


async def test_a_tenant_has_topics_with_one_partition_and_is_added_once(settings, name):
    first = await run(settings, "add", name)
    tenant = await tenant_of(settings, name)
    again = await run(settings, "add", name)

    assert "1 partitions" in first
    assert again == first
    assert await tenant_of(settings, name) == tenant
    async with Runfold.of(settings_of(settings, tenant).log()) as runfold:
        assert runfold.connection.topics.partitions == 1
    assert (await listed(settings))[name] == {
        "name": name,
        "database": name,
        "partitions": 1,
        "open_runs": 0,
        "quotas": dict.fromkeys(
            ("requests_per_minute", "open_runs", "bytes_per_day", "model_tokens_per_day")
        ),
        "created_at": tenant.model_dump(mode="json")["created_at"],
        "dropping": False,
    }


async def test_a_tenant_has_the_partitions_and_the_database_of_its_creation(settings, name):
    await run(settings, "add", name, "--partitions", "3", "--database", f"{name}-data")

    tenant = await tenant_of(settings, name)
    assert (tenant.partitions, tenant.database) == (3, f"{name}-data")
    assert "never changes" in await fails(settings, "add", name, "--partitions", "4")
    assert "has the database" in await fails(settings, "add", name, "--database", "other")
    await run(settings, "add", name, "--partitions", "3")


async def test_an_installation_of_another_prefix_becomes_a_tenant(settings, name):
    async with (
        Runfold(settings.kafka, prefix=name, create_topics=True) as runfold,
        runfold.run(agent_id="a") as run_,
    ):
        await run_.publish(UserMessage(message="from before"))

    await run(settings, "add", name)

    tenant = await tenant_of(settings, name)
    assert tenant.partitions == 12
    async with Runfold.of(settings_of(settings, tenant).log()) as runfold:
        assert [event.type async for event in (await runfold.get_run(run_.run_id)).events()]


@pytest.mark.parametrize("arguments", [["follow", "r-1"], ["rebuild"], ["repair", "r-1"]])
async def test_a_command_with_a_mistyped_prefix_names_it_and_creates_no_topics(settings, name, arguments):
    mistyped = Settings(kafka=settings.kafka, mongo=settings.mongo, prefix=name)

    code, output = await command(mistyped, *arguments)

    assert code != 0
    assert f"runfold tenants add {name}" in output.replace("\n", " ")
    assert await topics_of(settings, name) == []


async def test_a_client_with_a_mistyped_prefix_creates_no_topics(settings, name):
    with pytest.raises(ConfigurationError, match=f"is the prefix '{name}' right"):
        async with Runfold(settings.kafka, prefix=name):
            raise AssertionError
    assert await topics_of(settings, name) == []

    await run(settings, "add", name)
    async with Runfold(settings.kafka, prefix=name) as runfold, runfold.run(agent_id="a") as run_:
        await run_.publish(UserMessage(message="hello"))


async def test_a_client_waits_for_the_topics_that_a_service_is_creating(settings, name):
    client = Runfold(settings.kafka, prefix=name)
    entering = asyncio.create_task(client.__aenter__())
    async with Runfold.of(settings.of_tenant(name, database=name, partitions=None).log()):
        await entering
    await client.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.b"], "prefix"),
        (["a" * 33], "prefix"),
        ([""], "prefix"),
        (["admin"], "itself"),
        (["fine", "--database", "a b"], "cannot name"),
        (["fine", "--partitions", "0"], "partitions"),
    ],
)
async def test_a_name_that_cannot_be_used_is_refused(settings, arguments, words):
    assert words in await fails(settings, "add", *arguments)
    assert "fine" not in await listed(settings)


async def test_two_tenants_never_share_a_database(settings, name):
    await run(settings, "add", name)

    assert "belongs to" in await fails(settings, "add", f"{name}-2", "--database", name)
    assert "belongs to" in await fails(settings, "add", name.upper())
    assert "belongs to" in await fails(settings, "add", f"{name}-2", "--database", settings.database)
    assert "installation itself" in await fails(settings, "add", settings.prefix)


async def test_quotas_are_set_and_lifted_one_by_one(settings, name):
    await run(settings, "add", name)

    await run(settings, "quota", name, "--requests-per-minute", "600", "--bytes-per-day", "2g")
    both = json.loads(await run(settings, "quota", name, "--json"))
    await run(settings, "quota", name, "--requests-per-minute", "none", "--open-runs", "0")
    rest = json.loads(await run(settings, "quota", name, "--json"))
    await run(settings, "quota", settings.prefix, "--model-tokens-per-day", "5k")

    unset = {"model_tokens_per_day": None}
    assert both == {"requests_per_minute": 600, "bytes_per_day": 2 * 1000**3, "open_runs": None} | unset
    assert rest == {"requests_per_minute": None, "bytes_per_day": 2 * 1000**3, "open_runs": 0} | unset
    assert (await listed(settings))[settings.prefix]["quotas"]["model_tokens_per_day"] == 5000
    assert "does not exist" in await fails(settings, "quota", "no-such-tenant")
    assert "is not a limit" in await fails(settings, "quota", name, "--open-runs", "many")
    assert (await tenant_of(settings, name)).created_at is not None


async def filled(settings: Settings, name: str) -> Settings:
    """A tenant with a topic, a blob, a record of another producer, a key and a database."""
    await run(settings, "add", name)
    own = settings_of(settings, await tenant_of(settings, name))
    async with Runfold.of(own.log()) as runfold, runfold.run(agent_id="a") as run_:
        picture = ImagePart(media_type="image/png", data=base64.b64encode(PICTURE).decode())
        await run_.publish(UserMessage(message="Look", parts=(TextPart(text="Look"), picture)))
        publisher = runfold.connection.publisher
        foreign = Outgoing(key=b"k", value=b"{}", headers=[("absent", None), ("empty", b"")])
        await publisher.wait(await publisher.send(f"{name}.dead-letters", foreign, partition=0))
    async with connect(own.mongo, own.database) as database:
        await database["runs.x"].insert_one({"_id": "r"})
    code, _ = await command(settings, "keys", "add", "theirs", "--tenant", name)
    assert code == 0
    return own


async def left_of(own: Settings) -> set[str]:
    left = set(await topics_of(own, own.prefix))
    async with connect(own.mongo, own.database) as database:
        left.update(await database.list_collection_names())
    blobs = Path(own.blobs.get_secret_value().removeprefix("file://"))
    left.update(str(path) for path in blobs.rglob(f"{own.prefix}/**/*") if path.is_file())
    return left


async def test_a_tenant_that_is_dropped_leaves_nothing_and_its_name_is_free(settings, name):
    own = await filled(settings, name)
    other = await filled(settings, f"{name}-2")
    foreign = f"{name}.orders"
    await create_topics(settings.kafka, [foreign])
    before = await left_of(other)
    assert len(await left_of(own)) > 5

    output = await run(settings, "drop", name, "--yes")

    assert "1 keys" in output
    assert await left_of(own) == {foreign}
    assert await left_of(other) == before
    assert name not in await listed(settings)
    assert "does not exist" in await fails(settings, "drop", name, "--yes")
    async with Publisher.connect(settings.log()) as publisher:
        keys = await KeyAdministration(settings.log(), lambda: publisher).list(name)
    assert [key.status for key in keys] == ["revoked"]
    await run(settings, "add", name, "--partitions", "2")
    assert (await tenant_of(settings, name)).partitions == 2
    await delete_topics(settings.kafka, foreign)


@pytest.mark.usefixtures("_no_processes")
async def test_a_drop_that_breaks_off_is_finished_by_another(settings, name):
    own = await filled(settings, name)

    async def revoke_keys(_: str) -> int:
        raise RuntimeError

    async with Publisher.connect(settings.log()) as publisher:
        with pytest.raises(RuntimeError):
            await drop_tenant(settings, publisher, name, revoke_keys=revoke_keys, report=lambda step: None)

    assert (await listed(settings))[name]["dropping"] is True
    assert "is being dropped" in await fails(settings, "add", name)
    assert "is being dropped" in await fails(settings, "quota", name, "--open-runs", "1")
    assert (await command(settings, "keys", "add", "late", "--tenant", name))[0] != 0
    await drop(settings, name=name)
    assert await left_of(own) == set()


async def test_a_drop_of_which_the_mark_alone_is_left_is_finished(settings, name):
    await run(settings, "add", f"{name}-2")
    async with Publisher.connect(settings.log()) as publisher:
        await mark_dropping(publisher, tenant_topic(settings), name)

    await run(settings, "drop", name, "--yes")

    assert not (await read_tenants(settings)).is_marked(name)
    assert "runfold tenants list" in await fails(settings, "drop", name, "--yes")


async def test_a_drop_asks_for_the_name(settings, name):
    await run(settings, "add", name)

    assert "Type its name" in await fails(settings, "drop", name)
    assert "installation itself" in await fails(settings, "drop", settings.prefix, "--yes")
    assert name in await listed(settings)


async def test_an_export_has_every_record_and_blob(settings, name, tmp_path):
    own = await filled(settings, name)
    folder = tmp_path / "export"

    await run(settings, "export", name, str(folder))

    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["tenant"]["name"] == name
    assert manifest["tenant"]["partitions"] == 1
    for path, facts in manifest["files"].items():
        assert hashlib.sha256((folder / path).read_bytes()).hexdigest() == facts["sha256"]
    records = 0
    for topic in await topics_of(settings, name):
        file = folder / "topics" / topic.removeprefix(f"{name}.") / "0.jsonl"
        written = [json.loads(line) for line in file.read_text().splitlines()]
        stored = await records_of(own, topic)
        assert [(line["offset"], line["time"], line["value"]) for line in written] == [
            (record.offset, record.log_time, record.value and record.value.decode()) for record in stored
        ]
        assert [line["headers"] for line in written] == [
            [[key, None if value is None else value.decode()] for key, value in record.headers]
            for record in stored
        ]
        records += len(written)
    assert records > 3
    [blob] = (folder / "blobs").rglob("*/*")
    assert blob.read_bytes() == PICTURE
    assert "files already" in await fails(settings, "export", name, str(folder))
    assert "does not exist" in await fails(settings, "export", "no-such-tenant", str(tmp_path / "x"))


@pytest.mark.usefixtures("_no_processes")
async def test_an_export_is_brought_back_with_its_offsets_and_times(settings, name, tmp_path):
    own = await filled(settings, name)
    await run(settings, "quota", name, "--open-runs", "7")
    before = {topic: await records_of(own, topic) for topic in await topics_of(settings, name)}
    folder = tmp_path / "export"
    await run(settings, "export", name, str(folder))
    assert "exists: drop it first" in await fails(settings, "import", str(folder))
    await drop(settings, name=name)

    await run(settings, "import", str(folder))

    tenant = await tenant_of(settings, name)
    assert (tenant.partitions, tenant.quotas.open_runs) == (1, 7)
    assert {topic: await records_of(own, topic) for topic in await topics_of(settings, name)} == before
    async with Runfold.of(settings_of(settings, tenant).log()) as runfold:
        [run_] = [run_ async for run_ in runfold.runs()]
        assert [event.type async for event in run_.events()][:2] == ["run_opened", "user_message"]
        async with runfold.run(agent_id="a") as another:
            await another.publish(UserMessage(message="from after"))
        began = (await records_of(own, runfold.connection.topics.run(another.run_id, another.life.log_id)))[0]
        assert abs(began.log_time - time.time() * 1000) < 60_000


def set_in_manifest(folder: Path, **fields: object) -> None:
    """Changes the tenant in an export's manifest, which nothing protects."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["tenant"].update(fields)
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.usefixtures("_no_processes")
async def test_an_import_never_takes_a_database_that_is_in_use(settings, name, tmp_path):
    other, leftover = f"{name}-other", f"{name}-left"
    await run(settings, "add", name)
    await run(settings, "add", other)
    folder = tmp_path / "export"
    await run(settings, "export", name, str(folder))
    await drop(settings, name=name)
    async with connect(settings.mongo, leftover) as database:
        await database["runs.x"].insert_one({"_id": "r"})

        for taken in (other, other.upper(), settings.database):
            set_in_manifest(folder, database=taken)
            assert "belongs to" in await fails(settings, "import", str(folder))
        set_in_manifest(folder, database="admin")
        assert "MongoDB itself" in await fails(settings, "import", str(folder))
        assert "has data" in await fails(settings, "import", str(folder), "--database", leftover)
        set_in_manifest(folder, partitions=-1)
        assert "has no tenant" in await fails(settings, "import", str(folder))
        assert name not in await listed(settings)
        await database.client.drop_database(leftover)

    set_in_manifest(folder, partitions=1)
    await run(settings, "import", str(folder), "--database", leftover)
    assert (await tenant_of(settings, name)).database == leftover


@pytest.mark.usefixtures("_no_processes")
async def test_claims_need_verdicts_from_the_same_record_on_after_an_import(settings, name, tmp_path):
    await run(settings, "add", name)
    folder = tmp_path / "export"
    await run(settings, "export", name, str(folder))
    await drop(settings, name=name)
    compacted = {"cleanup.policy": "compact"}
    begin = Begin(partition=0, offset=5000)
    written = {
        "runs": [exported(offset, f"k{offset}", "{}") for offset in (7, 4999, 5000, 5100)],
        "verdicts": [exported(3, "catalog:0", begin.model_dump_json())],
    }
    manifest = json.loads((folder / "manifest.json").read_text())
    for topic, lines in written.items():
        file = folder / "topics" / topic / "0.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(lines))
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        manifest["files"][f"topics/{topic}/0.jsonl"] = {"sha256": digest}
        manifest["topics"][topic] = compacted
    (folder / "manifest.json").write_text(json.dumps(manifest))

    await run(settings, "import", str(folder))

    own = settings_of(settings, await tenant_of(settings, name))
    [record] = await records_of(own, f"{name}.verdicts")
    assert Begin.model_validate_json(record.value or b"") == Begin(partition=0, offset=2)


def exported(offset: int, key: str, value: str) -> str:
    line = {"offset": offset, "time": 1_700_000_000_000, "key": key, "headers": [], "value": value}
    return json.dumps(line) + "\n"


async def test_a_mark_that_a_drop_has_left_does_not_keep_a_new_tenant_away(settings, name):
    await run(settings, "add", f"{name}-first")
    registry = tenant_topic(settings)
    async with Publisher.connect(settings.log()) as publisher:
        await mark_dropping(publisher, registry, name)

    await run(settings, "add", name)

    assert (await tenant_of(settings, name)).dropping is False


@pytest.mark.usefixtures("_no_processes")
async def test_an_export_that_was_changed_is_not_brought_back(settings, name, tmp_path):
    own = await filled(settings, name)
    folder = tmp_path / "export"
    await run(settings, "export", name, str(folder))
    await drop(settings, name=name)
    [log] = (folder / "topics").glob("run.*/0.jsonl")
    log.write_text(log.read_text().replace("Look", "Lock"))

    assert "not as it was exported" in await fails(settings, "import", str(folder))

    assert await left_of(own) == set()
    assert name not in await listed(settings)
    assert "manifest" in await fails(settings, "import", str(tmp_path))


async def records_of(own: Settings, topic: str) -> list[Record]:
    return [record async for records in read(own.log(), topic) for record in records]


async def test_bytes_that_are_no_text_are_exported_too(settings, name, tmp_path):
    await run(settings, "add", name)
    async with Publisher.connect(settings.log()) as publisher:
        record = Outgoing(key=b"\xff", value=None, headers=[("h", b"\x80")])
        await publisher.wait(await publisher.send(f"{name}.sessions", record))

    await run(settings, "export", name, str(tmp_path / "export"))

    [line] = (tmp_path / "export/topics/sessions/0.jsonl").read_text().splitlines()
    fields = json.loads(line)
    assert fields["key"] == {"base64": "/w=="}
    assert fields["headers"] == [["h", {"base64": "gA=="}]]
    assert fields["value"] is None
