"""MongoDB's own errors, told as ours."""

from collections.abc import Iterator
from contextlib import contextmanager

from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConnectionFailure,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
)

from runfold_schemas.errors import UnavailableError

_PASSING = (AutoReconnect, ConnectionFailure, ExecutionTimeout, WriteConcernError)

_DUPLICATE_KEY = 11000

_CURSOR_GONE = {43, 175, 237}
"""CursorNotFound, QueryPlanKilled, CursorKilled: what was read was dropped, or the server has begun
anew.
"""


@contextmanager
def mongo_errors() -> Iterator[None]:
    """Raises `UnavailableError` for what a retry may cure; anything else is a defect and passes as
    it is.
    """
    try:
        yield
    except PyMongoError as error:
        gone = isinstance(error, OperationFailure) and error.code in _CURSOR_GONE
        if gone or isinstance(error, _PASSING) or error.has_error_label("RetryableWriteError"):
            raise UnavailableError("MongoDB", reason=_first_words(error)) from error
        raise


def duplicates_of(error: BulkWriteError) -> list[int]:
    """The indexes of the operations whose document was there already, which nothing else may be
    wrong with.

    Raises `error` or `UnavailableError` otherwise.
    """
    faults = error.details["writeErrors"]
    if concern := error.details["writeConcernErrors"]:
        raise UnavailableError("MongoDB", reason=concern[0]["errmsg"]) from error
    if any(fault["code"] != _DUPLICATE_KEY for fault in faults):
        raise error
    return [fault["index"] for fault in faults]


def _first_words(error: PyMongoError) -> str:
    """What happened, without the driver's timeouts and its view of every server."""
    return str(error).split(",", maxsplit=1)[0].split(" (configured timeouts", maxsplit=1)[0]
