"""What the kinds of events are made of: ids, labels, counts, and `Data`, which every kind
extends.
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
"""A session's id may be made of others: of an app's, a user's and a framework's own."""

SessionId = Annotated[str, StringConstraints(min_length=1, max_length=SESSION_ID_BYTES_MAX)]
UserId = Annotated[str, StringConstraints(max_length=500)]
LogId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
"""A UUID in lower case without its hyphens; publishers choose a UUIDv7."""

DisplayName = Annotated[str, StringConstraints(max_length=500)]
TurnId = Annotated[str, StringConstraints(max_length=200)]

MESSAGE_ID_LENGTH_MAX: Final = 1000
"""Gateways wrap the ids of providers into longer ones of their own."""

MessageId = Annotated[str, StringConstraints(max_length=MESSAGE_ID_LENGTH_MAX)]

LABELS_MAX: Final = 64

Labels = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=64)],
        Annotated[str, StringConstraints(max_length=512)],
    ],
    Field(max_length=LABELS_MAX),
]
"""Bounded, because the run record has the run's; more than that belongs into `metadata` or an
event.
"""

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""Bounded, so that sums of them stay within what JSON's readers take."""


_FIRST: Final = datetime(1, 1, 2, tzinfo=UTC)
_END: Final = datetime(9998, 1, 1, tzinfo=UTC)


def _has_neighbours(time: datetime) -> datetime:
    if not _FIRST <= time < _END:
        raise ValueError("a time is between the years 1 and 9997, in UTC")
    return time


Time = Annotated[AwareDatetime, AfterValidator(_has_neighbours)]
"""With an offset; so far from the calendar's ends that it can be told in any zone, and that a year
can be added to it.
"""

TtlSeconds = Annotated[float, Field(gt=0, le=3_000_000_000, allow_inf_nan=False)]
"""A time to live, in seconds: 95 years at the most."""


class Data(BaseModel):
    """What an event of one kind says."""

    model_config = ConfigDict(frozen=True, extra="allow")


StateKey = Annotated[str, StringConstraints(max_length=10_000)]

StateDelta = Annotated[
    dict[StateKey, Any] | None, Field(max_length=10_000, exclude_if=lambda value: value is None)
]
"""Changes of state by key: `app:` keys are shared by all users of an app, `user:` keys by all
sessions of a user, all others are the session's own. A null is a value. `temp:` keys live for one
call, and no reader takes them from an event.
"""

APP_PREFIX: Final = "app:"
USER_PREFIX: Final = "user:"
TEMP_PREFIX: Final = "temp:"
