"""Messages of the protocol as JSON.

Google's clients write the fields of a message in camelCase at the top and in snake_case further in,
so both are accepted everywhere. Answers are in camelCase. Unknown fields are ignored, as the
protocol requires.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    model_validator,
)
from pydantic.alias_generators import to_camel

from runfold_schemas.data import TTL_SECONDS_MAX, Time
from runfold_schemas.first_fault import FIRST_FAULT

PACKAGE: Final = "google.cloud.aiplatform.v1beta1"

_DURATION: Final = re.compile(r"(-?)(\d{1,12})(?:\.(\d{1,9}))?s")

_DEPTH_MAX: Final = 100

_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)

Texts = Annotated[dict[str, str], FIRST_FAULT]
"""A map of texts."""

OPAQUE: Final = frozenset(
    {
        "args",
        "artifactDelta",
        "classMethods",
        "customMetadata",
        "labels",
        "partMetadata",
        "rawEvent",
        "requestedAuthConfigs",
        "response",
        "revisionLabels",
        "schema",
        "scope",
        "sessionState",
        "stateDelta",
    }
)
"""Fields with any JSON as their value: the keys in it are not names of fields."""


class Message(BaseModel):
    """A message of the protocol."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        extra="ignore",
        frozen=True,
    )

    proto: ClassVar[str] = "google.protobuf.Struct"
    """The type's full name, for answers that have to contain it."""

    one_of: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Groups of fields; of each group, at most one field may be given."""

    @model_validator(mode="after")
    def _has_one_of_each(self) -> Self:
        for group in self.one_of:
            names = [to_camel(name) for name in group if getattr(self, name) is not None]
            if len(names) > 1:
                raise ValueError(f"only one of {' and '.join(names)} may be given")
        return self

    def json_form(self) -> dict[str, Any]:
        """The message as JSON, without fields that are None; opaque values keep their nulls."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Empty(Message):
    """A message without fields."""

    proto = "google.protobuf.Empty"


def camel(value: Any, *, depth: int = 0) -> Any:
    """JSON with the names of fields in camelCase; the values of opaque fields stay as they are.

    For messages with fields that we do not know. Raises `ValueError` if the JSON is nested too
    deep.
    """
    if depth > _DEPTH_MAX:
        raise ValueError(f"nested deeper than {_DEPTH_MAX} levels")
    if isinstance(value, list):
        return [camel(each, depth=depth + 1) for each in value]
    if not isinstance(value, Mapping):
        return value
    named = {camel_name(name): each for name, each in value.items()}
    return {
        name: each if name in OPAQUE else camel(each, depth=depth + 1)
        for name, each in named.items()
        if each is not None
    }


def camel_name(name: str) -> str:
    """The name in camelCase; a name that is in camelCase already stays as it is."""
    first, *others = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in others) if first and others else name


def rfc3339(time: datetime) -> str:
    """The time in UTC, to the microsecond. A time that is out of range in UTC becomes the first or
    the last time there is.
    """
    try:
        time = time.astimezone(UTC)
    except OverflowError:
        time = _FIRST if time.year == _FIRST.year else _LAST
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def _text(value: Any) -> Any:
    if isinstance(value, str | datetime):
        return value
    raise ValueError('a timestamp is a text such as "2030-01-02T03:04:05Z"')


def _duration(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value
    parsed = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if parsed is None:
        raise ValueError('a duration is seconds with an s, such as "3.5s"')
    sign, seconds, fraction = parsed.groups()
    if int(seconds) > TTL_SECONDS_MAX:
        raise ValueError(f"a duration has at most {TTL_SECONDS_MAX} seconds")
    length = timedelta(seconds=int(seconds), microseconds=int((fraction or "0").ljust(9, "0")[:6]))
    return -length if sign else length


def _seconds(length: timedelta) -> str:
    seconds, rest = divmod(abs(length), timedelta(seconds=1))
    fraction = f".{rest.microseconds:06}".rstrip("0") if rest else ""
    return f"{'-' if length < timedelta(0) else ''}{seconds}{fraction}s"


Timestamp = Annotated[Time, BeforeValidator(_text), PlainSerializer(rfc3339, when_used="json")]
"""A time with any zone; written in UTC with microseconds."""

Duration = Annotated[timedelta, BeforeValidator(_duration), PlainSerializer(_seconds, when_used="json")]
"""A text of seconds and an `s`; at most a hundred years."""

Fields = Annotated[dict[str, Any], AfterValidator(camel)]
"""A message that is stored with all its fields, in camelCase."""
