"""Compares logs and MongoDB with the heads that were signed, and names every record that was
changed, removed, inserted or moved since.

The log in Kafka and the pages in MongoDB are two copies of the records. A copy that gives the
signed head is right, so a copy that does not is compared with it.
"""

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, NamedTuple

from runfold.evidence.bucket import Copied, EvidenceBucket
from runfold.evidence.log import Heads, LoggedTree, read_trees
from runfold.log.catalog import folded_life, is_life, partition_of
from runfold.log.catalog_view import CatalogView
from runfold.log.leaders import Leaders
from runfold.log.partition_counts import counted
from runfold.log.reader import LogGoneError, read
from runfold.log.settings import LogSettings
from runfold.log.verdicts import Verdicts, read_settled
from runfold.store.edition import Edition
from runfold.store.page import packed_records, page_of
from runfold.store.pages import PageStore
from runfold_projections.chain import START, digest_of, extend_by_digests, head_of
from runfold_schemas.archive_errors import ArchiveDamagedError
from runfold_schemas.catalog import Life
from runfold_schemas.codec import Record
from runfold_schemas.errors import DamagedError
from runfold_schemas.topics import Partition, RunTopic, Topics

KAFKA: Final = "Kafka"
MONGODB: Final = "MongoDB"

UNSIGNED_SECONDS: Final = 600.0
"""By then a log has a head, unless it is kept from being signed."""


class ChainFault(NamedTuple):
    """A difference from what was signed. `where` names a log or a tree."""

    kind: str
    where: str
    detail: str


@dataclass(slots=True)
class ChainReport:
    """What was compared. `faults` is empty if everything is as it was signed."""

    faults: list[ChainFault] = field(default_factory=list)
    trees: int = 0
    heads: int = 0
    logs: int = 0
    deletions: list["Deletion"] = field(default_factory=list)
    unsigned: int = 0
    """The records behind the last signed heads."""
    last_time: str | None = None
    """When the last tree was signed."""

    @property
    def deleted(self) -> int:
        return len(self.deletions)


class Deletion(NamedTuple):
    """A signed log that is gone because its run was deleted, as the catalog says. `time` is that of
    the catalog's record.
    """

    run_id: str
    log_id: str
    time: str


class CatalogLife(NamedTuple):
    """A run's life, and when the catalog got its last record that counts."""

    life: Life
    time_ms: int


class SignedHead(NamedTuple):
    next_offset: int
    head: bytes


class Seen(NamedTuple):
    """A record of a copy."""

    digest: bytes
    content: bytes
    """The digest of its key, headers and value alone, which moves with a record."""


Copies = Mapping[str, Mapping[int, Seen]]


async def verify_chains(
    log: LogSettings,
    stores: Edition,
    trusted: Collection[str],
    *,
    run_id: str | None = None,
    bucket: EvidenceBucket | None = None,
    unsigned_seconds: float = UNSIGNED_SECONDS,
) -> AsyncIterator[ChainReport]:
    """Yields one report, again and again while it fills. A log whose first record is older than
    `unsigned_seconds` has to have a head. Raises `UnavailableError`.
    """
    log = await counted(log)
    async with Leaders.connect(log) as leaders, CatalogView.connect(log, leaders=leaders):
        comparing = _compared(
            log,
            leaders,
            stores,
            trusted,
            run_id=run_id,
            bucket=bucket,
            unsigned_seconds=unsigned_seconds,
        )
        async with aclosing(comparing) as reports:
            async for report in reports:
                yield report


async def _compared(
    log: LogSettings,
    leaders: Leaders,
    stores: Edition,
    trusted: Collection[str],
    *,
    run_id: str | None,
    bucket: EvidenceBucket | None,
    unsigned_seconds: float,
) -> AsyncGenerator[ChainReport, None]:
    report, topics, gone = ChainReport(), log.topics, set[RunTopic]()
    copied = await bucket.newest() if bucket is not None else None
    signed = await _signed_heads(log, trusted, report, copied)
    yield report
    for at, heads in sorted(signed.items()):
        run = topics.parse_run(at.topic)
        if run_id is not None and (run is None or run.run_id != run_id):
            continue
        name = f"run {run.run_id}" if run else f"{at.topic}, partition {at.partition}"
        try:
            copies = {KAFKA: await _logged(log, at, leaders)}
        except (LogGoneError, ArchiveDamagedError) as error:
            if run and isinstance(error, LogGoneError):
                gone.add(run)
            else:
                report.faults.append(_unread(error, name))
            continue
        if run:
            copies[MONGODB] = await _stored(stores.pages, run.log_id)
        report.faults += [ChainFault(kind, name, detail) for kind, detail in compare(sorted(heads), copies)]
        report.logs, report.heads = report.logs + 1, report.heads + len(heads)
        last = max(head.next_offset for head in heads)
        report.unsigned += sum(offset >= last for offset in copies[KAFKA])
        yield report
    if not report.trees:
        return
    verdicts = Verdicts(log)
    for number in range(topics.partitions) if run_id is None else [partition_of(topics, run_id)]:
        lives = await _lives(log, number, verdicts, leaders)
        some = {run for run in gone if partition_of(topics, run.run_id) == number}
        _look_up(some, lives, topics, report)
        for life, _ in lives.values():
            at = Partition(topics.run(life.run_id, life.log_id), 0)
            if life.deleted or at in signed or run_id not in (None, life.run_id):
                continue
            if (fault := await _unsigned(log, at, unsigned_seconds, leaders)) is not None:
                report.faults.append(ChainFault("unsigned log", f"run {life.run_id}", fault))
        yield report
    if run_id is not None and not (report.logs or report.deletions or report.faults):
        report.faults.append(ChainFault("unsigned log", f"run {run_id}", "no head of this run was signed"))
        yield report


