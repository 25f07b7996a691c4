"""The steps of an erasure after kills, with other projectors, with clear data, and for names that
contain the user's.
"""

import asyncio
from base64 import b64encode
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from tests.processes import until
from tests.querying import Projected, projected

from runfold import Run, Runfold, UserMessage
from runfold.cli.erasure import erased
from runfold.client.appender import Appender
from runfold.client.connection import LogConnection
from runfold.client.forking import _Forking
from runfold.client.run_deletion import deletion_of
from runfold.encryption.cipher import new_key
from runfold.erasure.dead_letters import erase_dead_letters
from runfold.erasure.eraser import Eraser
from runfold.erasure.erasure import erase_user
from runfold.erasure.keys import keys_in_use
from runfold.erasure.search import search
from runfold.log.catalog import life_key, partition_of
from runfold.log.publisher import Outgoing
from runfold.log.reader import read
from runfold.log.shared import deliver
from runfold.query.dead_letters import DeadLetters
from runfold.settings import Settings
from runfold.store.database import Database, connect
from runfold.store.state import Entry
from runfold_projections.state import Value
from runfold_schemas.catalog import Life
from runfold_schemas.errors import ConfigurationError, RunfoldError
from runfold_schemas.memories import Memory, memory_key
from runfold_schemas.topics import RunTopic


@pytest.fixture
def settings(kafka: str, mongo: str) -> Settings:
    name = f"t{uuid4().hex[:8]}"
    names = {"prefix": name, "database": name}
    return Settings(kafka=kafka, mongo=mongo, partitions=2, wait_timeout_seconds=20, **names)


def sealed_by(settings: Settings, folder: Path) -> Settings:
    """These settings with encryption."""
    (folder / "operator.key").write_text(b64encode(new_key()).decode())
    chosen = {name: getattr(settings, name) for name in settings.model_fields_set}
    return Settings(**{**chosen, "encryption_key": f"file:{folder}/operator.key"})


async def test_a_call_after_a_killed_one_destroys_the_keys(settings, tmp_path, monkeypatch):
    sealed = sealed_by(settings, tmp_path)
    async with projected(settings) as stored, Runfold.of(sealed.log()) as runfold:
        session = await runfold.sessions.create(app="shop", user="ann", display_name="Ann")
        log_id = session.record.log_id
        await until(lambda: is_stored(stored, log_id), what="the page")
        with monkeypatch.context() as patched:
            patched.setattr(Eraser, "_destroy_keys", killed)
            with pytest.raises(asyncio.CancelledError):
                await erase_user(sealed, runfold.connection, "ann")
        await until(lambda: is_gone(stored, log_id), what="the deletion by the projector")
        async with Runfold.of(settings.log()) as keyless:
            with pytest.raises(ConfigurationError, match="RUNFOLD_ENCRYPTION_KEY"):
                await erase_user(settings, keyless.connection, "ann")

        erased = await erase_user(sealed, runfold.connection, "ann")

        assert (erased.signed.receipt.removed.sessions, erased.signed.receipt.removed.keys) == (1, 1)
        assert not await keys_in_use(runfold.connection)


async def killed(*_: object) -> None:
    raise asyncio.CancelledError


async def is_stored(stored: Projected, log_id: str) -> bool:
    return await stored.pages.end(log_id) > 0


async def is_gone(stored: Projected, log_id: str) -> bool:
    return not await is_stored(stored, log_id)


async def source_of(stored: Projected) -> Run:
    """A run of a session of ann."""
    await stored.runfold.sessions.create(app="shop", user="ann", session_id="s-1")
    source = await stored.runfold.open_run(agent_id="shop", session_id="s-1")
    await source.publish(UserMessage(message="my address"))
    return source


async def run_topics(stored: Projected) -> list[str]:
    return await stored.runfold.connection.admin.list_run_topics()


