"""Sealing of events before they are appended, and revealing of what is read.

    event -- seal --> skeleton with a ciphertext -- Kafka, projector, MongoDB --> reveal --> event

A sealed event is its skeleton with a last member `sealed`. The plaintext of that is the event from
its data on, byte for byte. What comes before is clear, and is the associated data: the event's id,
its run and its time.
"""

import hmac
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import compress
from typing import Any, TypeVar
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import from_json

from runfold.encryption.cipher import decrypt, place, seal_text
from runfold.encryption.fields import ERASED
from runfold.encryption.keys import SubjectKeys, UnknownKeyError
from runfold.encryption.places import RunPlaces, memory_place, revision_place
from runfold.encryption.records import END, ERASED_VALUE, HEAD_END, MEMBER, key_of, reveal_records
from runfold.encryption.seal import Seal
from runfold.encryption.sealed_text import parse_text
from runfold.encryption.skeleton import Skeletons, is_clear_state
from runfold.encryption.subjects import subject_of_event, subject_of_life, subject_of_session
from runfold.encryption.wrapping import wrapping_of
from runfold.log.leaders import Leaders
from runfold.log.publisher import Publisher
from runfold.log.settings import LogSettings
from runfold_projections.admission import Admitted
from runfold_projections.memory import MemoryRecord, Revision
from runfold_projections.run import RunRecord
from runfold_projections.session import SessionRecord
from runfold_schemas.catalog import Life
from runfold_schemas.codec import Record, Row, decode_again, encode_unchecked
from runfold_schemas.errors import UnavailableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import NO_RUN, Memory, memory_key

ModelT = TypeVar("ModelT", bound=BaseModel)
RecordT = TypeVar("RecordT", bound=RunRecord)
ResultT = TypeVar("ResultT")


@asynccontextmanager
async def open_sealing(
    settings: LogSettings, publisher: Publisher | None = None, *, leaders: Leaders | None = None
) -> AsyncIterator["Sealing"]:
    """The sealing by the configured key, connected: see `sealing_of`."""
    sealing = sealing_of(settings, publisher, leaders=leaders)
    async with sealing.keys:
        yield sealing


def sealing_of(
    settings: LogSettings, publisher: Publisher | None = None, *, leaders: Leaders | None = None
) -> "Sealing":
    """The sealing by the configured key. It is connected when its `keys` are entered. Without a
    publisher, it only reveals. With `leaders`, it uses their client for Kafka. Raises
    `ConfigurationError`.
    """
    assert settings.encryption_key is not None
    keys = SubjectKeys(settings, wrapping_of(settings.encryption_key), publisher, leaders=leaders)
    return Sealing(keys, clear_labels=settings.encryption_clear_labels or ())


