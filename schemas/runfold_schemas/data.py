"""The types of the fields of events: ids, labels, counts. And `Data`, the base class of the data of
every kind.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from runfold_schemas.blobs import Sha256
from runfold_schemas.first_fault import FIRST_FAULT

ItemT = TypeVar("ItemT")

Items = Annotated[tuple[ItemT, ...], FIRST_FAULT]
"""Any number of items. Validation ends at the first wrong item."""

ItemList = Annotated[list[ItemT], FIRST_FAULT]
"""As `Items`, for models whose values may change."""

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

_HOST: Final = re.compile(
    r"(?:[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^/?#@]*@)?(?P<url>\[[^]/]+\]|[^/?#@:\[\]]+)"
    r"|(?P<host>[^/?#@:]+\.[^/?#@:]+|localhost|[^/?#@:]+(?=:[0-9]+(?:/|$))))"
    r"(?::[0-9]*)?(?:[/?#].*)?"
)
"""A URL, or a host that has a dot or a port."""

Maker = Annotated[str, StringConstraints(min_length=1, max_length=200)]
"""The company or the host that runs a model, for example `deepseek` or `api.groq.com`. Several
makers share a format of requests. Names are compared by `maker_key`.
"""


def maker_name(maker: str) -> str:
    """The maker as it is recorded: of a URL, or of a host with a port or a path, the host alone."""
    match = _HOST.fullmatch(maker)
    return match["url"] or match["host"] if match else maker


def maker_key(maker: str) -> str:
    """The text by which makers are compared: their names without case."""
    return maker_name(maker).casefold()


LABELS_MAX: Final = 64

Labels = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=64)],
        Annotated[str, StringConstraints(max_length=512)],
    ],
    FIRST_FAULT,
    Field(max_length=LABELS_MAX),
]
"""Limited, because the run record holds the labels of a run. Larger data belong into `metadata` or
into an event.
"""

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""Limited, so that sums of counts stay in the range that JSON readers accept."""


def tolerant(default: Callable[[], Any]) -> WrapValidator:
    """Reads a value that is not valid as the default. This is for fields that are newer than the
    events of their kind: an event of an earlier version may hold other data under their name.
    """

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            return default()

    return WrapValidator(validate)


# The types of such newer fields.

LaterCount = Annotated[Count, tolerant(int), Field(exclude_if=lambda value: not value)]

LaterOffset = Annotated[Count | None, tolerant(lambda: None), Field(exclude_if=lambda value: value is None)]

LaterFlag = Annotated[
    StrictBool | None, tolerant(lambda: None), Field(exclude_if=lambda value: value is None)
]

LaterMaker = Annotated[Maker | None, tolerant(lambda: None), Field(exclude_if=lambda value: value is None)]

LaterMessageId = Annotated[
    MessageId | None, tolerant(lambda: None), Field(exclude_if=lambda value: value is None)
]

LaterObject = Annotated[
    dict[str, Any] | None, tolerant(lambda: None), Field(exclude_if=lambda value: value is None)
]

Subject = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""The hash that stands for a user in what an erasure leaves behind: see `erasures.subject_of`."""

LaterSubject = Annotated[
    Subject | None, tolerant(lambda: None), Field(exclude_if=lambda value: value is None)
]

BlobDigests = Annotated[Items[Sha256], Field(exclude_if=lambda value: not value)]
"""The digests of the blobs to which strings of JSON refer. Every other string is text, also if it
looks like a reference. Only what stores the blobs adds digests.
"""

LaterBlobDigests = Annotated[BlobDigests, tolerant(tuple)]

SERVER_TOOLS_MAX: Final = 16

ServerTools = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], Count],
    FIRST_FAULT,
    Field(max_length=SERVER_TOOLS_MAX, exclude_if=lambda value: not value),
    tolerant(dict),
]
"""Numbers of requests, by the name of the provider's tool."""


FIRST_TIME: Final = datetime(1, 1, 2, tzinfo=UTC)
TIME_END: Final = datetime(9998, 1, 1, tzinfo=UTC)


def check_year(time: datetime) -> datetime:
    if not FIRST_TIME <= time < TIME_END:
        raise ValueError("a time is between the years 1 and 9997, in UTC")
    return time


Time = Annotated[AwareDatetime, AfterValidator(check_year)]
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
    Annotated[dict[StateKey, Any], FIRST_FAULT] | None,
    Field(max_length=10_000, exclude_if=lambda value: value is None),
]
"""Changes of state by key. All users of an app share `app:` keys, and all sessions of a user share
`user:` keys. `temp:` keys live for one call; readers ignore them in events. Every other key belongs
to the session. A null is a value.
"""

APP_PREFIX: Final = "app:"
USER_PREFIX: Final = "user:"
TEMP_PREFIX: Final = "temp:"
