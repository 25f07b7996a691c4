"""Dead letters: the records that could not be decoded, as the topic of dead letters has them. If
the tenant's clients encrypt, the topic has their places alone, and the records are in their logs.

Publishing the event of a dead letter again leaves a trace: the dead letter is appended once more,
with the place of the new event in its headers. The newest record of a key counts.
"""

import asyncio
import re
from base64 import b64encode
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from runfold.client.connection import LogConnection
from runfold.client.run import Run
from runfold.client.runfold import Runfold
from runfold.documents.dead_letters import DeadLetterDocument, DeadLetterEntry, DeadLetterPage, Requeued
from runfold.encryption.fields import ERASED, PLACEHOLDER
from runfold.encryption.sealed_text import MARK
from runfold.encryption.sealing import Sealing
from runfold.log.effect_keys import may_change_others
from runfold.log.leaders import Leaders
from runfold.log.publisher import Outgoing
from runfold.log.reader import LogGoneError, offset_range, read
from runfold.log.settings import LogSettings
from runfold.query.requeued_events import event_of_record, mended_event
from runfold_projections.admission import Admitted, reason_without_content
from runfold_projections.state import changes_others
from runfold_schemas.codec import Headers, Record
from runfold_schemas.cursors import decode_offset, encode_offset
from runfold_schemas.errors import DeadLetterNotFoundError, InvalidEventError
from runfold_schemas.events import AnyEvent
from runfold_schemas.topics import Topics

LISTED_MAX: Final = 20_000
"""The newest dead letters are listed, because the process remembers where they are."""

LISTED_BYTES_MAX: Final = 128_000_000
"""Older ones are not read once the newer ones that are read have so many bytes."""

_PORTION: Final = 50
"""The number of records that are read first. Each further portion is four times as large."""

_PREFIX: Final = "runfold-"
"""The names of the headers that a dead letter has beside those of its record begin so."""

_TOPIC: Final = "runfold-origin-topic"
_OFFSET: Final = "runfold-origin-offset"
_REASON: Final = "runfold-reason"
_CUT: Final = "runfold-cut"
_BYTES: Final = "runfold-record-bytes"
"""The size of a record that the dead letter lacks, because its log alone has it."""
_REQUEUED: Final = "runfold-requeued"

# Any program may write to the topic.
_PARTITION: Final = re.compile("[0-9]{1,9}")
_OFFSET_DIGITS: Final = re.compile("[0-9]{1,18}")


_REQUEUED_JSON: Final = TypeAdapter(Requeued)

Check = Callable[[Run, AnyEvent], Awaitable[None]]
"""Raises `ForbiddenError` if the event may not be appended to the run."""


class _Letter(NamedTuple):
    """A dead letter, with the offsets of its first and of its newest copy."""

    first: int
    newest: int
    entry: DeadLetterEntry


class _Copy(NamedTuple):
    """What is kept of a record of the topic. `entry` is None if it erases its dead letter."""

    offset: int
    letter_id: str
    entry: DeadLetterEntry | None


