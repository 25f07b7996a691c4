"""MongoDB's own errors, told as ours."""

from collections.abc import Iterator
from contextlib import contextmanager

from pymongo.errors import AutoReconnect, ConnectionFailure, ExecutionTimeout, PyMongoError, WriteConcernError

from runfold_schemas.errors import UnavailableError

_PASSING = (AutoReconnect, ConnectionFailure, ExecutionTimeout, WriteConcernError)


@contextmanager
def mongo_errors() -> Iterator[None]:
    """Raises `UnavailableError` for what a retry may cure; anything else is a defect and passes as it is."""
    try:
        yield
    except PyMongoError as error:
        if isinstance(error, _PASSING) or error.has_error_label("RetryableWriteError"):
            raise UnavailableError("MongoDB", reason=str(error).split(",", maxsplit=1)[0]) from error
        raise
