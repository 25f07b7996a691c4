"""How to reach the log, what its topics are created with, and which values of either make sense."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Self

from aiokafka.helpers import create_ssl_context
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from runfold_schemas.errors import InvalidIdError
from runfold_schemas.topics import PARK_SECONDS_MIN, Topics

_SSL_FILES: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile")

OPTIONS: Final = frozenset(
    {
        "client_id",
        "connections_max_idle_ms",
        "metadata_max_age_ms",
        "retry_backoff_ms",
        "sasl_kerberos_domain_name",
        "sasl_kerberos_service_name",
        "sasl_mechanism",
        "sasl_oauth_token_provider",
        "sasl_plain_password",
        "sasl_plain_username",
        "security_protocol",
        "ssl_context",
        *_SSL_FILES,
    }
)
"""What all of our clients take: producer, consumer, admin client and FastStream's broker."""

_ONE_OF: Final = {
    "security_protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl_mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"),
}

_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")

_SECONDS_MAX: Final = 24 * 3600
"""In milliseconds it still fits into the 32 bits that Kafka's protocol has for a time."""


def checked_addresses(value: str) -> str:
    """`value`, if it is what `bootstrap.servers` takes. Raises `ValueError`."""
    for address in value.split(","):
        match = _ADDRESS.fullmatch(address.strip())
        if match is None or not 0 < int(match[1] or 9092) < 65_536:
            raise ValueError(f"{address.strip()!r} is not host:port; several are separated by commas")
    return value


def checked_prefix(value: str) -> str:
    """`value`, if the names of topics can begin with it. Raises `ValueError`."""
    try:
        return Topics(value).prefix
    except InvalidIdError as error:
        raise ValueError(str(error)) from error


def checked_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """`options`, if every client takes them and the files that they name can be read. Raises
    `ValueError`.
    """
    for name, value in options.items():
        if name not in OPTIONS:
            close = get_close_matches(name, sorted(OPTIONS), n=1) or sorted(OPTIONS)
            raise ValueError(f"there is no option {name!r}; did you mean {' or '.join(close)}?")
        if name in _ONE_OF and value not in _ONE_OF[name]:
            raise ValueError(f"{name} is one of {', '.join(_ONE_OF[name])}")
        if name in _SSL_FILES and value is not None and not Path(value).is_file():
            raise ValueError(f"{name}: there is no file {value}")
    _check_protocol({name: value for name, value in options.items() if value is not None})
    _with_ssl_context(options)
    return options


def check_replicas(*, replication_factor: int, min_insync_replicas: int) -> None:
    """Raises `ValueError` where no record could ever be on so many replicas."""
    if min_insync_replicas > replication_factor:
        raise ValueError(
            f"min_insync_replicas={min_insync_replicas} is more than replication_factor={replication_factor}:"
            " nothing could be published"
        )


Addresses = Annotated[str, AfterValidator(checked_addresses)]
Prefix = Annotated[str, AfterValidator(checked_prefix)]
Options = Annotated[Mapping[str, Any], AfterValidator(checked_options)]
Replicas = Annotated[int, Field(ge=1, le=32_767)]
Seconds = Annotated[float, Field(gt=0, le=_SECONDS_MAX, allow_inf_nan=False)]


class LogSettings(BaseModel):
    """`kafka_options` goes to every aiokafka client as it is: `security_protocol`, `ssl_context`,
    `sasl_...`.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, extra="forbid")

    kafka: Addresses = "127.0.0.1:9092"
    """`bootstrap.servers`: host:port, several by comma."""
    prefix: str = "runfold"
    replication_factor: Replicas = 1
    min_insync_replicas: Replicas = 1
    source: str = "runfold"
    """`ce_source` of what is published here: a URI reference that names the producer."""
    publish_timeout_seconds: Seconds = 30.0
    """How long a publish waits for Kafka before it fails as retriable."""
    park_seconds: Seconds = PARK_SECONDS_MIN
    """The shortest park time of any projector on this log."""
    kafka_options: Options = {}

    @model_validator(mode="after")
    def _replicas_suffice(self) -> Self:
        check_replicas(
            replication_factor=self.replication_factor, min_insync_replicas=self.min_insync_replicas
        )
        return self

    def client_options(self) -> dict[str, Any]:
        """What every aiokafka client is opened with. `ssl_cafile`, `ssl_certfile` and `ssl_keyfile`
        (paths, as text can carry them) become the `ssl_context` that aiokafka wants.
        """
        return {"bootstrap_servers": self.kafka, **_with_ssl_context(self.kafka_options)}


def _check_protocol(given: Mapping[str, Any]) -> None:
    """What is said of security fits its protocol. Raises `ValueError`."""
    protocol = given.get("security_protocol", "PLAINTEXT")
    for name in given:
        part = name.partition("_")[0].upper()
        if part in ("SSL", "SASL") and part not in protocol:
            raise ValueError(f"{name} has no effect: security_protocol is {protocol}, which has no {part}")
    by_password = given.get("sasl_mechanism", "PLAIN") not in ("GSSAPI", "OAUTHBEARER")
    for name in ("sasl_plain_username", "sasl_plain_password"):
        if protocol.startswith("SASL") and by_password and name not in given:
            raise ValueError(f"security_protocol {protocol} needs {name}, which is missing")


def _with_ssl_context(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options with a context instead of files. Raises `ValueError` for files that hold no
    certificate or key.
    """
    options = dict(given)
    files = {name.removeprefix("ssl_"): options.pop(name, None) for name in _SSL_FILES}
    if str(options.get("security_protocol")).endswith("SSL") and "ssl_context" not in options:
        try:
            options["ssl_context"] = create_ssl_context(**files)
        except OSError as error:
            named = ", ".join(str(path) for path in files.values() if path)
            raise ValueError(f"no certificates or keys could be read from {named}: {error}") from error
    return options
