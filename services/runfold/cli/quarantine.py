"""`runfold quarantine`: what projectors have set aside, and what an operator can do about it."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from runfold import Runfold
from runfold.cli.memory_lines import local_time, plain, print_fields, print_json, print_rows, with_age
from runfold.cli.terminal import new_console, print_line
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold.printable import on_one_line
from runfold.query.quarantine import entry_of, skip_of
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.store.quarantine import Quarantined, remedy_of, run_id_of
from runfold_schemas.catalog import Skip
from runfold_schemas.codec import Record
from runfold_schemas.errors import (
    InvalidEventError,
    NotQuarantinedError,
    RunNotFoundError,
    UnavailableError,
)
from runfold_schemas.lists import QuarantineKind

_LOOK_SECONDS: Final = 0.1

_SETTLED_SECONDS: Final = 1.0
"""How long an entry must be gone: a projector that fails again sets it aside at once."""

_VALUE_BYTES: Final = 200

_KINDS: Final[tuple[QuarantineKind, ...]] = ("run", "key", "record")

_ACTIONS: Final = {
    "run": (
        "the run is folded on from this offset",
        "the records count for nothing, as if they were no events; the run goes on behind them",
    ),
    "key": (
        "changes of the key are folded on from this offset",
        "the records count for nothing; the changes of the key behind them are folded",
    ),
    "record": (
        "a record of the catalog is read once more; a batch of a shared topic is read by a rebuild only",
        "the records count for nothing",
    ),
}
"""What `retry` and `skip` do, by kind."""


async def ls(settings: Settings, *, kind: QuarantineKind | None, as_json: bool) -> None:
    """Lists the entries."""
    async with _edition(settings) as edition:
        entries = await edition.quarantine.all(kind=kind) if edition is not None else []
    if as_json:
        for entry in entries:
            print_json(entry_of(entry))
        return
    if not entries:
        new_console(stderr=True).print("nothing is in quarantine", style="dim")
        return
    print_rows(
        new_console(),
        ("id", "offset", "since", "attempts", "reason"),
        (
            (entry.id, str(entry.offset), local_time(entry.since), str(entry.attempts), entry.reason)
            for entry in sorted(entries, key=lambda entry: (_KINDS.index(entry.kind), entry.id))
        ),
    )
    new_console().print(_count(entries), style="dim", highlight=False)


def _count(entries: Sequence[Quarantined]) -> str:
    """The number of entries of each kind, as `3 runs, 1 key`."""
    counts = Counter(entry.kind for entry in entries)
    return ", ".join(
        f"{counts[kind]:,} {kind}{'s' if counts[kind] > 1 else ''}" for kind in _KINDS if counts[kind]
    )


async def show(settings: Settings, *, entry_id: str, as_json: bool) -> None:
    """Shows an entry with the first of its records, and what can be done."""
    async with _edition(settings) as edition:
        entry = await _find(edition, entry_id)
    record, fault = await _first_record(settings.log(), entry)
    if as_json:
        print_json(entry_of(entry), record=_document(record), record_error=fault)
        return
    print_fields(new_console(), {**_fields(entry), **_record_fields(record, fault), **_advice(entry)})


async def retry(settings: Settings, *, entry_ids: Sequence[str], wait_seconds: float) -> int:
    """Asks projectors to fold entries once more, all of them if `entry_ids` is empty. Returns how
    many are not folded.
    """
    async with _edition(settings) as edition:
        if entry_ids:
            entries = [await _find(edition, entry_id) for entry_id in entry_ids]
        else:
            entries = await edition.quarantine.all() if edition is not None else []
        if edition is None or not entries:
            new_console(stderr=True).print("nothing is in quarantine", style="dim")
            return 0
        for entry in entries:
            await edition.quarantine.request(entry.id, "retry", owner=entry.owner)
        return await _report(edition, entries, wait_seconds=wait_seconds)


async def skip(settings: Settings, *, entry_ids: Sequence[str], yes: bool, wait_seconds: float) -> int:
    """Skips the records of entries. Returns how many entries are not folded on."""
    async with _edition(settings) as edition:
        entries = [await _find(edition, entry_id) for entry_id in entry_ids]
        assert edition is not None, "an entry was found"
        if not yes and sys.stdin.isatty():
            _confirm(f"{entry.id}: {_records(entry)} of {entry.topic}: {entry.reason}" for entry in entries)
        async with Runfold.of(settings.log().of_visitor()) as runfold:
            for entry in entries:
                await runfold.connection.skip(skip_of(entry))
        return await _report(edition, entries, wait_seconds=wait_seconds)


async def skip_offset(settings: Settings, *, run_id: str, offset: int, yes: bool) -> None:
    """Skips one folded record of a run. Raises `RunNotFoundError`, and `InvalidEventError` for an
    offset that is not folded.
    """
    run_id = run_id.removeprefix(run_id_of(""))
    async with _edition(settings) as edition:
        state = await edition.runs.get(run_id) if edition is not None else None
    if state is None:
        raise RunNotFoundError(run_id)
    if offset >= state.record.next_offset:
        raise InvalidEventError(
            f"offset: run {run_id!r} is folded up to offset {state.record.next_offset}", field="offset"
        )
    if not yes and sys.stdin.isatty():
        _confirm([f"offset {offset} of run {run_id}"])
    async with Runfold.of(settings.log().of_visitor()) as runfold:
        topic = runfold.connection.topics.run(run_id, state.log_id)
        await runfold.connection.skip(Skip(topic=topic, offset=offset, next_offset=offset + 1))
    print_line(f"run {on_one_line(run_id)}: a projector folds it anew within seconds")


def _confirm(records: Iterable[str]) -> None:
    """Asks on the terminal. Raises `typer.Abort` if the answer is no."""
    for line in records:
        print_line(on_one_line(line))
    typer.confirm("Skip these records for good?", abort=True)


async def _report(edition: Edition, entries: Sequence[Quarantined], *, wait_seconds: float) -> int:
    """Prints what becomes of each entry. Returns how many are still in quarantine."""
    console = new_console(soft_wrap=True)
    if not wait_seconds:
        for entry in entries:
            console.print(_line(entry, "a projector acts on it within seconds"), highlight=False)
        return 0
    deadline = asyncio.get_running_loop().time() + wait_seconds
    failed = 0
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("")
        for number, entry in enumerate(entries, start=1):
            waiting = f"waiting for a projector, {number} of {len(entries)}"
            bar.update(task, description=waiting)
            outcome, is_folded = await _outcome(edition, entry, deadline=deadline)
            failed += not is_folded
            console.print(_line(entry, outcome), highlight=False)
    return failed


async def _outcome(edition: Edition, before: Quarantined, *, deadline: float) -> tuple[str, bool]:
    """What became of the entry, in words, and whether it left the quarantine."""
    clock = asyncio.get_running_loop().time
    gone_since: float | None = None
    while True:
        entry = await edition.quarantine.get(before.id)
        if entry is None:
            gone_since = gone_since or clock()
            if clock() - gone_since >= _SETTLED_SECONDS:
                return f"goes on at offset {before.next_offset}", True
        elif gone_since is not None or _has_failed_again(before, entry):
            place = "" if _has_no_record(entry) else f", at offset {entry.offset}"
            return f"in quarantine again{place}: {entry.reason}", False
        elif clock() > deadline:
            return "no projector has acted on it yet; one does so as soon as it runs", False
        await asyncio.sleep(_LOOK_SECONDS)


def _has_failed_again(before: Quarantined, now: Quarantined) -> bool:
    return (now.attempts, now.offset, now.since) != (before.attempts, before.offset, before.since)


def _line(entry: Quarantined, outcome: str) -> Text:
    return Text(f"{on_one_line(entry.id)}: {on_one_line(outcome)}")


@asynccontextmanager
async def _edition(settings: Settings) -> AsyncIterator[Edition | None]:
    """The current edition. None if nothing was ever projected."""
    async with connect(settings.mongo, settings.database) as database:
        name = await Editions(database).current()
        yield Edition.of(database, name) if name is not None else None


async def _find(edition: Edition | None, entry_id: str) -> Quarantined:
    """The entry of that id, or of the run of that id. Raises `NotQuarantinedError`."""
    for candidate in (entry_id, run_id_of(entry_id)):
        entry = await edition.quarantine.get(candidate) if edition is not None else None
        if entry is not None:
            return entry
    raise NotQuarantinedError(entry_id)


async def _first_record(log: LogSettings, entry: Quarantined) -> tuple[Record | None, str]:
    """The first record of the entry, or the reason why it cannot be read. Nothing is decoded."""
    if _has_no_record(entry):
        return None, "there is none: the log is missing, or ends before this offset"
    reading = read(
        log, entry.topic, partition=entry.partition, first_offset=entry.offset, end=entry.next_offset
    )
    try:
        async with aclosing(reading) as fetches:
            async for records in fetches:
                for record in records:
                    return record, ""
    except UnavailableError as error:
        return None, str(error)
    return None, "the log has no record there that can be unpacked"


def _document(record: Record | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "offset": record.offset,
        "log_time": record.log_time,
        "key": _escaped(record.key),
        "headers": [[name, _escaped(value)] for name, value in record.headers],
        "bytes": len(record.value or b""),
        "begins": _escaped((record.value or b"")[:_VALUE_BYTES]),
    }


def _fields(entry: Quarantined) -> dict[str, Text]:
    return {
        "id": plain(entry.id),
        "place": Text(f"{_records(entry)} of {entry.topic}, partition {entry.partition}"),
        "reason": plain(entry.reason),
        "since": Text(with_age(entry.since)),
        "attempts": Text(str(entry.attempts)),
    }


def _record_fields(record: Record | None, fault: str) -> dict[str, Text]:
    if record is None:
        return {"record": plain(fault)}
    value = record.value or b""
    begins = _escaped(value[:_VALUE_BYTES]) + ("..." if len(value) > _VALUE_BYTES else "")
    headers = "\n".join(f"{on_one_line(name)}: {_escaped(header)}" for name, header in record.headers)
    return {
        "record": Text(f"{len(value):,} bytes at offset {record.offset}"),
        "key": Text(_escaped(record.key)),
        "headers": Text(headers),
        "begins": Text(begins),
    }


def _advice(entry: Quarantined) -> dict[str, Text]:
    retrying, skipping = _ACTIONS[entry.kind]
    retry = Text(f"{retrying}; of use after an upgrade, or if a limit was raised")
    if _has_no_record(entry):
        return {"retry": retry, **_remedy(entry)}
    return {
        "retry": retry,
        "skip": Text(f"{skipping}; for ever and for every reader. They stay in the log"),
    }


def _remedy(entry: Quarantined) -> dict[str, Text]:
    remedy = remedy_of(entry)
    return {"rebuild": Text(remedy)} if remedy else {}


def _has_no_record(entry: Quarantined) -> bool:
    """Whether no record is the cause: the log is missing, or too short."""
    return entry.next_offset == entry.offset


def _records(entry: Quarantined) -> str:
    if _has_no_record(entry):
        return f"from offset {entry.offset} on"
    if entry.next_offset == entry.offset + 1:
        return f"offset {entry.offset}"
    return f"offsets {entry.offset} to {entry.next_offset - 1}"


def _escaped(value: bytes | None) -> str:
    """Bytes as printable ASCII: others as `\\x1b`."""
    return "" if value is None else repr(value)[2:-1]
