"""URLs that contain passwords or keys, and texts without them."""

import re
from typing import Annotated, Final
from urllib.parse import unquote

from pydantic import AfterValidator, Secret

_WORD: Final = re.compile(r"[^\s\"'<>]+")

_PARAMETER: Final = re.compile(
    r"(?i)([?&;][\w.-]*(?:password|passwd|token|secret|credential|signature|sig|key|properties)=)[^\s&;#\"'<>]+"
)


_ANY_PARAMETER: Final = re.compile(r"([?&;][^\s&;#=]*=)[^\s&;#\"'<>]+")

_MONGO_NAMES: Final = (
    "appname authmechanism authmechanismproperties authsource compressors connect "
    "connecttimeoutms datetime_conversion directconnection driver enableoverloadretargeting "
    "fsync heartbeatfrequencyms journal loadbalanced localthresholdms maxadaptiveretries "
    "maxconnecting maxidletimems maxpoolsize maxstalenessseconds minpoolsize readconcernlevel "
    "readpreference readpreferencetags replicaset retryreads retrywrites server_api "
    "servermonitoringmode serverselectiontimeoutms sockettimeoutms srvallowedhostssuffix "
    "srvmaxhosts srvservicename ssl timeoutms tls tlsallowinvalidcertificates "
    "tlsallowinvalidhostnames tlscafile tlscertificatekeyfile tlscertificatekeyfilepassword "
    "tlscrlfile tlsdisableocspendpointcheck tlsinsecure tz_aware unicode_decode_error_handler "
    "uuidrepresentation w waitqueuemultiple waitqueuetimeoutms wtimeoutms zlibcompressionlevel "
)
"""The options of MongoDB, in lower case as the driver compares them. A list of our own, because
commands that need no MongoDB read the settings too, and importing the driver takes time.
"""

_MONGO_OPTIONS: Final = frozenset(_MONGO_NAMES.split())

_SHOWN_MAX: Final = 100


class SecretUrl(Secret[str]):
    """A URL, shown without login and keys. `get_secret_value` returns the whole."""

    def _display(self) -> str:
        url = self.get_secret_value()
        # Any parameter of a web server may be a secret. Those of MongoDB are known.
        return without_secrets(_ANY_PARAMETER.sub(r"\1***", url) if url.startswith("http") else url)


def without_secrets(text: str) -> str:
    """The text with `***` for the logins of URLs, and for passwords and keys in their queries."""
    if "://" in text:
        text = _WORD.sub(_without_login, text)
    return _PARAMETER.sub(r"\1***", text)


def _without_login(word: re.Match[str]) -> str:
    """A password may contain an unescaped `/` or `@`, by mistake, so a login ends at the last `@`.
    One expression for this would need quadratic time.
    """
    scheme, mark, rest = word[0].partition("://")
    _, at, host = rest.rpartition("@")
    return f"{scheme}{mark}***@{host}" if at else word[0]


def revealed(url: SecretUrl | str) -> str:
    """The whole URL, for the client that connects to it."""
    return url if isinstance(url, str) else url.get_secret_value()


def unknown_mongo_options(url: str) -> list[str]:
    """The names of the options in a connection string that the driver does not know. The driver
    would only warn, and show the path of a file of ours.
    """
    names = [part.partition("=")[0] for part in url.partition("?")[2].replace(";", "&").split("&") if part]
    return [unquote(name)[:_SHOWN_MAX] for name in names if unquote(name).lower() not in _MONGO_OPTIONS]


def _checked_mongo_url(value: SecretUrl) -> SecretUrl:
    url = value.get_secret_value()
    if not re.match(r"mongodb(\+srv)?://[^/?]", url):
        raise ValueError("a connection string begins with mongodb:// or mongodb+srv:// and a host")
    if unknown := unknown_mongo_options(url):
        raise ValueError(f"unknown option {unknown[0]}")
    return value


def _checked_http_url(value: SecretUrl) -> SecretUrl:
    if not re.match(r"https?://[^/?#]", value.get_secret_value()):
        raise ValueError("a URL begins with http:// or https:// and a host")
    return value


MongoUrl = Annotated[SecretUrl, AfterValidator(_checked_mongo_url)]
SecretHttpUrl = Annotated[SecretUrl, AfterValidator(_checked_http_url)]
