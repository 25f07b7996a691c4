"""The records that carry the events of runs."""

import asyncio
from collections.abc import Sequence
from typing import Final

from runfold.blobs.log_blobs import LogBlobs
from runfold.client.envelope import naming_index
from runfold.encryption.seal import Seal
from runfold.log.effect_keys import EffectSigner
from runfold.log.encoding import encoded, encoded_exactly
from runfold.log.publisher import Outgoing, record_size
from runfold.telemetry.trace_context import event_traceparent
from runfold.token_notes import token_note
from runfold_projections.usage import tokens_of
from runfold_schemas.codec import check_exact, check_new, encode_unchecked, headers
from runfold_schemas.errors import EventTooLargeError
from runfold_schemas.events import AnyEvent, TokenUsageEvent
from runfold_schemas.topics import RECORD_BYTES_MAX

_PAUSE_BYTES: Final = 256 * 1024
"""Encoded events between two pauses of the event loop: some 5 ms."""


def stored_json(event: AnyEvent) -> bytes:
    """The event as JSON, in which halves of surrogate pairs are U+FFFD. Raises `InvalidEventError`
    if JSON cannot carry the event exactly.
    """
    _, value = encoded_exactly(event)
    return value


def outgoing(event: AnyEvent, *, source: str, signer: EffectSigner | None = None) -> Outgoing:
    """The record that carries an event. Its key lets consumers of many topics group by run.

    `source` is the `ce_source` header, and `signer` adds the headers of a trusted publisher. Halves
    of surrogate pairs become U+FFFD. Raises `InvalidEventError` if JSON cannot carry the event
    exactly, or if the event is nested too deep.
    """
    stored, value = encoded(event)
    record = _unchecked(stored, value, source=source, signer=signer)
    check_exact(stored, value)
    return record


async def stored_in_turns(
    event: AnyEvent,
    *,
    source: str,
    signer: EffectSigner | None = None,
    blobs: LogBlobs | None = None,
    seal: Seal | None = None,
) -> tuple[AnyEvent, Outgoing]:
    """The event as the log gets it, and its record. The event is published alone: it may not be too
    large. If it is large, the event loop serves others between the steps. The bytes that `blobs`
    takes are stored first.
    """
    first_signer = signer if seal is None else None
    event, record = await _with_blobs_stored(event, blobs, source=source, signer=first_signer)
    # Checked first, because decoding an event again takes several times its size.
    check_size([record])
    if len(record.value or b"") > _PAUSE_BYTES:
        await asyncio.sleep(0)
    check_exact(event, record.value or b"")
    if seal is not None:
        event, record = await _sealed(event, record, seal, signer)
        check_size([record])
    return event, record


async def batch_in_turns(
    events: Sequence[AnyEvent],
    *,
    source: str,
    signer: EffectSigner | None = None,
    blobs: LogBlobs | None = None,
    seal: Seal | None = None,
) -> tuple[list[AnyEvent], list[Outgoing]]:
    """The events of a batch as the log gets them, and their records. The bytes that `blobs` takes
    are stored first. An `InvalidEventError` has the index of its event. Raises `EventTooLargeError`
    if the topic would refuse these records as one batch.
    """
    records: list[Outgoing] = []
    stored_events: list[AnyEvent] = []
    size = unpaused = 0
    first_signer = signer if seal is None else None
    for index, event in enumerate(events):
        with naming_index(index):
            stored, record = await _with_blobs_stored(event, blobs, source=source, signer=first_signer)
            check_exact(stored, record.value or b"")
            if seal is not None:
                stored, record = await _sealed(stored, record, seal, signer)
        stored_events.append(stored)
        records.append(record)
        size += (added := record_size(records[-1]))
        if added > RECORD_BYTES_MAX:
            raise EventTooLargeError(size=added, limit=RECORD_BYTES_MAX)
        if size > RECORD_BYTES_MAX:
            raise EventTooLargeError(size=size, limit=RECORD_BYTES_MAX, events=len(records))
        unpaused += added
        if unpaused > _PAUSE_BYTES:
            unpaused = 0
            await asyncio.sleep(0)
    return stored_events, records


async def _sealed(
    event: AnyEvent, record: Outgoing, seal: Seal, signer: EffectSigner | None
) -> tuple[AnyEvent, Outgoing]:
    sealed, value = await seal(event, record.value or b"")
    stored = record._replace(value=value)
    if signer is not None:
        # A signature is of the bytes that are stored.
        stored = stored._replace(headers=[*record.headers, *signer(sealed, value)])
    return sealed, stored


async def _with_blobs_stored(
    event: AnyEvent, blobs: LogBlobs | None, *, source: str, signer: EffectSigner | None
) -> tuple[AnyEvent, Outgoing]:
    """The event as the log gets it, and its record before `check_exact`."""
    event, value = encoded(event)
    if blobs is not None and blobs.may_take(len(value)):
        taken = await blobs.take(event)
        if taken is not event:
            event, value = taken, encode_unchecked(taken)
    return event, _unchecked(event, value, source=source, signer=signer)


def _unchecked(event: AnyEvent, value: bytes, *, source: str, signer: EffectSigner | None) -> Outgoing:
    all_headers = headers(event, source=source)
    if signer is not None:
        all_headers += signer(event, value)
    if (traceparent := event_traceparent()) is not None:
        all_headers.append(("traceparent", traceparent.encode()))
    record = Outgoing(key=event.run_id.encode(), value=value, headers=all_headers)
    check_new(value)
    if isinstance(event, TokenUsageEvent) and (note := token_note.get()) is not None:
        tokens = tokens_of(event, event.data)
        note(tokens.input_tokens + tokens.output_tokens)
    return record


def check_size(records: Sequence[Outgoing]) -> None:
    """Raises `EventTooLargeError` if the topic would refuse these records as one batch."""
    size = sum(map(record_size, records))
    if size > RECORD_BYTES_MAX:
        raise EventTooLargeError(size=size, limit=RECORD_BYTES_MAX, events=len(records))