FORKING: list[tuple[type, str]] = [
    (_Forking, "_is_source_deleted"),
    (_Forking, "_copy_blobs"),
    (Appender, "append_batch"),
    (LogConnection, "announce"),
    (_Forking, "_check_source"),
]
"""The steps of a fork whose topic exists."""


async def test_forks_whose_process_has_died_are_erased_with_their_source(settings, monkeypatch):
    async with projected(settings) as stored:
        source = await source_of(stored)
        for step in FORKING:
            with monkeypatch.context() as patched:
                for died in (step, (_Forking, "_discard")):
                    patched.setattr(*died, killed)
                with pytest.raises(asyncio.CancelledError):
                    await source.fork()
        assert len(await run_topics(stored)) == 2 + len(FORKING)

        erased = await erase_user(settings, stored.runfold.connection, "ann")

        assert await run_topics(stored) == []
        assert erased.signed.receipt.removed.runs == 1 + len(FORKING)


async def dead_fork(stored: Projected, monkeypatch: pytest.MonkeyPatch, run_id: str) -> RunTopic:
    """The topic of a fork of ann's run, whose process died before it announced the fork."""
    source = await source_of(stored)
    before = set(await run_topics(stored))
    with monkeypatch.context() as patched:
        for died in ((LogConnection, "announce"), (_Forking, "_discard")):
            patched.setattr(*died, killed)
        with pytest.raises(asyncio.CancelledError):
            await source.fork(run_id=run_id)
    (topic,) = set(await run_topics(stored)) - before
    run = stored.runfold.connection.topics.parse_run(topic)
    assert run is not None
    return run


async def lives_in_catalog(stored: Projected, run_id: str) -> list[Life]:
    """All records of the run's lives."""
    topics, settings = stored.runfold.connection.topics, stored.runfold.connection.settings
    async with aclosing(read(settings, topics.catalog, partition=partition_of(topics, run_id))) as fetches:
        return [
            Life.model_validate_json(record.value)
            async for records in fetches
            for record in records
            if record.key == life_key(run_id)
        ]


async def is_whole(stored: Projected, run: Run) -> bool:
    """Whether the run exists for readers and, after a compaction, for a rebuild."""
    last = (await lives_in_catalog(stored, run.run_id))[-1]
    state = await stored.runs.get(run.run_id)
    return (last.log_id, last.deleted) == (run.life.log_id, False) and state is not None


async def test_the_erasure_of_a_dead_fork_keeps_the_run_of_another_user_with_its_id(
    settings, tmp_path, monkeypatch
):
    sealed = sealed_by(settings, tmp_path)
    async with projected(settings) as stored, Runfold.of(sealed.log()) as runfold:
        await dead_fork(stored, monkeypatch, "case-17")
        run = await runfold.open_run(agent_id="shop", run_id="case-17")
        await run.publish(UserMessage(message="from bob"))
        await until(lambda: is_stored(stored, run.life.log_id), what="the page")

        erased = await erase_user(sealed, runfold.connection, "ann")

        bob = stored.runfold.connection.topics.run("case-17", run.life.log_id)
        assert await run_topics(stored) == [bob]
        assert {life.log_id for life in await lives_in_catalog(stored, "case-17")} == {run.life.log_id}
        assert await is_whole(stored, run)
        assert erased.signed.receipt.removed.runs == 2
        async with Runfold.of(sealed.log()) as later:
            reopened = await later.open_run(agent_id="shop", run_id="case-17")
            assert "from bob" in "".join([event.model_dump_json() async for event in reopened.events()])


async def test_a_deletion_of_a_log_that_lost_the_run_id_keeps_the_run(settings, monkeypatch):
    """The other user opens the run after the erasure has looked for the id."""
    async with projected(settings) as stored:
        connection = stored.runfold.connection
        fork = await dead_fork(stored, monkeypatch, "case-17")
        run = await stored.run(UserMessage(message="from bob"), run_id="case-17", agent_id="shop")
        lost = Life(run_id=fork.run_id, log_id=fork.log_id, agent_id="")

        await deliver(connection.publisher, [deletion_of(connection.settings, lost, erased="ann")])

        async def is_deleted() -> bool:
            return any(life.deleted for life in await lives_in_catalog(stored, "case-17"))

        await until(is_deleted, what="the deletion of the fork")
        await until(lambda: is_whole(stored, run), what="the run's life in the catalog again")


