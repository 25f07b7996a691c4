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

_OF_SERVER = _CURSOR_GONE | {
    *(6, 7, 89, 141, 145, 172, 202, 384, 407, 9001),  # connections
    *(11, 13, 18, 31, 214, 334, 391, 8000),  # users, passwords, rights, and sessions that expired
    *(24, 46, 50, 112, 208, 262, 290),  # locks, limits of time, conflicts of writes
    *(64, 75, 79, 100, 133, 134, 148, 187),  # concerns of writes and reads
    *(71, 91, 94, 95, 189, 216, 10058, 10107, 13435, 13436),  # no primary, or another one
    *(39, 42, 264, 371, 14031),  # no room on the disk, no more files, writes that are blocked
    *(8, 96, 146, 365, 402, 433, 449),  # a server without memory, or under pressure
    *(63, 150, 215, 249, 250, 272, 279, 355, 11600, 11601, 11602, 13388),  # interruptions, shards that moved
}
"""The codes of errors that say nothing about a document: another document would fail as well."""


_OF_IDENTITY_SERVICE = "IMDS"
"""In the driver's errors about the service that gives tokens to a machine of Azure or Google. They
have no class of their own.
"""


@contextmanager
def mongo_errors() -> Iterator[None]:
    """Raises `UnavailableError` for errors of the server, which a retry may cure. Other errors are
    about the documents or defects, and pass unchanged.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) or _OF_IDENTITY_SERVICE in str(error):
            raise UnavailableError("MongoDB", reason=str(error)) from error
        raise
    except PyMongoError as error:
        if (
            isinstance(error, _PASSING)
            or error.has_error_label("RetryableWriteError")
            or _is_of_server(error)
        ):
            raise UnavailableError("MongoDB", reason=_reason(error)) from error
        raise


def _is_of_server(error: PyMongoError) -> bool:
    if isinstance(error, BulkWriteError):
        faults = [fault.get("code") for fault in error.details.get("writeErrors", ())]
        return bool(error.details.get("writeConcernErrors")) or not _OF_SERVER.isdisjoint(faults)
    # Without a code, the login failed before the server answered, for example at AWS or Kerberos.
    return isinstance(error, OperationFailure) and (error.code is None or error.code in _OF_SERVER)


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
