"""`runfold memory`: memories with the history of their changes, from the log alone. Their JSON is
that of the API.
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
    moment,
    pairs_line,
    plain,
    print_fields,
    print_json,
    print_rows,
    with_age,
)
from runfold.cli.word_diff import alike
from runfold.client.memories import Memories
from runfold.client.memory import MemoriesWanted
from runfold.client.memory_log import LogMemoryReader, fold_memories
from runfold.documents.memories import BankDocument, MemoryDocument, RevisionDocument
from runfold.log.shared import partitions_of
from runfold.settings import Settings
from runfold_projections.memory import MemoryRecord, Revision
from runfold_schemas.errors import (
    BankNotFoundError,
    ConfigurationError,
    MemoryNotFoundError,
    RunfoldError,
)
from runfold_schemas.memories import NO_RUN

_ALL: Final = 1_000_000_000
"""A page of everything: from the log, each further page would read all of it again."""

_NAMED_MAX: Final = 10
"""How many an error names of those that there are."""

_SHORT: Final = 8
"""Characters that a revision's id has at least where it is shortened."""


class MemoryCommandError(RunfoldError):
    """What was asked for is not there; the message says what is."""


async def ls(settings: Settings, *, bank: str | None, scope: Mapping[str, str], as_json: bool) -> None:
    """Lists banks, or the memories of one."""
    async with Runfold.of(settings.log()) as runfold:
        if bank is None and not scope:
            await _list_banks(runfold, as_json=as_json)
            return
        wanted = MemoriesWanted(scope=scope or None, order="updated_at")
        memories, _ = await runfold.memories.list(await _bank(runfold, bank), wanted, limit=_ALL)
    if as_json:
        for one in memories:
            print_json(MemoryDocument.of(one))
        return
    print_rows(
        Console(),
        ("memory", "updated", "scope", "fact"),
        (
            (one.memory_id, moment(one.updated_at), pairs_line(one.memory.scope), one.memory.fact)
            for one in memories
        ),
    )


async def show(settings: Settings, *, memory_id: str, bank: str | None, as_json: bool) -> None:
    """Shows all of a memory."""
    async with _place(settings, memory_id, bank) as place:
        record = await place.memories.get(place.bank_id, memory_id)
    if as_json:
        print_json(MemoryDocument.of(record))
    else:
        print_fields(Console(), _fields(record))


async def history(
    settings: Settings, *, memory_id: str, bank: str | None, labels: Mapping[str, str], as_json: bool
) -> None:
    """Lists the revisions of a memory, the newest first."""
    async with _place(settings, memory_id, bank) as place:
        revisions = await place.revisions()
    short = _short_ids(revisions)
    found = [one for one in revisions if labels.items() <= one.labels.items()]
    if as_json:
        for one in found:
            print_json(RevisionDocument.of(one))
        return
    print_rows(
        Console(),
        ("revision", "action", "when", "run", "labels", "fact"),
        (
            (
                short[one.revision_id],
                one.action,
                moment(one.created_at),
                "" if one.run_id == NO_RUN else one.run_id,
                pairs_line(one.labels),
                one.fact,
            )
            for one in found
        ),
    )


async def diff(
    settings: Settings, *, memory_id: str, bank: str | None, earlier: str | None, later: str | None
) -> None:
    """Shows what changed from one revision to another: by default from the last but one, and to the
    last.
    """
    async with _place(settings, memory_id, bank) as place:
        revisions = await place.revisions()
    if earlier is None and len(revisions) < 2:
        there = _listed(_short_ids(revisions).values())
        raise MemoryCommandError(f"memory {memory_id!r} has no two revisions to compare: it has {there}")
    old = revisions[1] if earlier is None else _named(revisions, earlier, memory_id)
    new = revisions[0] if later is None else _named(revisions, later, memory_id)
    short, console = _short_ids(revisions), Console()
    print_fields(
        console,
        {
            name: Text(f"{short[one.revision_id]} {one.action} {moment(one.created_at)}")
            for name, one in (("from", old), ("to", new))
        }
        | _changes(console, old, new),
    )


async def rollback(settings: Settings, *, memory_id: str, bank: str | None, revision: str) -> None:
    """Rolls a memory back, and shows what it holds now."""
    async with _place(settings, memory_id, bank) as place:
        revisions = await place.revisions()
        target = _named(revisions, revision, memory_id)
        if target.memory is None:
            others = _listed(
                short
                for one, short in zip(revisions, _short_ids(revisions).values(), strict=True)
                if one.memory is not None
            )
            raise MemoryCommandError(
                f"revision {revision!r} is the deletion, which holds nothing to roll back to: name one of {others}"
            )
        record = await place.memories.rollback(place.bank_id, memory_id, target.revision_id)
    console = Console()
    console.print(
        plain(f"rolled back to revision {target.revision_id} of {moment(target.created_at)}; now it holds"),
        highlight=False,
        soft_wrap=True,
    )
    print_fields(console, _fields(record))


