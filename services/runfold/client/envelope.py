"""The fields of an event besides its data, and the making of an event from data and these
fields.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypedDict

from runfold.ids import new_event_id
from runfold_projections.providers import Encoded
from runfold_schemas.codec import TYPE_OF, new_event
from runfold_schemas.data import Data, maker_name
from runfold_schemas.envelope import Event
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import Provider


class ResponseEnvelope(TypedDict, total=False):
    """The fields that all events of one recorded response share."""

    timestamp: datetime | None
    """When the event happened, with a time zone. By default now."""
    turn_id: str | None
    """The turn of the conversation, up to 200 characters. By default the turn of the run."""
    labels: Mapping[str, str] | None
    """Labels of the events alone, up to 64."""
    maker: str | None
    """The maker of the model that responded: a name or a host, up to 200 characters. Of a URL, the
    host is recorded.
    """


class RecordOptions(ResponseEnvelope, total=False):
    """How a response is recorded."""

    provider: Provider | None
    """The provider of the response. Needed only if the response itself does not show it."""
    model: str | None
    """The name of the model, if the response does not contain it, as those of Bedrock."""
    request: Encoded | None
    """The result of `ledger(format)`. Needed if tools were renamed there."""
    recording_id: str | None
    """Any text by which the same response is recorded once, for example the number of a step."""
    late: bool
    """Whether the response belongs to the run although the run has ended. By default False."""


class Envelope(ResponseEnvelope, total=False):
    """The fields of an event that a publisher may set. A field that is None counts as not set.

    The limits of each field are those of `runfold_schemas.events.Event`.
    """

    event_id: str | None
    """A UUID in lower case. The log counts an event id once. By default a new UUIDv7."""
    message_id: str | None
    """The id of the assistant message that the event is a part of."""
    provider: Provider | None
    """The provider whose response the event was recorded from."""
    expected_offset: int | None
    """The log accepts the event only if no other event was accepted after this offset. -1 means
    that no event was accepted at all.
    """
    state_delta: Mapping[str, Any] | None
    """Changes of state by key. `app:` and `user:` keys are shared, `temp:` keys are not stored."""


def event_of(
    data: Data | AnyEvent,
    run_id: str,
    *,
    event_id: str | None = None,
    timestamp: datetime | None = None,
    turn_id: str | None = None,
    labels: Mapping[str, str] | None = None,
    message_id: str | None = None,
    provider: Provider | None = None,
    maker: str | None = None,
    expected_offset: int | None = None,
    state_delta: Mapping[str, Any] | None = None,
) -> AnyEvent:
    """The event of this run that carries `data`. An event that is complete already is returned as
    it is.

    Raises `InvalidEventError` if a field is wrong, and if `data` is neither data nor an event.
    """
    if isinstance(data, Event):
        return data
    check_is_data(data)
    fields = {
        "turn_id": turn_id,
        "labels": dict(labels) if labels else None,
        "message_id": message_id,
        "provider": provider,
        "maker": maker_name(maker) if isinstance(maker, str) else maker,
        "expected_offset": expected_offset,
        "state_delta": state_delta,
    }
    return new_event(
        data,
        event_id=event_id or new_event_id(),
        run_id=run_id,
        timestamp=timestamp or datetime.now(UTC),
        **{name: value for name, value in fields.items() if value is not None},
    )


def check_is_data(data: object) -> None:
    """Raises `InvalidEventError` if `data` is an object that no event can carry, for example a
    dict.
    """
    if type(data) in TYPE_OF:
        return
    raise InvalidEventError(
        f"a {type(data).__name__} is not an event: publish an object of one of the event classes of"
        " runfold, for example UserMessage(message='Hello')"
    )


@contextmanager
def naming_index(index: int) -> Iterator[None]:
    """An `InvalidEventError` that is raised inside names the event's index in its batch."""
    try:
        yield
    except InvalidEventError as error:
        raise InvalidEventError(error.args[0], field=error.field, index=index) from error