def _unread(error: LogGoneError | ArchiveDamagedError, name: str) -> ChainFault:
    if isinstance(error, ArchiveDamagedError):
        return ChainFault("damaged archive", name, error.reason)
    return ChainFault("missing log", name, f"Kafka has no topic {error.topic}")


def _look_up(
    gone: Iterable[RunTopic], lives: Mapping[bytes, CatalogLife], topics: Topics, report: ChainReport
) -> None:
    """Decides by the catalog whether logs that are gone were deleted. MongoDB could be changed to
    say so by those who changed a log.
    """
    by_run = {life.run_id: (life, time_ms) for life, time_ms in lives.values() if life.deleted}
    for run in sorted(gone):
        life, time_ms = by_run.get(run.run_id, (None, 0))
        if life is not None and life.log_id == run.log_id:
            at = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
            report.deletions.append(Deletion(run.run_id, run.log_id, at))
        else:
            detail = f"Kafka has no topic {topics.run(run.run_id, run.log_id)}, and the catalog no deletion"
            report.faults.append(ChainFault("missing log", f"run {run.run_id}", detail))


async def _lives(
    log: LogSettings, number: int, verdicts: Verdicts, leaders: Leaders
) -> dict[bytes, CatalogLife]:
    """The lives of a partition of the catalog."""
    lives: dict[bytes, CatalogLife] = {}
    reading = read_settled(log, Partition(log.topics.catalog, number), verdicts, leaders=leaders)
    async with aclosing(reading):
        with suppress(LogGoneError):
            async for records in reading:
                for record in filter(is_life, records):
                    key = record.key or b""
                    before = lives[key].life if key in lives else None
                    life = folded_life(before, key, record.value)
                    if life is not None and life is not before:
                        lives[key] = CatalogLife(life, record.log_time)
    return lives


async def _unsigned(log: LogSettings, at: Partition, seconds: float, leaders: Leaders) -> str | None:
    """The fault of a log without a head, None if it is empty or new."""
    reading = read(log, at.topic, end=1, leaders=leaders)
    async with aclosing(reading):
        try:
            async for first, *_ in reading:
                is_new = time.time() - first.log_time / 1000 < seconds
                return None if is_new else "no head of its log was signed"
        except LogGoneError:
            return "no head of its log was signed, and the log is gone"
        except ArchiveDamagedError as error:
            return f"no head of its log was signed, and the archive is damaged: {error.reason}"
    return None


def compare(heads: Sequence[SignedHead], copies: Copies) -> Iterator[tuple[str, str]]:
    """The differences between signed heads, in order, and the copies of one log."""
    states, begin = dict.fromkeys(copies, START), 0
    for end, same in _by_offset(heads):
        if len(same) > 1:
            yield "contradiction", f"two different heads were signed for the records before offset {end}"
            return
        parts = {name: _between(copy, begin, end) for name, copy in copies.items()}
        states = {
            name: extend_by_digests(states[name], [part[offset].digest for offset in sorted(part)])
            for name, part in parts.items()
        }
        right = [name for name, state in states.items() if head_of(state) in same]
        if not right:
            where = f"the records of the offsets {begin} to {end - 1}"
            yield "changed records", f"{where} are not those that were signed, in {' and in '.join(copies)}"
            # A link cannot be computed from the signed head, so nothing behind it can be checked.
            return
        for name in copies:
            if name not in right:
                # Behind the last head, a copy may have what an attacker appended.
                signed = _between(copies[right[0]], 0, heads[-1].next_offset)
                for kind, offsets in _differences(signed, copies[name], range(begin, end)):
                    yield kind, f"{name}: {_in_words(offsets)}"
                states[name] = states[right[0]]
        begin = end


