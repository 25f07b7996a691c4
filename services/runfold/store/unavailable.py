"""Translates errors of MongoDB to errors of Runfold."""

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
"""The codes of CursorNotFound, QueryPlanKilled and CursorKilled: the collection was dropped, or the
server was restarted.
"""


@contextmanager
def mongo_errors() -> Iterator[None]:
    """Raises `UnavailableError` for errors that a retry may cure. Other errors are defects and pass
    unchanged.
    """
    try:
        yield
    except PyMongoError as error:
        is_lost = isinstance(error, OperationFailure) and error.code in _CURSOR_GONE
        if is_lost or isinstance(error, _PASSING) or error.has_error_label("RetryableWriteError"):
            raise UnavailableError("MongoDB", reason=_reason(error)) from error
        raise


def duplicates_of(error: BulkWriteError) -> list[int]:
    """The indexes of the operations whose document existed already.

    Raises `error` or `UnavailableError` if an operation failed for another reason.
    """
    faults = error.details["writeErrors"]
    if concern := error.details["writeConcernErrors"]:
        raise UnavailableError("MongoDB", reason=concern[0]["errmsg"]) from error
    if any(fault["code"] != _DUPLICATE_KEY for fault in faults):
        raise error
    return [fault["index"] for fault in faults]


def _reason(error: PyMongoError) -> str:
    """The beginning of the driver's message, without timeouts and its view of every server."""
    return str(error).split(",", maxsplit=1)[0].split(" (configured timeouts", maxsplit=1)[0]
