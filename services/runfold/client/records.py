"""The records that carry the events of runs."""

from collections.abc import Sequence

from runfold.log.publisher import Outgoing, record_size
from runfold_schemas.codec import encode, headers
from runfold_schemas.errors import EventTooLargeError
from runfold_schemas.events import AnyEvent
from runfold_schemas.topics import RECORD_BYTES_MAX


def outgoing(event: AnyEvent, *, source: str) -> Outgoing:
    """The record that carries an event. Its key lets consumers of many topics group by run.

    `source` is the `ce_source` header. Raises `InvalidEventError` if JSON cannot carry the event
    exactly.
    """
    return Outgoing(key=event.run_id.encode(), value=encode(event), headers=headers(event, source=source))


def check_size(records: Sequence[Outgoing]) -> None:
    """Raises `EventTooLargeError` if the topic would refuse these records as one batch."""
    size = sum(map(record_size, records))
    if size > RECORD_BYTES_MAX:
        raise EventTooLargeError(size=size, limit=RECORD_BYTES_MAX)