# At later steps a client waits for its publish timeout, because the topic is gone.
@pytest.mark.parametrize(("kind", "name"), [(LogConnection, "open_topic"), (Appender, "append_batch")])
async def test_a_fork_that_goes_on_after_the_erasure_of_its_source_is_refused(
    settings, monkeypatch, kind, name
):
    method, begun, may_go_on = getattr(kind, name), asyncio.Event(), asyncio.Event()

    async def held(*arguments: object, **options: object) -> object:
        begun.set()
        await may_go_on.wait()
        return await method(*arguments, **options)

    async with projected(settings) as stored:
        source = await source_of(stored)
        with monkeypatch.context() as patched:
            patched.setattr(kind, name, held)
            fork = asyncio.create_task(source.fork())
            await begun.wait()
        await erase_user(settings, stored.runfold.connection, "ann")
        may_go_on.set()

        with pytest.raises(RunfoldError):
            await fork

        await until(lambda: has_no_runs(stored), what="the deletion of the fork")


async def has_no_runs(stored: Projected) -> bool:
    return await run_topics(stored) == []


async def test_a_receipt_says_that_earlier_records_are_in_clear(settings, tmp_path):
    sealed = sealed_by(settings, tmp_path)
    async with projected(settings) as stored, Runfold.of(sealed.log()) as runfold:
        await stored.runfold.sessions.create(app="shop", user="ann", display_name="before encryption")
        await runfold.sessions.create(app="shop", user="ann", display_name="sealed")
        await runfold.sessions.create(app="shop", user="bob", display_name="sealed")
        receipts = {
            user: (await erase_user(sealed, runfold.connection, user)).signed.receipt
            for user in ("ann", "bob")
        }

    assert (receipts["ann"].encrypted, receipts["bob"].encrypted) == (False, True)
    assert "in clear" in receipts["ann"].remains[0].what
    assert "in clear" not in receipts["bob"].remains[0].what


async def test_what_an_earlier_projector_kept_is_deleted_by_a_further_call(settings):
    key, expires = "user:shop/ann", datetime.now(UTC) + timedelta(days=1)
    async with projected(settings) as stored:
        connection, stores = stored.runfold.connection, stored.stores
        await stored.runfold.sessions.create(app="shop", user="ann", state={"user:k": "kept"})
        await stored.runfold.memories.create_bank("tastes")
        memory = await stored.runfold.memories.create("tastes", Memory(fact="kept", scope={"user": "ann"}))
        await erase_user(settings, connection, "ann")
        # As if the projector had passed the deletions.
        await stored.database[f"values.{stores.name}"].delete_many({})
        await stores.values.save([Entry(key, "user:k", Value("kept", 0))])
        at = {"memory": memory_key("tastes", memory.memory_id), "offset": 0}
        revisions = stored.database[f"revisions.{stores.name}"]
        await revisions.delete_many({})
        await revisions.insert_one({"_id": at, "record": "kept", "expires": expires})

        await erase_user(settings, connection, "ann")

        assert await stores.values.read([key]) == {key: {}}
        assert await revisions.find_one({"record": {"$exists": True}}) is None


async def test_dead_letters_of_others_are_kept(settings):
    values = [
        b'{"data":{"user":"ann"}}',
        b'{"data":{"memory":{"scope":{"user_id":"ann"}}}}',
        b'"ann',
        b'{"data":{"user":"bob","display_name":"ann"}}',
        b'{"data":{"user":"hannah"}}',
        b"planning",
    ]
    async with projected(settings) as stored:
        connection = stored.runfold.connection
        for offset, value in enumerate(values):
            letter = Outgoing(f"{connection.topics.sessions}-0:{offset}".encode(), value)
            await connection.publisher.wait(
                await connection.publisher.send(connection.topics.dead_letters, letter)
            )

        assert await erase_dead_letters(connection, user="ann", origins=[]) == 3


