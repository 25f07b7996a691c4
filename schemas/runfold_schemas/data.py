"""The types of the fields of events: ids, labels, counts. And `Data`, the base class of the data of
every kind.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

EventId = Annotated[
    str, StringConstraints(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
]
"""A UUID in lower case; publishers choose a UUIDv7."""

Id = Annotated[str, StringConstraints(min_length=1, max_length=100)]

SESSION_ID_BYTES_MAX: Final = 1000
"""A session id may join three ids: of an app, of a user and of a framework's session."""

SessionId = Annotated[str, StringConstraints(min_length=1, max_length=SESSION_ID_BYTES_MAX)]
UserId = Annotated[str, StringConstraints(max_length=500)]
LogId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
"""A UUID in lower case without its hyphens; publishers choose a UUIDv7."""

DisplayName = Annotated[str, StringConstraints(max_length=500)]
TURN_ID_LENGTH_MAX: Final = 200
TurnId = Annotated[str, StringConstraints(max_length=TURN_ID_LENGTH_MAX)]

MESSAGE_ID_LENGTH_MAX: Final = 1000
"""Long, because gateways put the ids of providers into longer ids of their own."""

MessageId = Annotated[str, StringConstraints(max_length=MESSAGE_ID_LENGTH_MAX)]

LABELS_MAX: Final = 64

Labels = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=64)],
        Annotated[str, StringConstraints(max_length=512)],
    ],
    Field(max_length=LABELS_MAX),
]
"""Limited, because the run record holds the labels of a run. Larger data belong into `metadata` or
into an event.
"""

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""Limited, so that sums of counts stay in the range that JSON readers accept."""


_FIRST: Final = datetime(1, 1, 2, tzinfo=UTC)
_END: Final = datetime(9998, 1, 1, tzinfo=UTC)


def _check_year(time: datetime) -> datetime:
    if not _FIRST <= time < _END:
        raise ValueError("a time is between the years 1 and 9997, in UTC")
    return time


Time = Annotated[AwareDatetime, AfterValidator(_check_year)]
"""A time with a UTC offset. Its year leaves room to convert the time to any zone and to add a year.
"""

TTL_SECONDS_MAX: Final = 3_000_000_000
"""95 years, so that the sum of now and a time to live is a date."""

TtlSeconds = Annotated[float, Field(gt=0, le=TTL_SECONDS_MAX, allow_inf_nan=False)]
"""A time to live, in seconds."""


class Data(BaseModel):
    """The data of an event of one kind."""

    model_config = ConfigDict(frozen=True, extra="allow")


StateKey = Annotated[str, StringConstraints(max_length=10_000)]

StateDelta = Annotated[
    dict[StateKey, Any] | None, Field(max_length=10_000, exclude_if=lambda value: value is None)
]
"""Changes of state by key. All users of an app share `app:` keys, and all sessions of a user share
`user:` keys. `temp:` keys live for one call; readers ignore them in events. Every other key belongs
to the session. A null is a value.
"""

APP_PREFIX: Final = "app:"
USER_PREFIX: Final = "user:"
TEMP_PREFIX: Final = "temp:"
