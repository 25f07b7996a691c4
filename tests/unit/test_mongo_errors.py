"""Which errors of MongoDB a retry may cure, and which are about the documents."""

import pytest
from bson.errors import InvalidDocument
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    DocumentTooLarge,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    WTimeoutError,
)

from runfold.store import login
from runfold.store.database import connect
from runfold.store.unavailable import mongo_errors
from runfold_schemas.errors import ConfigurationError, UnavailableError


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("retryWrites=maybe", "retrywrites must be 'true' or 'false'"),
        ("tls=maybe", "tls must be 'true' or 'false'"),
        ("maxPoolSize=many", "maxpoolsize must be an integer"),
        ("authMechanismProperties=AWS_SESSION_TOKEN:a,hUsH:b", "authMechanismProperties needs pairs"),
    ],
)
async def test_a_wrong_value_in_a_connection_string_is_an_error_in_one_line(query: str, reason: str):
    with pytest.raises(ConfigurationError, match=reason) as refused:
        async with connect(f"mongodb://127.0.0.1:1/?{query}", "d"):
            pass
    assert "hUsH" not in str(refused.value)


async def test_an_option_that_is_given_twice_is_logged(caplog: pytest.LogCaptureFixture):
    with pytest.raises(UnavailableError):
        async with connect("mongodb://127.0.0.1:1/?tls=false&tls=false", "d"):
            pass
    logged = [each.getMessage() for each in caplog.records if each.name == login.__name__]
    assert logged == ["RUNFOLD_MONGO: Duplicate URI option 'tls'."]


def bulk(*codes: int, concern: bool = False) -> BulkWriteError:
    return BulkWriteError(
        {
            "writeErrors": [{"index": 0, "code": code, "errmsg": "?"} for code in codes],
            "writeConcernErrors": [{"code": 64, "errmsg": "waiting"}] if concern else [],
        }
    )


@pytest.mark.parametrize(
    "error",
    [
        AutoReconnect("gone"),
        NotPrimaryError("stepped down"),
        WTimeoutError("waiting", 64),
        OperationFailure("not authorized", 13),
        OperationFailure("no space", 14031),
        OperationFailure("interrupted", 11601),
        OperationFailure("cursor not found", 43),
        bulk(11000, 14031),
        bulk(concern=True),
    ],
    ids=repr,
)
def test_errors_of_a_server_are_cured_by_a_retry(error: PyMongoError):
    with pytest.raises(UnavailableError), mongo_errors():
        raise error


@pytest.mark.parametrize(
    "error",
    [
        DocumentTooLarge("17 MB"),
        InvalidDocument("a key with a dot"),
        OperationFailure("exceeded maximum nested object depth", 15),
        OperationFailure("resulting document after update is larger than 16777216", 17419),
        bulk(11000),
        bulk(10334),
    ],
    ids=repr,
)
def test_errors_about_a_document_pass_unchanged(error: Exception):
    with pytest.raises(type(error)), mongo_errors():
        raise error
