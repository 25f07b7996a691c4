"""`runfold memory`: memories and their revisions, read from the log. The JSON documents are those
of the HTTP API.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import islice, pairwise
from typing import Final, NamedTuple

from rich.console import Console
from rich.text import Text

from runfold import Runfold
from runfold.cli.memory_lines import (
    difference,
    fields_of,
    local_time,
    pairs_line,
    plain,
    print_fields,
    print_json,
    print_rows,
    with_age,
)
from runfold.cli.terminal import new_console
from runfold.cli.word_diff import shared_length
from runfold.client.memories import Memories
from runfold.client.memory import MemorySelection
from runfold.client.memory_log import LogMemoryReader, fold_memories
from runfold.documents.memories import BankDocument, MemoryDocument, RevisionDocument
from runfold.log.shared import partitions_of
from runfold.settings import Settings
from runfold_projections.memory import MemoryRecord, Revision
from runfold_schemas.errors import (
    ConfigurationError,
    MemoryNotFoundError,
    RunfoldError,
)
from runfold_schemas.memories import NO_RUN

_ALL: Final = 1_000_000_000
"""The size of a page with everything: each further page would read the whole log again."""

_LISTED_MAX: Final = 10
"""How many names an error lists at most."""

_SHORT_ID_LENGTH: Final = 8
"""The least number of characters of a shortened revision id."""


class MemoryCommandError(RunfoldError):
    """The bank, memory or revision does not exist; the message lists those that do."""


async def ls(settings: Settings, *, bank: str | None, scope: Mapping[str, str], as_json: bool) -> None:
    """Lists the banks, or the memories of one bank."""
    async with Runfold.of(settings.log().of_visitor()) as runfold:
        if bank is None and not scope:
            await _list_banks(runfold, as_json=as_json)
            return
        query = MemorySelection(scope=scope or None, order="updated_at")
        records, _ = await runfold.memories.list(await _bank_id(runfold, bank), query, limit=_ALL)
    if as_json:
        for record in records:
            print_json(MemoryDocument.of(record))
        return
    print_rows(
        new_console(),
        ("memory", "updated", "scope", "fact"),
        (
            (
                record.memory_id,
                local_time(record.updated_at),
                pairs_line(record.memory.scope),
                record.memory.fact,
            )
            for record in records
        ),
    )


async def show(settings: Settings, *, memory_id: str, bank: str | None, as_json: bool) -> None:
    """Shows every field of a memory."""
    async with _access(settings, memory_id, bank) as access:
        record = await access.memories.get(access.bank_id, memory_id)
    if as_json:
        print_json(MemoryDocument.of(record))
    else:
        print_fields(new_console(), _fields(record))


async def history(
    settings: Settings, *, memory_id: str, bank: str | None, labels: Mapping[str, str], as_json: bool
) -> None:
    """Lists the revisions of a memory, the newest first."""
    async with _access(settings, memory_id, bank) as access:
        revisions = await access.revisions()
    short_ids = _short_ids(revisions)
    labeled = [revision for revision in revisions if labels.items() <= revision.labels.items()]
    if as_json:
        for revision in labeled:
            print_json(RevisionDocument.of(revision))
        return
    print_rows(
        new_console(),
        ("revision", "action", "when", "run", "labels", "fact"),
        (
            (
                short_ids[revision.revision_id],
                revision.action,
                local_time(revision.created_at),
                "" if revision.run_id == NO_RUN else revision.run_id,
                pairs_line(revision.labels),
                revision.fact,
            )
            for revision in labeled
        ),
    )


async def diff(
    settings: Settings, *, memory_id: str, bank: str | None, earlier: str | None, later: str | None
) -> None:
    """Shows what changed between two revisions; by default, between the last two."""
    async with _access(settings, memory_id, bank) as access:
        revisions = await access.revisions()
    if earlier is None and len(revisions) < 2:
        existing = _listed(_short_ids(revisions).values())
        raise MemoryCommandError(f"memory {memory_id!r} has no two revisions to compare: it has {existing}")
    old = revisions[1] if earlier is None else _find_revision(revisions, earlier, memory_id)
    new = revisions[0] if later is None else _find_revision(revisions, later, memory_id)
    short_ids, console = _short_ids(revisions), new_console()
    print_fields(
        console,
        {
            name: Text(
                f"{short_ids[revision.revision_id]} {revision.action} {local_time(revision.created_at)}"
            )
            for name, revision in (("from", old), ("to", new))
        }
        | _changes(console, old, new),
    )


async def rollback(settings: Settings, *, memory_id: str, bank: str | None, revision: str) -> None:
    """Rolls a memory back, and shows its fields after that."""
    async with _access(settings, memory_id, bank) as access:
        revisions = await access.revisions()
        target = _find_revision(revisions, revision, memory_id)
        if target.memory is None:
            others = _listed(
                short_id
                for each, short_id in zip(revisions, _short_ids(revisions).values(), strict=True)
                if each.memory is not None
            )
            raise MemoryCommandError(
                f"revision {revision!r} is the deletion, and a memory cannot be rolled back to that:"
                f" choose another one: {others}"
            )
        record = await access.memories.rollback(access.bank_id, memory_id, target.revision_id)
    console = new_console()
    console.print(
        plain(
            f"rolled back to revision {target.revision_id} of {local_time(target.created_at)};"
            " the memory is now:"
        ),
        highlight=False,
        soft_wrap=True,
    )
    print_fields(console, _fields(record))


class _MemoryAccess(NamedTuple):
    """A memory, named by its bank and its id, and the verbs to read and change it."""

    memories: Memories
    bank_id: str
    memory_id: str

    async def revisions(self) -> Sequence[Revision]:
        """All of the memory's revisions, the newest first."""
        return (await self.memories.revisions(self.bank_id, self.memory_id, limit=_ALL))[0]