class DeadLetters:
    """The dead letters of one tenant. Every method may raise `UnavailableError`."""

    def __init__(self, settings: LogSettings, *, leaders: Leaders | None = None) -> None:
        self._settings = settings
        self._leaders = leaders
        self._topic = settings.topics.dead_letters
        self._position = 0
        self._letters: dict[str, _Letter] = {}
        """By id, in the order of the first copies."""
        self._looking: asyncio.Task[None] | None = None

    async def list(
        self,
        *,
        topic: str | None = None,
        run_id: str | None = None,
        requeued: bool | None = None,
        limit: int,
        cursor: str | None = None,
    ) -> DeadLetterPage:
        """A page, the newest first. Raises `InvalidEventError` for a foreign cursor."""
        before = None if cursor is None else decode_offset(cursor)
        await self._look()
        matching = [
            (first, entry)
            for first, _, entry in reversed(list(self._letters.values()))
            if (before is None or first < before)
            and topic in (None, entry.topic)
            and run_id in (None, entry.run_id)
            and requeued in (None, entry.requeued is not None)
        ]
        page = matching[:limit]
        next_cursor = encode_offset(page[-1][0]) if len(matching) > limit else None
        return DeadLetterPage(dead_letters=[entry for _, entry in page], next_cursor=next_cursor)

    async def count(self) -> int:
        """The number of dead letters whose event was not published again."""
        await self._look()
        return sum(letter.entry.requeued is None for letter in self._letters.values())

    async def get(self, letter_id: str, *, sealing: Sealing | None) -> DeadLetterDocument:
        """The dead letter with what its record says. Without the key, that is hidden if the
        tenant's clients encrypt. Raises `DeadLetterNotFoundError`.
        """
        entry, letter = await self._find(letter_id)
        headers, value = await self._content(entry, letter, sealing)
        return DeadLetterDocument(
            **dict(entry),
            key=None if letter.key is None else letter.key.decode("utf-8", "replace"),
            headers=[(name, _shown(header)) for name, header in headers if not name.startswith(_PREFIX)],
            value=_text(value),
            value_base64=b64encode(value).decode(),
        )

    async def _content(
        self, entry: DeadLetterEntry, letter: Record, sealing: Sealing | None
    ) -> tuple[Headers, bytes]:
        """The headers and the value of the record, as this process may show them."""
        is_hidden = _BYTES in _own_headers(letter) or MARK.encode() in (letter.value or b"")
        if sealing is None and is_hidden:
            return (), PLACEHOLDER.encode()
        record = await self._record(entry, letter)
        if record is None:
            return (), ERASED.encode()
        if sealing is not None:
            (record,) = await sealing.reveal([record])
        return record.headers, record.value or b""

    async def requeue(
        self,
        letter_id: str,
        runfold: Runfold,
        *,
        event: dict[str, Any] | None = None,
        by: str,
        check: Check | None = None,
    ) -> DeadLetterEntry:
        """Publishes the event of a dead letter at the end of its run, or `event` in its place. A
        repetition publishes nothing. Raises `DeadLetterNotFoundError`, `InvalidEventError` if the
        event still cannot be decoded or nobody has signed its effects, and as `check` and
        `Run.publish`.
        """
        entry, letter = await self._find(letter_id)
        if entry.requeued is not None:
            return entry
        run = await runfold.get_run(_run_of(entry))
        if event is not None:
            published = mended_event(event, entry.id, run_id=run.run_id, timestamp=entry.buried_at)
        else:
            published = await self._event_of_record(entry, letter, run.run_id, runfold.connection)
        if check is not None:
            await check(run, published)
        if runfold.connection.topics.run(run.run_id, run.life.log_id) != entry.topic:
            raise InvalidEventError(f"run {run.run_id!r} was deleted and opened again: its log is another")
        (position,) = await run.publish_batch([published], late=run.ended)
        requeued = Requeued(
            run_id=run.run_id,
            offset=position.offset,
            event_id=published.event_id,
            by=by,
            at=datetime.now(UTC),
        )
        trace = (_REQUEUED, requeued.model_dump_json().encode())
        publisher = runfold.connection.publisher
        is_encrypted = runfold.connection.sealing is not None
        outgoing = _without_content(letter, trace) if is_encrypted else _whole(letter, trace)
        await publisher.wait(await publisher.send(self._topic, outgoing, partition=0))
        return entry.model_copy(update={"requeued": requeued})

    async def _event_of_record(
        self, entry: DeadLetterEntry, letter: Record, run_id: str, connection: LogConnection
    ) -> AnyEvent:
        """The event as its record has it. Raises `InvalidEventError`."""
        record = await self._record(entry, letter)
        if record is None:
            raise InvalidEventError("the log of the record is deleted, and the record with it")
        sealing, revealed = connection.sealing, record
        if sealing is not None:
            (revealed,) = await sealing.reveal([record])
            if await sealing.is_erased(record):
                raise InvalidEventError(
                    "the key of the event is destroyed: send a mended `event`", field="event"
                )
        if entry.is_cut:
            raise InvalidEventError(
                "the dead letter lacks the end of its record: send a mended `event`", field="event"
            )
        published = event_of_record(revealed, run_id=run_id)
        keys = connection.settings.effect_keys
        if changes_others(published) and not may_change_others(keys, entry.topic, record):
            raise InvalidEventError(
                "the record has no valid signature for what it changes beyond its run: send the `event`",
                field="event",
            )
        return published

    async def _find(self, letter_id: str) -> tuple[DeadLetterEntry, Record]:
        await self._look()
        if letter_id not in self._letters:
            raise DeadLetterNotFoundError(letter_id)
        _, newest, entry = self._letters[letter_id]
        async with aclosing(self._records(newest, newest + 1)) as records:
            async for record in records:
                return entry, record
        raise DeadLetterNotFoundError(letter_id)

    async def _record(self, entry: DeadLetterEntry, letter: Record) -> Record | None:
        """The record that could not be decoded. None if it is gone with its log."""
        if _BYTES not in _own_headers(letter):
            return letter
        # Any program may write to the topic of dead letters. It shows no topic of others by that.
        if entry.run_id is None and entry.topic not in self._settings.topics.shared:
            return None
        reading = read(
            self._settings,
            entry.topic,
            partition=entry.partition or 0,
            first_offset=entry.offset,
            end=entry.offset + 1,
            leaders=self._leaders,
        )
        try:
            async with aclosing(reading) as fetches:
                async for records in fetches:
                    return next((record for record in records if record.offset == entry.offset), None)
        except LogGoneError:
            pass
        return None

    async def _look(self) -> None:
        """Waits for a reading of the topic that begins now. A caller that is cancelled leaves the
        reading at work, because the next one would begin at the first record again.
        """
        before = self._looking
        if before is not None and not before.done():
            await asyncio.wait([before])
        if self._looking is before:  # no other caller that waited has begun one
            self._looking = asyncio.create_task(self._read_new())
            self._looking.add_done_callback(_retrieve)
        looking = self._looking
        assert looking is not None
        await asyncio.wait([looking])
        looking.result()

    async def _read_new(self) -> None:
        """Reads what is new in the topic, and forgets what the topic has no longer."""
        try:
            begin, end = await offset_range(self._settings, self._topic, self._leaders)
        except LogGoneError:
            return
        if end < self._position:  # the topic was made anew
            self._letters, self._position = {}, 0
        for copy in await self._copies(max(self._position, begin, end - LISTED_MAX), end):
            self._take(copy)
        self._position = end
        for letter_id in [name for name, letter in self._letters.items() if letter.newest < begin]:
            del self._letters[letter_id]
        while len(self._letters) > LISTED_MAX:
            del self._letters[next(iter(self._letters))]

    async def _copies(self, begin: int, end: int) -> Sequence[_Copy]:
        """The records in this range, read in portions from the newest on. The oldest are left out
        if there are too many bytes.
        """
        copies: deque[_Copy] = deque()
        size, length = 0, _PORTION
        while begin < end and size < LISTED_BYTES_MAX:
            first, portion = max(begin, end - length), deque[_Copy]()
            async for record in self._records(first, end):
                portion.appendleft(_copy(self._settings.topics, record))
                size += len(record.value or b"")
            copies.extendleft(portion)
            end, length = first, length * 4
        return copies

    async def _records(self, begin: int, end: int) -> AsyncGenerator[Record, None]:
        reading = read(self._settings, self._topic, first_offset=begin, end=end, leaders=self._leaders)
        if begin < end:
            async with aclosing(reading) as fetches:
                async for records in fetches:
                    for record in records:
                        yield record

    def _take(self, copy: _Copy) -> None:
        offset, letter_id, entry = copy
        if entry is None:
            self._letters.pop(letter_id, None)
            return
        first, _, known = self._letters.get(letter_id, (offset, offset, entry))
        entry = known.model_copy(update={"requeued": known.requeued or entry.requeued})
        self._letters[letter_id] = _Letter(first, offset, entry)