class Sealing:
    """Seals and reveals by the keys of one tenant."""

    def __init__(self, keys: SubjectKeys, *, clear_labels: Iterable[str] = ()) -> None:
        self.keys = keys
        self._clear_labels = frozenset(clear_labels)
        self._event_place = place(keys.prefix, "event", "")

    @property
    def epoch(self) -> object:
        """Another value after each destruction of keys."""
        return self.keys.epoch

    def of_life(self, life: Life) -> Seal:
        """Seals events of a life of a run: those of `seal_value`, whose subject may be another."""
        subject = subject_of_life(life)
        return partial(self.seal_value, subject=subject, owner=subject)

    async def content_id(self, content: bytes, subject: str) -> str:
        """The id of an event that is made of its content. Without the subject's key, nobody can try
        which content has this id. Raises `UnavailableError`.
        """
        digest = hmac.digest(await self.keys.secret(subject), content, "sha256")
        return str(UUID(bytes=digest[:16]))

    async def seal(self, event: AnyEvent, subject: str, *, is_whole: bool = True) -> AnyEvent:
        """The event as it is stored. A memory is sealed for the user of its scope. If `is_whole` is
        false, only values that folds copy can be revealed. Raises `InvalidEventError` if a
        ciphertext is too long for its field, and `UnavailableError`.
        """
        skeleton, text = await self._sealed(event, subject, None, is_whole=is_whole)
        return skeleton if text is None else skeleton.model_copy(update={"sealed": text})

    async def seal_value(
        self, event: AnyEvent, value: bytes, *, subject: str, owner: str | None = None
    ) -> tuple[AnyEvent, bytes]:
        """The clear part of an encoded event, and the event's bytes as they are stored. `owner` is
        the run's subject, if the event is sealed for another one.
        """
        skeleton, text = await self._sealed(event, subject, value, owner=owner)
        encoded = encode_unchecked(skeleton)
        if text is None:
            return skeleton, encoded
        return skeleton, b"".join((encoded[:-1], MEMBER, text.encode(), END))

    async def _sealed(
        self,
        event: AnyEvent,
        subject: str,
        value: bytes | None,
        *,
        is_whole: bool = True,
        owner: str | None = None,
    ) -> tuple[AnyEvent, str | None]:
        """The event's clear part, and the ciphertext of the whole if there is any."""
        key = await self.keys.of(subject_of_event(event) or subject)
        places = RunPlaces(self.keys.prefix, owner or subject, event.run_id)
        seal = partial(seal_text, key.cipher, key.key_id)
        skeletons = Skeletons(event, seal, places, self._clear_labels)
        skeleton, lacks = skeletons.of_event()
        if not lacks and not (is_whole and skeletons.has_copies()):
            return skeleton, None
        value = encode_unchecked(event) if value is None else value
        end = value.index(HEAD_END)
        return skeleton, seal(value[end:], self._event_place + value[:end])

    async def reveal(self, records: Sequence[Row]) -> list[Record]:
        """The records with the events as they were before they were sealed."""
        return await self._opened(lambda: self._records(records))

    async def is_erased(self, record: Record) -> bool:
        """Whether the key of a sealed event was destroyed or lost."""
        key_id = key_of(record.value or b"")
        return key_id is not None and await self._opened(lambda: self.keys.cipher(key_id) is None)

    async def reveal_admitted(self, admitted: Sequence[Admitted]) -> list[Admitted]:
        return await self._opened(lambda: self._admitted(admitted))

    async def reveal_state(
        self, values: Mapping[str, Any], subject: str, run_id: str = NO_RUN
    ) -> dict[str, Any]:
        """Values of a run of the subject, and values of the subject's user."""
        places = RunPlaces(self.keys.prefix, subject, run_id)
        return await self._opened(lambda: self._state(values, places))

    async def reveal_run(self, record: RecordT) -> RecordT:
        return await self._opened(lambda: self._run(record))

    async def reveal_session(self, record: SessionRecord) -> SessionRecord:
        return await self._opened(lambda: self._session(record))

    async def reveal_memory(self, record: MemoryRecord) -> MemoryRecord:
        return await self._opened(lambda: self._memory(record))

    async def reveal_revision(self, revision: Revision) -> Revision:
        return await self._opened(lambda: self._revision(revision))

    async def _opened(self, work: Callable[[], ResultT]) -> ResultT:
        has_looked = waited = False
        while True:
            try:
                if not has_looked:
                    return work()
                with await self.keys.all_read():
                    return work()
            except UnknownKeyError:
                has_looked = True
            except UnavailableError:
                if waited:
                    raise
                waited = True
                await self.keys.ready()

    def _admitted(self, admitted: Sequence[Admitted]) -> list[Admitted]:
        records = self._records([each.record for each in admitted])
        opened = [
            each.event is not None and record.value is not each.record.value
            for each, record in zip(admitted, records, strict=True)
        ]
        events = iter(decode_again([record.value or b"" for record in compress(records, opened)]))
        return [
            each._replace(record=record, event=next(events) if is_opened else each.event)
            for each, record, is_opened in zip(admitted, records, opened, strict=True)
        ]

    def _records(self, rows: Iterable[Row]) -> list[Record]:
        return reveal_records(rows, event_place=self._event_place, cipher_of=self.keys.cipher)

    def _plain(self, text: str, at: bytes) -> bytes | None:
        """The value behind a ciphertext; None if the text is none, or belongs elsewhere."""
        sealed = parse_text(text.encode(errors="replace"))
        if sealed is None:
            return None
        cipher = self.keys.cipher(sealed.key_id)
        return ERASED_VALUE if cipher is None else decrypt(cipher, sealed.ciphertext, at)

    def _value(self, value: Any, at: bytes) -> Any:
        plain = self._plain(value, at) if isinstance(value, str) else None
        return value if plain is None else from_json(plain)

    def _state(self, values: Mapping[str, Any], places: RunPlaces) -> dict[str, Any]:
        return {
            key: value if is_clear_state(key) else self._value(value, places.of_state(key))
            for key, value in values.items()
        }

    def _labels(self, labels: Mapping[str, str], places: RunPlaces) -> dict[str, str]:
        return {key: self._value(text, places.of("label", key)) for key, text in labels.items()}

    def _run(self, record: RecordT) -> RecordT:
        if not record.labels and record.error is None:
            return record
        places = RunPlaces(self.keys.prefix, subject_of_life(record), record.run_id)
        error = self._value(record.error, places.of("error", ""))
        return record.model_copy(update={"labels": self._labels(record.labels, places), "error": error})

    def _session(self, record: SessionRecord) -> SessionRecord:
        subject = subject_of_session(record.session_id, record.user)
        places = RunPlaces(self.keys.prefix, subject, record.run_id)
        name = self._value(record.display_name, places.of("display_name", ""))
        return record.model_copy(update={"labels": self._labels(record.labels, places), "display_name": name})

    def _memory(self, record: MemoryRecord) -> MemoryRecord:
        memory = self._scoped(record.bank_id, record.memory_id, record.memory)
        return record if memory is record.memory else record.model_copy(update={"memory": memory})

    def _revision(self, revision: Revision) -> Revision:
        bank_id, memory_id, memory = revision.bank_id, revision.memory_id, revision.memory
        at = partial(revision_place, self.keys.prefix, memory_key(bank_id, memory_id), revision.revision_id)
        update = {
            "memory": None if memory is None else self._scoped(bank_id, memory_id, memory),
            "extracted": tuple(self._model(at(), each) for each in revision.extracted),
            "labels": {key: self._value(text, at(key)) for key, text in revision.labels.items()},
        }
        return revision.model_copy(update=update)

    def _scoped(self, bank_id: str, memory_id: str, memory: Memory) -> Memory:
        key = memory_key(bank_id, memory_id)
        return self._model(memory_place(self.keys.prefix, key, memory.scope), memory)

    def _model(self, at: bytes, model: ModelT) -> ModelT:
        text = (model.__pydantic_extra__ or {}).get("sealed")
        plain = self._plain(text, at) if isinstance(text, str) else None
        if plain is None:
            return model
        if plain is ERASED_VALUE:
            return model.model_copy(update={"fact": ERASED, "sealed": ERASED})
        return type(model).model_validate_json(plain)
