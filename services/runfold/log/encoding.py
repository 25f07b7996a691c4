"""The encoding of events whose texts may have been cut."""

import logging

from runfold_schemas.codec import check_exact, encode_unchecked, whole_event
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import AnyEvent

_log = logging.getLogger(__name__)


def encoded_exactly(event: AnyEvent) -> tuple[AnyEvent, bytes]:
    """The event as it is stored, and its value. Raises `InvalidEventError` if JSON cannot carry the
    event exactly.
    """
    stored, value = encoded(event)
    check_exact(stored, value)
    return stored, value


def encoded(event: AnyEvent) -> tuple[AnyEvent, bytes]:
    """The event as it is stored, and its value before `check_exact`. Halves of surrogate pairs,
    which are left where a program has cut a text, are replaced by U+FFFD, with a warning. Raises
    `InvalidEventError`.
    """
    try:
        return event, encode_unchecked(event)
    except InvalidEventError:
        stored = whole_event(event)
        if stored is event:
            raise
    value = encode_unchecked(stored)
    _log.warning(
        "texts of the event %s (%s) had halves of surrogate pairs: each is stored as U+FFFD",
        event.event_id,
        event.type,
    )
    return stored, value
