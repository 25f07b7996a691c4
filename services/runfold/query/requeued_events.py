"""The event that is published again for a dead letter: that of the record, or a mended one."""

from datetime import datetime
from typing import Any

from runfold.encryption.sealed_text import MARK
from runfold.ids import recording_ids
from runfold_schemas.codec import Record, decode, parse_event
from runfold_schemas.errors import InvalidEventError, UndecodableError
from runfold_schemas.events import AnyEvent


def event_of_record(record: Record, *, run_id: str) -> AnyEvent:
    """The event of a record, which must be one of the run. Raises `InvalidEventError`."""
    try:
        return _checked(decode(record.value), run_id)
    except UndecodableError as error:
        raise InvalidEventError(
            f"it still cannot be decoded ({error.reason}): send a mended `event`", field="event"
        ) from error


def mended_event(event: dict[str, Any], letter_id: str, *, run_id: str, timestamp: datetime) -> AnyEvent:
    """The caller's event. Without an id of its own it gets one that follows from the dead letter's.
    Raises `InvalidEventError`.
    """
    if (path := _path_of_ciphertext(event)) is not None:
        raise InvalidEventError(
            f"{path}: a text that begins with {MARK} is ciphertext, so readers would not see what it says",
            field=path,
        )
    event_id = recording_ids(run_id, letter_id)("requeued")
    defaults = {"event_id": event_id, "run_id": run_id, "timestamp": timestamp}
    return _checked(parse_event({**defaults, **event}), run_id)


def _checked(event: AnyEvent, run_id: str) -> AnyEvent:
    if "sealed" in (event.model_extra or {}):
        raise InvalidEventError("sealed: the key that reveals the event is not here", field="sealed")
    if event.run_id != run_id:
        raise InvalidEventError(f"run_id: the record is of run {run_id!r}", field="run_id")
    return event


def _path_of_ciphertext(value: Any) -> str | None:
    """The dotted path of the first text in JSON that is marked as ciphertext."""
    if isinstance(value, str):
        return "" if value.startswith(MARK) else None
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        if (path := _path_of_ciphertext(inner)) is not None:
            return f"{name}.{path}" if path else str(name)
    return None