def _retrieve(looking: asyncio.Task[None]) -> None:
    """Notes the error of a reading that has no callers any more, so that nothing is logged."""
    if not looking.cancelled():
        looking.exception()


def _copy(topics: Topics, record: Record) -> _Copy:
    letter_id = (record.key or b"").decode("utf-8", "replace")
    is_erased = record.value is None and not record.headers
    return _Copy(record.offset, letter_id, None if is_erased else _entry(topics, letter_id, record))


def _entry(topics: Topics, letter_id: str, record: Record) -> DeadLetterEntry:
    texts = _own_headers(record)
    origin = texts.get(_TOPIC, letter_id.rpartition(":")[0])
    run = topics.parse_run(origin)
    topic, _, partition = (origin, "", "") if run is not None else origin.rpartition("-")
    return DeadLetterEntry(
        id=letter_id,
        topic=topic or origin,
        partition=int(partition) if _PARTITION.fullmatch(partition) else None,
        offset=_number(texts.get(_OFFSET), 0),
        run_id=run.run_id if run is not None else None,
        reason=texts.get(_REASON, ""),
        buried_at=datetime.fromtimestamp(record.log_time / 1000, UTC),
        bytes=_number(texts.get(_BYTES), len(record.value or b"")),
        is_cut=_CUT in texts,
        requeued=_requeued(texts.get(_REQUEUED)),
    )


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and _OFFSET_DIGITS.fullmatch(text) else default


def _whole(letter: Record, trace: tuple[str, bytes]) -> Outgoing:
    return Outgoing(key=letter.key, value=letter.value, headers=[*letter.headers, trace])


def _without_content(letter: Record, trace: tuple[str, bytes]) -> Outgoing:
    """The same for a dead letter that may be from before encryption was switched on."""
    own = list(letter.headers[_begin_of_own(letter) :])
    if _BYTES not in dict(own):
        own.append((_BYTES, str(len(letter.value or b"")).encode()))
        record = letter._replace(headers=letter.headers[: _begin_of_own(letter)])
        reason = _shown(dict(own).get(_REASON))
        reason = reason_without_content(Admitted(record, "undecodable", None, reason))
        own = [(name, reason.encode() if name == _REASON else value) for name, value in own]
    return Outgoing(key=letter.key, value=b"", headers=[*own, trace])


def _shown(header: bytes | None) -> str:
    """Kafka allows headers without a value."""
    return (header or b"").decode("utf-8", "replace")


def _own_headers(record: Record) -> dict[str, str]:
    """The headers that Runfold put behind those of the record, whose producer may have used the
    same names.
    """
    own = record.headers[_begin_of_own(record) :]
    return {name: _shown(value) for name, value in own}


def _begin_of_own(record: Record) -> int:
    names = [name for name, _ in record.headers]
    return len(names) - names[::-1].index(_TOPIC) - 1 if _TOPIC in names else len(names)


def _requeued(text: str | None) -> Requeued | None:
    try:
        return _REQUEUED_JSON.validate_json(text) if text is not None else None
    except ValidationError:
        return None  # any program may write to the topic


def _run_of(entry: DeadLetterEntry) -> str:
    if entry.run_id is None:
        raise InvalidEventError("the record is of a shared topic: `runfold rebuild` reads it once more")
    return entry.run_id


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