def _by_offset(heads: Iterable[SignedHead]) -> Iterator[tuple[int, set[bytes]]]:
    by_offset: dict[int, set[bytes]] = defaultdict(set)
    for next_offset, head in heads:
        by_offset[next_offset].add(head)
    yield from sorted(by_offset.items())


def _between(copy: Mapping[int, Seen], begin: int, end: int) -> dict[int, Seen]:
    # Between two segments of a log there is a gap of a million offsets.
    offsets = range(begin, end) if end - begin < len(copy) else (each for each in copy if begin <= each < end)
    return {offset: copy[offset] for offset in offsets if offset in copy}


def _differences(
    right: Mapping[int, Seen], wrong: Mapping[int, Seen], offsets: range
) -> Iterator[tuple[str, list[int]]]:
    """The kinds of differences within these offsets, each with the offsets that have them. Where
    records went is looked for at all offsets, but `right` has signed records only.
    """
    in_right, in_wrong = _places(right), _places(wrong)
    kinds: dict[str, list[int]] = defaultdict(list)
    for offset in offsets:
        before, after = right.get(offset), wrong.get(offset)
        if before == after:
            continue
        if before and after and before.content == after.content:
            kinds["changed time"].append(offset)
            continue
        is_gone = before is not None and not in_wrong[before.content] - in_right[before.content]
        is_new = after is not None and not in_right[after.content] - in_wrong[after.content]
        if is_gone and is_new:
            kinds["changed record"].append(offset)
            continue
        if is_gone:
            kinds["removed record"].append(offset)
        if after is not None:
            kinds["inserted record" if is_new else "moved record"].append(offset)
    yield from kinds.items()


def _places(copy: Mapping[int, Seen]) -> dict[bytes, set[int]]:
    places: dict[bytes, set[int]] = defaultdict(set)
    for offset, seen in copy.items():
        places[seen.content].add(offset)
    return places


def _in_words(offsets: Sequence[int]) -> str:
    ranges: list[tuple[int, int]] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1] = (ranges[-1][0], offset)
        else:
            ranges.append((offset, offset))
    words = [str(first) if first == last else f"{first} to {last}" for first, last in ranges]
    return f"offset {words[0]}" if len(offsets) == 1 else f"offsets {', '.join(words)}"


async def _signed_heads(
    log: LogSettings, trusted: Collection[str], report: ChainReport, copied: Copied | None
) -> dict[Partition, set[SignedHead]]:
    """The signed heads of each log. Faults of the trees are added to the report. A tree names the
    head of all trees before it, so the newest copy in the bucket is enough.
    """
    signed: dict[Partition, set[SignedHead]] = defaultdict(set)
    own = Heads()
    trees = read_trees(log, trusted)
    async with aclosing(trees):
        async for logged in _until_gone(trees):
            if copied is not None and copied == (logged.record.offset, logged.record.value):
                copied = None
            where = f"tree at offset {logged.record.offset}"
            if (fault := own.take(logged)) is not None:
                report.faults.append(ChainFault("changed trees", where, fault))
            if logged.tree is None:
                report.faults.append(ChainFault("forged tree", where, logged.fault))
                continue
            report.trees += 1
            report.last_time = logged.tree.statement.time
            for leaf in logged.tree.leaves:
                signed[leaf.at].add(SignedHead(leaf.next_offset, leaf.head))
    if copied is not None:
        detail = "the bucket has another tree of this offset, or the topic has none any more"
        report.faults.append(ChainFault("changed trees", f"tree at offset {copied.offset}", detail))
    return signed


async def _until_gone(trees: AsyncIterator[LoggedTree]) -> AsyncIterator[LoggedTree]:
    """The trees. None if there is no topic of them."""
    try:
        async for logged in trees:
            yield logged
    except LogGoneError:
        return


async def _logged(log: LogSettings, at: Partition, leaders: Leaders) -> dict[int, Seen]:
    seen: dict[int, Seen] = {}
    reading = read(log, at.topic, partition=at.partition, leaders=leaders)
    async with aclosing(reading):
        async for records in reading:
            seen |= _seen(records)
    return seen


async def _stored(pages: PageStore, log_id: str) -> dict[int, Seen]:
    """The records of the stored pages. Pages that are damaged are left out: the comparison with the
    log names them.
    """
    seen: dict[int, Seen] = {}
    async for document in pages.documents(log_id):
        try:
            found = _seen(page_of(document).records())
        except DamagedError:
            continue
        for offset, each in found.items():
            # Of two pages with different records, the wrong one may be the one that is read.
            if seen.setdefault(offset, each) != each:
                seen[offset] = Seen(b"", b"")
    return seen


def _seen(records: Sequence[Record]) -> dict[int, Seen]:
    contents = packed_records(record._replace(offset=0, log_time=0) for record in records)
    return {
        record.offset: Seen(digest_of(packed), sha256(content).digest())
        for record, packed, content in zip(records, packed_records(records), contents, strict=True)
    }
