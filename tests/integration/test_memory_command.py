"""`runfold memory` as a process: what is remembered and how it came to that, from the log alone."""

import asyncio
import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from subprocess import PIPE
from typing import NamedTuple
from uuid import uuid4

import pytest
from tests.forking import runfold_process
from tests.memory_verbs import check_memories_rebuild
from tests.processes import environment
from tests.querying import projected
from tests.terminals import shown_in_a_terminal

from runfold import Runfold
from runfold.client.memory import RevisionOptions
from runfold.documents.memories import MemoryDocument, RevisionDocument
from runfold.ids import new_event_id
from runfold.log.shared import send_shared
from runfold.settings import Settings
from runfold_projections.memory import MemoryRecord
from runfold_projections.state import Forward
from runfold_schemas.codec import new_data, new_event
from runfold_schemas.memories import Memory, MemoryCreated, MemoryDeleted, MemoryTopic, Moment, memory_key

END_SECONDS = 60
NOBODY_LISTENS = "127.0.0.1:1"
SCOPE = {"user": "ann lee", "app": "shop"}
PLAIN = {"NO_COLOR": "1", "TZ": "UTC", "COLUMNS": "300"}


class Ended(NamedTuple):
    code: int
    lines: list[str]
    errors: str


async def memory(settings: Settings, *arguments: str, **variables: str) -> Ended:
    """`runfold memory`, without a MongoDB."""
    process = await runfold_process(
        *("memory", *arguments),
        stdout=PIPE,
        stderr=PIPE,
        env=_variables(settings) | variables,
    )
    async with asyncio.timeout(END_SECONDS):
        output, errors = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, output.decode().splitlines(), errors.decode())


async def in_a_terminal(settings: Settings, *arguments: str, columns: int, colors: bool) -> str:
    variables = _variables(settings) | {"COLUMNS": str(columns), "TERM": "xterm-256color"}
    if colors:
        del variables["NO_COLOR"]
    return await shown_in_a_terminal("memory", *arguments, env=variables, seconds=END_SECONDS)


@pytest.fixture
async def bank(runfold: Runfold) -> str:
    return (await runfold.memories.create_bank(f"b-{uuid4().hex[:8]}")).bank_id


async def created(runfold: Runfold, bank: str, fact: str = "Prefers window seats", **more) -> MemoryRecord:
    return await runfold.memories.create(bank, Memory(**{"fact": fact, "scope": SCOPE} | more))


async def changed_thrice(runfold: Runfold, bank: str) -> MemoryRecord:
    record = await created(runfold, bank)
    memories = runfold.memories
    await memories.update(
        bank,
        record.memory_id,
        {"fact": "Prefers aisle seats.", "display_name": "seats"},
        revision=RevisionOptions(labels={"channel": "chat"}),
    )
    await memories.delete(bank, record.memory_id)
    return record


async def test_banks_are_listed_with_how_much_they_remember(settings: Settings, runfold: Runfold, bank: str):
    await created(runfold, bank)
    gone = await created(runfold, bank)
    await runfold.memories.delete(bank, gone.memory_id)

    ended = await memory(settings, "ls")
    documents = await memory(settings, "ls", "--json")

    assert (ended.code, ended.errors) == (0, "")
    assert ended.lines[0].split() == ["bank", "memories", "created"]
    assert [line.split()[:2] for line in ended.lines if bank in line] == [[bank, "1"]]
    found = {one["bank_id"]: one["memories"] for one in map(json.loads, documents.lines)}
    assert found[bank] == 1


async def test_memories_are_listed_the_newest_first(settings: Settings, runfold: Runfold, bank: str):
    first = await created(runfold, bank, "one\nline\x1b[31m")
    other = await created(runfold, bank, scope={"user": "bob"})

    ended = await memory(settings, "ls", "--bank", bank)
    scoped = await memory(settings, "ls", "--bank", bank, "--scope", "app=shop", "--scope", "user=ann lee")
    documents = await memory(settings, "ls", "--bank", bank, "--json")

    assert ended.lines[0].split() == ["memory", "updated", "scope", "fact"]
    assert [line.split()[0] for line in ended.lines[1:]] == [other.memory_id, first.memory_id]
    assert ended.lines[2].endswith(r"  'user=ann lee' app=shop  one line\x1b[31m")
    assert scoped.lines[1:] == ended.lines[2:]
    assert [_record(line) for line in documents.lines] == [other, first]


