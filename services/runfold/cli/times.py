"""Times in options: ISO 8601, or ages such as 2h."""

from datetime import datetime

from pydantic import TypeAdapter, ValidationError

from runfold.query.times import Time
from runfold_schemas.codec import first_fault
from runfold_schemas.errors import InvalidEventError


def time_of(text: str, *, option: str) -> datetime:
    """The time that `text` names. Raises `InvalidEventError`."""
    try:
        time: datetime = TypeAdapter(Time).validate_python(text)
    except ValidationError as error:
        field = option.removeprefix("--").replace("-", "_")
        raise InvalidEventError(f"{option}: {first_fault(error)[1]}", field=field) from None
    return time