@asynccontextmanager
async def _access(settings: Settings, memory_id: str, bank: str | None) -> AsyncIterator[_MemoryAccess]:
    """Access to the memory. If it was deleted or has expired, the error says when."""
    async with Runfold.of(settings.log().of_visitor()) as runfold:
        bank_id = await _bank_id(runfold, bank)
        try:
            yield _MemoryAccess(runfold.memories, bank_id, memory_id)
        except MemoryNotFoundError as error:
            if (reason := await _why_missing(runfold, bank_id, memory_id)) is not None:
                raise MemoryCommandError(reason) from error
            raise


async def _why_missing(runfold: Runfold, bank_id: str, memory_id: str) -> str | None:
    """Why a memory does not exist, and what can be done; None if it never existed."""
    head, now = await LogMemoryReader(runfold.connection).head(bank_id, memory_id), datetime.now(UTC)
    if head is None or head.exists_at(now):
        return None
    ended = head.deleted_at or head.expires_at
    assert ended is not None
    end = f"memory {memory_id!r} {'was deleted' if head.deleted_at else 'has expired'}: {with_age(ended)}"
    if not head.can_be_rolled_back(now):
        return f"{end}; after 48 hours it cannot be rolled back: create it anew"
    return f"{end}; `runfold memory history` shows its revisions, and `runfold memory rollback` restores it"


async def _bank_id(runfold: Runfold, bank: str | None) -> str:
    """The bank named by the option, or the only one."""
    banks = [record.bank_id for record in (await runfold.memories.banks(limit=_ALL))[0]]
    if bank is not None:
        if bank not in banks and banks:
            raise MemoryCommandError(f"bank {bank!r} does not exist; there is {_listed(map(repr, banks))}")
        return bank
    if not banks:
        raise MemoryCommandError("there is no bank yet: create one first, by POST /v1/banks")
    if len(banks) > 1:
        raise ConfigurationError(f"there are several banks: give --bank, one of {_listed(map(repr, banks))}")
    return banks[0]


async def _list_banks(runfold: Runfold, *, as_json: bool) -> None:
    banks, _ = await runfold.memories.banks(limit=_ALL)
    connection, topics = runfold.connection, runfold.connection.topics
    partitions = partitions_of(topics, topics.memories)
    folded, now = (
        await fold_memories(connection.settings, partitions, await connection.skipped_in(partitions)),
        datetime.now(UTC),
    )
    counts = Counter(head.bank_id for head in folded.heads.values() if head.exists_at(now))
    if as_json:
        for record in banks:
            print_json(BankDocument.of(record), memories=counts[record.bank_id])
        return
    print_rows(
        new_console(),
        ("bank", "memories", "created", "name"),
        (
            (
                record.bank_id,
                str(counts[record.bank_id]),
                local_time(record.created_at),
                record.config.display_name or "",
            )
            for record in banks
        ),
    )


def _fields(record: MemoryRecord) -> dict[str, Text]:
    expires_at = record.memory.expires_at
    fields = {
        "memory": record.memory_id,
        "bank": record.bank_id,
        "fact": record.memory.fact,
        **fields_of(record.memory),
        "created": with_age(record.created_at),
        "updated": with_age(record.updated_at),
        "expires": with_age(expires_at) if expires_at is not None else "never",
        "revision": record.revision_id,
    }
    return {name: plain(value) for name, value in fields.items() if value}


def _changes(console: Console, old: Revision, new: Revision) -> dict[str, Text]:
    """The difference of the facts, and of each other field that changed. If one revision is the
    deletion, only the facts are compared.
    """
    changes = {"fact": difference(console, old.fact, new.fact)}
    if old.memory is not None and new.memory is not None:
        before, after = fields_of(old.memory), fields_of(new.memory)
        for name in dict.fromkeys([*before, *after]):
            was, now = before.get(name, ""), after.get(name, "")
            if was != now:
                changes[name] = difference(console, was, now)
    return changes


def _find_revision(revisions: Sequence[Revision], prefix: str, memory_id: str) -> Revision:
    """The only revision whose id begins with the prefix."""
    short_ids = _short_ids(revisions)
    matches = [revision for revision in revisions if revision.revision_id.startswith(prefix.lower())]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise MemoryCommandError(
            f"memory {memory_id!r} has no revision {prefix!r}: it has {_listed(short_ids.values())}"
        )
    candidates = _listed(short_ids[revision.revision_id] for revision in matches)
    raise MemoryCommandError(
        f"the ids of several revisions of memory {memory_id!r} begin with {prefix!r}:"
        f" give one of {candidates}"
    )


def _short_ids(revisions: Sequence[Revision]) -> dict[str, str]:
    """For each revision's id, in the order of the revisions, the first characters that only this id
    begins with.
    """
    ordered = sorted(revision.revision_id for revision in revisions)
    shared = [0, *(shared_length(*pair) for pair in pairwise(ordered)), 0]
    lengths = {
        revision_id: max(_SHORT_ID_LENGTH, *(length + 1 for length in shared[at : at + 2]))
        for at, revision_id in enumerate(ordered)
    }
    return {
        revision.revision_id: revision.revision_id[: lengths[revision.revision_id]] for revision in revisions
    }


def _listed(names: Iterable[str]) -> str:
    """The first names, separated by commas, and the number of the others."""
    rest = iter(names)
    first = ", ".join(islice(rest, _LISTED_MAX))
    more = sum(1 for _ in rest)
    return f"{first} and {more} more" if more else first or "none"