async def test_in_a_terminal_a_memory_is_one_line(settings: Settings, runfold: Runfold, bank: str):
    await created(runfold, bank, "漢字 " * 100, scope={"user": "ann"})

    shown = await in_a_terminal(settings, "ls", "--bank", bank, columns=90, colors=False)

    line = re.sub(r"\x1b\[\d*m", "", shown).splitlines()[1].rstrip()
    assert line.endswith("…")
    assert sum(2 if char in "漢字" else 1 for char in line) <= 90


async def test_all_of_a_memory_is_shown(settings: Settings, runfold: Runfold, bank: str):
    record = await created(
        runfold,
        bank,
        "Prefers\nexpires  never",
        topics=(MemoryTopic(managed="USER_PREFERENCES"), MemoryTopic(custom="seats")),
        metadata={"sure": True, "since": Moment(timestamp=datetime(2026, 1, 2, tzinfo=UTC))},
        expires_at=datetime.now(UTC) + timedelta(days=2, hours=1),
    )

    shown = await memory(settings, "show", record.memory_id, "--bank", bank)
    document = await memory(settings, "show", record.memory_id, "--bank", bank, "--json")

    expiry = f"{record.memory.expires_at:%Y-%m-%d %H:%M:%S} (in 2 days)"
    assert shown.lines[:8] == [
        f"memory    {record.memory_id}",
        f"bank      {bank}",
        "fact      Prefers",
        "          expires  never",
        "scope     'user=ann lee' app=shop",
        "topics    USER_PREFERENCES, seats",
        "metadata  sure: true",
        "          since: 2026-01-02 00:00:00",
    ]
    assert shown.lines[8] == f"expires   {expiry}"
    assert re.fullmatch(r"created   [\d-]+ [\d:]+ \(\d+ (second|minute)s? ago\)", shown.lines[9])
    assert shown.lines[11:] == [f"revision  {record.revision_id}"]
    assert [_record(line) for line in document.lines] == [record]


async def test_control_characters_reach_no_terminal_not_even_as_json(
    settings: Settings, runfold: Runfold, bank: str
):
    record = await created(runfold, bank, "a\x1b[31m\x9b2J\x7f\r\u202eb")
    await runfold.memories.update(bank, record.memory_id, {"fact": "c\x1b[31m\x9b2J\x7f\r\u202ed"})
    at = (record.memory_id, "--bank", bank)

    for arguments in (
        ("ls", *at[1:]),
        ("show", *at),
        ("show", *at, "--json"),
        ("history", *at),
        ("diff", *at),
    ):
        ended = await memory(settings, *arguments)
        assert ended.code == 0
        assert not set("\x1b\x9b\x7f\r\u202e") & set("\n".join(ended.lines)), arguments


async def test_the_history_has_ids_that_are_as_short_as_they_can_be(
    settings: Settings, runfold: Runfold, bank: str
):
    record = await changed_thrice(runfold, bank)
    all_of_it, _ = await runfold.memories.revisions(bank, record.memory_id)

    ended = await memory(settings, "history", record.memory_id, "--bank", bank)
    labeled = await memory(settings, "history", record.memory_id, "--bank", bank, "--label", "channel=chat")
    documents = await memory(settings, "history", record.memory_id, "--bank", bank, "--json")

    assert ended.lines[0].split() == ["revision", "action", "when", "labels", "fact"]
    rows = [re.split(r" {2,}", line.strip()) for line in ended.lines[1:]]
    assert [row[1] for row in rows] == ["deleted", "updated", "created"]
    assert rows[1][3:] == ["channel=chat", "Prefers aisle seats."]
    for row, revision in zip(rows, all_of_it, strict=True):
        assert [one for one in all_of_it if one.revision_id.startswith(row[0])] == [revision]
    assert [line.split()[0] for line in labeled.lines[1:]] == [rows[1][0]]
    assert [RevisionDocument.model_validate_json(line) for line in documents.lines] == [
        RevisionDocument.of(one) for one in all_of_it
    ]


