"""The settings of Kafka clients and of new topics, and the checks of their values."""

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
"""The options that all clients accept: producer, consumer, admin client and FastStream's broker."""

_ONE_OF: Final = {
    "security_protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl_mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"),
}

_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")

_SECONDS_MAX: Final = 24 * 3600
"""The limit of durations: Kafka's protocol has 32 bits for a time in milliseconds."""


def checked_addresses(value: str) -> str:
    """`value`, if it is valid for `bootstrap.servers`. Otherwise raises `ValueError`."""
    for address in value.split(","):
        match = _ADDRESS.fullmatch(address.strip())
        if match is None or not 0 < int(match[1] or 9092) < 65_536:
            raise ValueError(f"{address.strip()!r} is not host:port; several are separated by commas")
    return value


def checked_prefix(value: str) -> str:
    """`value`, if the names of topics can begin with it. Otherwise raises `ValueError`."""
    try:
        return Topics(value).prefix
    except InvalidIdError as error:
        raise ValueError(str(error)) from error


def checked_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """`options`, if every client accepts them and the named files can be read. Otherwise raises
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
    """Raises `ValueError` if topics have fewer replicas than a record needs."""
    if min_insync_replicas > replication_factor:
        raise ValueError(
            f"min_insync_replicas={min_insync_replicas} is more than replication_factor={replication_factor}:"
            " no record could be published"
        )


Addresses = Annotated[str, AfterValidator(checked_addresses)]
Prefix = Annotated[str, AfterValidator(checked_prefix)]
Options = Annotated[Mapping[str, Any], AfterValidator(checked_options)]
Replicas = Annotated[int, Field(ge=1, le=32_767)]
Seconds = Annotated[float, Field(gt=0, le=_SECONDS_MAX, allow_inf_nan=False)]


class LogSettings(BaseModel):
    """The settings of the Kafka clients and of new topics. `kafka_options` are passed to every
    aiokafka client, for example `security_protocol`, `ssl_context`, `sasl_mechanism`.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, extra="forbid")

    kafka: Addresses = "127.0.0.1:9092"
    """`bootstrap.servers`: host:port, several separated by commas."""
    prefix: str = "runfold"
    replication_factor: Replicas = 1
    min_insync_replicas: Replicas = 1
    source: str = "runfold"
    """The `ce_source` of published events: a URI reference that names the producer."""
    publish_timeout_seconds: Seconds = 30.0
    """How long a publish waits for Kafka before it fails with a retriable error."""
    park_seconds: Seconds = PARK_SECONDS_MIN
    """The shortest `park_seconds` of any projector on this log."""
    kafka_options: Options = {}

    @model_validator(mode="after")
    def _replicas_suffice(self) -> Self:
        check_replicas(
            replication_factor=self.replication_factor, min_insync_replicas=self.min_insync_replicas
        )
        return self

    def client_options(self) -> dict[str, Any]:
        """The options of every aiokafka client. The paths `ssl_cafile`, `ssl_certfile` and
        `ssl_keyfile` become the `ssl_context` that aiokafka needs.
        """
        return {"bootstrap_servers": self.kafka, **_with_ssl_context(self.kafka_options)}


def _check_protocol(options: Mapping[str, Any]) -> None:
    """Raises `ValueError` if security options are missing or have no effect."""
    protocol = options.get("security_protocol", "PLAINTEXT")
    for name in options:
        part = name.partition("_")[0].upper()
        if part in ("SSL", "SASL") and part not in protocol:
            raise ValueError(f"{name} has no effect: security_protocol is {protocol}, which has no {part}")
    by_password = options.get("sasl_mechanism", "PLAIN") not in ("GSSAPI", "OAUTHBEARER")
    for name in ("sasl_plain_username", "sasl_plain_password"):
        if protocol.startswith("SASL") and by_password and name not in options:
            raise ValueError(f"security_protocol {protocol} needs {name}, which is missing")


def _with_ssl_context(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with an SSL context instead of paths. Raises `ValueError` for files without a
    certificate or key.
    """
    result = dict(options)
    files = {name.removeprefix("ssl_"): result.pop(name, None) for name in _SSL_FILES}
    if str(result.get("security_protocol")).endswith("SSL") and "ssl_context" not in result:
        try:
            result["ssl_context"] = create_ssl_context(**files)
        except OSError as error:
            paths = ", ".join(str(path) for path in files.values() if path)
            raise ValueError(f"no certificates or keys could be read from {paths}: {error}") from error
    return result