async def test_dead_letters_whose_keys_name_no_record_stop_no_erasure(settings):
    many = b"9" * 18
    places = (
        b"-0:7",
        b"-0:" + many,
        b"-0:" + many * 2,
        b"-999:0",
        b"-" + many + b":0",
        "-٣:²".encode(),
    )
    async with projected(settings) as stored:
        connection = stored.runfold.connection
        for place in (*places, b"", b"-0", b"-0:-1"):
            letter = Outgoing(connection.topics.sessions.encode() + place, b"")
            await connection.publisher.wait(
                await connection.publisher.send(connection.topics.dead_letters, letter)
            )

        assert await erase_dead_letters(connection, user="ann", origins=[]) == 0


async def test_dead_letters_without_content_are_judged_by_their_records(settings, tmp_path):
    sealed = sealed_by(settings, tmp_path)
    async with projected(settings), Runfold.of(sealed.log()) as runfold:
        connection, letters = runfold.connection, DeadLetters(sealed.log())
        await runfold.sessions.create(app="shop", user="bob")  # so that the tenant has keys
        for user in ("ann", "bob", "ann"):
            record = Outgoing(b"key", f'{{"data":{{"scope":{{"user":"{user}"}}}}}}'.encode())
            sent = await connection.publisher.send(connection.topics.memories, record, partition=1)
            await connection.publisher.wait(sent)

        async def are_buried() -> bool:
            return await letters.count() == 3

        await until(are_buried, what="the dead letters")
        entries = (await letters.list(limit=5)).dead_letters

        assert await erase_dead_letters(connection, user="ann", origins=[]) == 2

        assert (await letters.list(limit=5)).dead_letters == [entries[1]]


async def test_what_a_living_key_opens_is_readable(settings, tmp_path):
    sealed = sealed_by(settings, tmp_path)
    async with (
        projected(settings),
        Runfold.of(sealed.log()) as runfold,
        connect(sealed.mongo, sealed.database) as database,
    ):
        await runfold.sessions.create(app="shop", user="ann", display_name="sealed")
        # Its event has ids alone, so nothing in it is sealed.
        await runfold.sessions.create(app="shop", user="ann")
        topic = f"Kafka, {sealed.prefix}.sessions"

        assert topic in await readable_places(runfold, database)
        await erase_user(sealed, runfold.connection, "ann")
        assert await readable_places(runfold, database) <= {f"Kafka, {sealed.prefix}.keys"}


async def test_the_search_says_what_is_in_clear_beside_what_is_sealed(settings, tmp_path, capsys):
    sealed = sealed_by(settings, tmp_path).model_copy(update={"encryption_clear_labels": ("team",)})
    async with projected(settings), Runfold.of(sealed.log()) as runfold:
        labels = {"team": "red", "plan": "gold"}
        await runfold.sessions.create(app="shop", user="ann", labels=labels, display_name="sealed")
        await runfold.sessions.create(app="shop", user="ann", display_name="sealed")
        await erase_user(sealed, runfold.connection, "ann")

    assert await erased(sealed, "ann", receipt=None, api=None) == 1

    lines = capsys.readouterr().out.splitlines()
    assert f"readable in Kafka, {sealed.prefix}.sessions" in [line.partition(":")[0] for line in lines]
    assert lines[-1].startswith("1 of the readable places are in clear: ")


async def readable_places(runfold: Runfold, database: Database) -> set[str]:
    found = [
        each async for looked in search(runfold.connection, database, user="ann") for each in looked.found
    ]
    return {each.place for each in found if each.is_readable}