async def test_the_last_two_revisions_are_compared_word_by_word(
    settings: Settings, runfold: Runfold, bank: str
):
    record = await created(runfold, bank, topics=(MemoryTopic(custom="seats"),))
    changes: Mapping[str, object] = {"fact": "Prefers aisle seats.", "topics": (), "display_name": "s"}
    await runfold.memories.update(bank, record.memory_id, changes)
    at = (record.memory_id, "--bank", bank)

    plain = await memory(settings, "diff", *at)
    colored = await in_a_terminal(settings, "diff", *at, columns=100, colors=True)

    assert [line.split()[0] for line in plain.lines[:2]] == ["from", "to"]
    assert plain.lines[2:] == [
        "fact          Prefers [-window-]{+aisle+} seats{+.+}",
        "topics        [-seats-]",
        "display name  {+s+}",
    ]
    assert "Prefers \x1b[9;31mwindow\x1b[0m\x1b[4;32maisle\x1b[0m seats" in colored


async def test_any_two_revisions_are_compared_and_a_deletion_has_no_fact(
    settings: Settings, runfold: Runfold, bank: str
):
    record = await changed_thrice(runfold, bank)
    deletion, update, creation = (await runfold.memories.revisions(bank, record.memory_id))[0]

    async def compared(*revisions: str) -> list[str]:
        ended = await memory(settings, "diff", record.memory_id, *revisions, "--bank", bank)
        assert ended.errors == ""
        return ended.lines[2:]

    assert await compared() == ["fact  [-Prefers aisle seats.-]"]
    assert await compared(creation.revision_id) == ["fact  [-Prefers window seats-]"]
    assert await compared(deletion.revision_id, update.revision_id.upper()) == [
        "fact  {+Prefers aisle seats.+}"
    ]
    assert await compared(update.revision_id, update.revision_id) == ["fact  Prefers aisle seats."]


async def test_a_memory_is_rolled_back_by_the_beginning_of_a_revision_also_after_its_deletion(
    settings: Settings, runfold: Runfold, bank: str
):
    record = await changed_thrice(runfold, bank)
    lines = (await memory(settings, "history", record.memory_id, "--bank", bank)).lines
    begin = lines[-1].split()[0]

    ended = await memory(settings, "rollback", record.memory_id, begin, "--bank", bank)

    assert (ended.code, ended.errors) == (0, "")
    assert ended.lines[0].startswith(f"rolled back to revision {record.revision_id} of ")
    assert ended.lines[3] == "fact      Prefers window seats"
    there = await runfold.memories.get(bank, record.memory_id)
    assert there.memory == record.memory
    assert ended.lines[-1] == f"revision  {there.revision_id}"


async def test_a_revision_that_cannot_be_rolled_back_to_is_told_with_those_that_can(
    settings: Settings, runfold: Runfold, bank: str
):
    record = await changed_thrice(runfold, bank)
    deletion, update, creation = (await runfold.memories.revisions(bank, record.memory_id))[0]

    async def told(revision: str) -> str:
        ended = await memory(settings, "rollback", record.memory_id, revision, "--bank", bank)
        assert (ended.code, ended.lines, ended.errors.count("\n")) == (1, [], 1)
        return ended.errors

    assert "is the deletion, and a memory cannot be rolled back to that: choose another one: " in await told(
        deletion.revision_id
    )
    unknown, ambiguous = await told("ffff"), await told(creation.revision_id[:2])
    assert unknown.startswith(f"error: memory '{record.memory_id}' has no revision 'ffff': it has ")
    assert [update.revision_id.startswith(one) for one in unknown.split(": it has ")[1].split(", ")] == [
        False,
        True,
        False,
    ]
    assert ambiguous.startswith(f"error: the ids of several revisions of memory '{record.memory_id}' begin")
    assert (await runfold.memories.revisions(bank, record.memory_id))[0][0] == deletion