class _Place(NamedTuple):
    """A memory, by its bank and id, and where it is read."""

    memories: Memories
    bank_id: str
    memory_id: str

    async def revisions(self) -> Sequence[Revision]:
        """All that there are, the newest first."""
        return (await self.memories.revisions(self.bank_id, self.memory_id, limit=_ALL))[0]


@asynccontextmanager
async def _place(settings: Settings, memory_id: str, bank: str | None) -> AsyncIterator[_Place]:
    """Where the memory is. One that is there no more is told with what has become of it."""
    async with Runfold.of(settings.log()) as runfold:
        bank_id = await _bank(runfold, bank)
        try:
            yield _Place(runfold.memories, bank_id, memory_id)
        except MemoryNotFoundError as error:
            if (fate := await _fate(runfold, bank_id, memory_id)) is not None:
                raise MemoryCommandError(fate) from error
            raise


async def _fate(runfold: Runfold, bank_id: str, memory_id: str) -> str | None:
    """Why a memory is not there, and what can be done; None if it never was."""
    head, now = await LogMemoryReader(runfold.connection).head(bank_id, memory_id), datetime.now(UTC)
    if head is None or head.exists_at(now):
        return None
    ended = head.deleted_at or head.expires_at
    assert ended is not None
    did = f"memory {memory_id!r} {'was deleted' if head.deleted_at else 'has expired'}: {with_age(ended)}"
    if not head.can_be_rolled_back(now):
        return f"{did}; after 48 hours it cannot be rolled back: create it anew"
    return f"{did}; `runfold memory history` shows what it was, and `runfold memory rollback` restores it"


async def _bank(runfold: Runfold, given: str | None) -> str:
    """The bank that was given, or the only one."""
    banks = [one.bank_id for one in (await runfold.memories.banks(limit=_ALL))[0]]
    if given is not None:
        if given not in banks and banks:
            raise MemoryCommandError(f"{BankNotFoundError(given)}; there is {_listed(map(repr, banks))}")
        return given
    if not banks:
        raise MemoryCommandError("there is no bank yet: create one first, by POST /v1/banks")
    if len(banks) > 1:
        raise ConfigurationError(f"there are several banks: give --bank, of {_listed(map(repr, banks))}")
    return banks[0]


async def _list_banks(runfold: Runfold, *, as_json: bool) -> None:
    banks, _ = await runfold.memories.banks(limit=_ALL)
    folded, now = (
        await fold_memories(runfold.connection.settings, partitions_of(runfold.connection.topics.memories)),
        datetime.now(UTC),
    )
    counts = Counter(head.bank_id for head in folded.heads.values() if head.exists_at(now))
    if as_json:
        for one in banks:
            print_json(BankDocument.of(one), memories=counts[one.bank_id])
        return
    print_rows(
        Console(),
        ("bank", "memories", "created", "name"),
        (
            (one.bank_id, str(counts[one.bank_id]), moment(one.created_at), one.config.display_name or "")
            for one in banks
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
    """The difference of the facts, and of each other field that changed. Nothing is said of the
    fields of what is gone.
    """
    changes = {"fact": difference(console, old.fact, new.fact)}
    if old.memory is not None and new.memory is not None:
        before, after = fields_of(old.memory), fields_of(new.memory)
        for name in dict.fromkeys([*before, *after]):
            was, now = before.get(name, ""), after.get(name, "")
            if was != now:
                changes[name] = difference(console, was, now)
    return changes


def _named(revisions: Sequence[Revision], begin: str, memory_id: str) -> Revision:
    """The one revision whose id begins so."""
    short = _short_ids(revisions)
    found = [one for one in revisions if one.revision_id.startswith(begin.lower())]
    if len(found) == 1:
        return found[0]
    if not found:
        raise MemoryCommandError(
            f"memory {memory_id!r} has no revision {begin!r}: it has {_listed(short.values())}"
        )
    among = _listed(short[one.revision_id] for one in found)
    raise MemoryCommandError(
        f"{begin!r} begins several revisions of memory {memory_id!r}: give one of {among}"
    )


def _short_ids(revisions: Sequence[Revision]) -> dict[str, str]:
    """By id, in the order of the revisions, as much of its beginning as tells it from those of the
    others.
    """
    ordered = sorted(one.revision_id for one in revisions)
    shared = [0, *(alike(*pair) for pair in pairwise(ordered)), 0]
    lengths = {
        one: max(_SHORT, *(same + 1 for same in shared[at : at + 2])) for at, one in enumerate(ordered)
    }
    return {one.revision_id: one.revision_id[: lengths[one.revision_id]] for one in revisions}


def _listed(names: Iterable[str]) -> str:
    """Some of the names in words, and how many there are beside them."""
    rest = iter(names)
    told = ", ".join(islice(rest, _NAMED_MAX))
    more = sum(1 for _ in rest)
    return f"{told} and {more} more" if more else told or "none"
