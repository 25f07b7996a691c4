"""Logging in to MongoDB: which mechanisms there are, and the driver's errors as one line.

No message repeats the password: the driver's own errors may quote parts of the connection string.
"""

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote

from pymongo import errors

from runfold.store.unavailable import mongo_errors
from runfold_schemas.errors import ConfigurationError, UnavailableError

_MECHANISMS: Final = (
    "SCRAM-SHA-256",
    "SCRAM-SHA-1",
    "DEFAULT",
    "MONGODB-X509",
    "MONGODB-AWS",
    "MONGODB-OIDC",
    "GSSAPI",
    "PLAIN",
)

_INSTALL: Final = {"pymongo-auth-aws": "runfold[aws]", "kerberos": "pymongo[gssapi]"}
"""By words in the driver's error, the package that makes its mechanism work."""

_REFUSED: Final = {11, 13, 18, 334, 8000}
"""The codes of UserNotFound, Unauthorized, AuthenticationFailed, MechanismUnavailable, and Atlas'
code for all of them.
"""

_UNKNOWN_NAMES: Final = ("NXDOMAIN", "NoAnswer")

_HARMLESS: Final = r"Duplicate URI option|Unsupported compressor|Wire protocol compression"
"""The beginnings of the driver's warnings after which it connects all the same."""

_SHOWN_MAX: Final = 200

_log = logging.getLogger(__name__)


def check_mechanism(url: str) -> None:
    """Raises `ConfigurationError` for a mechanism that does not exist. The driver would only warn,
    and log in by another one.
    """
    match = re.search(r"[?&]authMechanism=([^&]*)", url, flags=re.IGNORECASE)
    if match and unquote(match[1]) not in _MECHANISMS:
        raise ConfigurationError(
            f"RUNFOLD_MONGO: there is no authMechanism {unquote(match[1])!r}; there are"
            f" {', '.join(_MECHANISMS)}"
        )


@contextmanager
def connection_errors() -> Iterator[None]:
    """Raises `ConfigurationError` if the driver does not accept the connection string, or cannot
    read a file that it names. The driver would only warn of a wrong value, and go on without it.
    Warnings of what changes nothing, such as a compressor that is not installed, are logged.
    """
    try:
        with warnings.catch_warnings(record=True) as harmless:
            warnings.filterwarnings("error", category=UserWarning)
            warnings.filterwarnings("always", message=_HARMLESS, category=UserWarning)
            yield
        for warning in harmless:
            _log.warning("RUNFOLD_MONGO: %s", warning.message)
    except UserWarning as error:
        raise ConfigurationError(f"RUNFOLD_MONGO has a wrong option: {_wrong_value(error)}") from None
    except OSError as error:
        raise ConfigurationError(f"RUNFOLD_MONGO: {error}") from None
    except (errors.ConfigurationError, errors.InvalidName, ValueError) as error:
        raise ConfigurationError(
            f"RUNFOLD_MONGO is not a connection string: {_without_quotes(error)}"
        ) from None


@contextmanager
def login_errors() -> Iterator[None]:
    """Raises `ConfigurationError` if MongoDB refuses the login or a package for it is missing, and
    `UnavailableError` if MongoDB does not answer.
    """
    try:
        with mongo_errors():
            yield
    except UnavailableError as error:
        if (refusal := _refusal(error.__cause__)) is not None:
            raise ConfigurationError(refusal) from None
        raise
    except errors.OperationFailure as error:
        if (refusal := _refusal(error)) is not None:
            raise ConfigurationError(refusal) from None
        raise
    except errors.ConfigurationError as error:
        cause = type(error.__cause__)
        if cause.__module__.startswith("dns.") and cause.__name__ not in _UNKNOWN_NAMES:
            raise UnavailableError("MongoDB", reason=str(error)) from None
        package = next((package for word, package in _INSTALL.items() if word in str(error)), None)
        hint = f": run pip install '{package}'" if package else ""
        text = str(error).partition(": install with")[0].rstrip(".")
        raise ConfigurationError(f"RUNFOLD_MONGO: {text}{hint}") from None


def _refusal(error: BaseException | None) -> str | None:
    """Why the login is refused; None if the error is another one."""
    if isinstance(error, FileNotFoundError):
        return f"RUNFOLD_MONGO: MongoDB's login needs a file that is missing: {error.filename}"
    if not isinstance(error, errors.OperationFailure) or error.code not in {None, *_REFUSED}:
        return None
    reason = (error.details or {}).get("errmsg") or str(error) or error.code
    return (
        f"RUNFOLD_MONGO: MongoDB refuses the user or the password in it ({reason}):"
        " correct them, or authSource or authMechanism"
    )


def _wrong_value(warning: UserWarning) -> str:
    text = str(warning)
    # The driver quotes these properties, and one of them is a token.
    if "auth mechanism propert" in text:
        return "authMechanismProperties needs pairs of a known name and a value, such as SERVICE_NAME:mongodb"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def _without_quotes(error: Exception) -> str:
    """The driver's message without what it quotes."""
    return re.sub(r"'[^']*'|\"[^\"]*\"", "'***'", str(error))