async def test_what_has_become_of_a_memory_is_told(settings: Settings, runfold: Runfold, bank: str):
    deleted = await created(runfold, bank)
    await runfold.memories.delete(bank, deleted.memory_id)
    await _happened(runfold, bank, "old", created_at=_ago(hours=60), deleted_at=_ago(hours=49))
    await _happened(
        runfold, bank, "late", created_at=_ago(hours=60), expires_at=datetime.now(UTC) - timedelta(hours=3)
    )

    async def told(*arguments: str) -> str:
        ended = await memory(settings, *arguments, "--bank", bank)
        assert (ended.code, ended.lines, ended.errors.count("\n")) == (1, [], 1)
        return ended.errors

    assert "`runfold memory rollback` restores it" in await told("show", deleted.memory_id)
    assert "(3 hours ago); `runfold memory history` shows its revisions" in await told("show", "late")
    for arguments in (("show", "old"), ("rollback", "old", "0"), ("diff", "old"), ("history", "old")):
        assert "(2 days ago); after 48 hours it cannot be rolled back: create it anew" in await told(
            *arguments
        )
    assert "memory 'nothing' of bank" in await told("show", "nothing")


async def test_the_only_bank_need_not_be_named(settings: Settings, runfold: Runfold, bank: str):
    apart = settings.model_copy(update={"prefix": f"{settings.prefix}-apart"})
    async with Runfold.of(apart.log()) as alone:
        nothing = await memory(apart, "show", "m")
        await alone.memories.create_bank("only")
        record = await created(alone, "only")
        shown = await memory(apart, "show", record.memory_id)
        unknown = await memory(apart, "ls", "--bank", "another")
        await alone.memories.create_bank("other")
        several = await memory(apart, "show", record.memory_id)

    assert nothing.errors == "error: there is no bank yet: create one first, by POST /v1/banks\n"
    assert shown.lines[0] == f"memory    {record.memory_id}"
    assert unknown.code == 1
    assert unknown.errors == "error: bank 'another' does not exist; there is 'only'\n"
    assert several.code == 2
    assert several.errors == "error: there are several banks: give --bank, one of 'other', 'only'\n"


async def test_wrong_options_and_kafka_away_are_told_as_by_other_commands(settings: Settings):
    wrong = await memory(settings, "ls", "--scope", "user")
    away = await memory(settings, "ls", RUNFOLD_KAFKA=NOBODY_LISTENS)

    assert wrong.code == 2
    assert "'user' is not of the form key=value" in wrong.errors
    assert away.code == 1
    assert away.errors.startswith("error: Kafka is not available")


@pytest.mark.parametrize("command", ["ls", "show", "history", "diff", "rollback"])
async def test_each_command_has_an_example(settings: Settings, command: str):
    ended = await memory(settings, command, "--help")

    assert ended.code == 0
    assert any(line.strip().startswith(f"Example: runfold memory {command}") for line in ended.lines)


def _record(line: str) -> MemoryRecord:
    return MemoryDocument.model_validate_json(line).record()


def _variables(settings: Settings) -> dict[str, str]:
    return os.environ | PLAIN | environment(settings) | {"RUNFOLD_MONGO": f"mongodb://{NOBODY_LISTENS}"}


def _ago(*, hours: float) -> datetime:
    return datetime.now(UTC) - timedelta(hours=hours)


async def _happened(
    runfold: Runfold,
    bank: str,
    memory_id: str,
    *,
    created_at: datetime,
    deleted_at: datetime | None = None,
    expires_at: datetime | None = None,
) -> None:
    """A memory that was made, and perhaps deleted, at some time before now."""
    place = {"bank_id": bank, "memory_id": memory_id}
    content = Memory(fact="Prefers window seats", scope=SCOPE, expires_at=expires_at)
    changes = [(new_data(MemoryCreated, memory=content, **place), created_at)]
    if deleted_at is not None:
        changes.append((new_data(MemoryDeleted, **place), deleted_at))
    for change, at in changes:
        event = new_event(change, event_id=new_event_id(), run_id="-", timestamp=at)
        forward = Forward(memory_key(bank, memory_id), event)
        publisher = runfold.connection.publisher
        await publisher.wait(await send_shared(publisher, runfold.connection.settings, forward))


async def test_a_projector_makes_the_same_of_the_log_again_and_again(settings):
    async with projected(settings):
        await check_memories_rebuild(settings)
