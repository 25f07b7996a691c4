"""The settings of the log: of Kafka clients, of new topics, and of blobs and archive beside it."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Self

from aiokafka.helpers import create_ssl_context
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    model_validator,
)

from runfold.blobs.settings import BYTES_MAX, BYTES_MIN, BlobBytesMax, BlobBytesMin, BlobUrl
from runfold.log import oauth
from runfold.log.archived_logs import ArchivedLogs
from runfold.log.effect_keys import EffectKeys, read_effect_keys
from runfold_schemas.errors import ConfigurationError, InvalidIdError
from runfold_schemas.topics import PARK_SECONDS_MIN, PARTITIONS_MAX, Topics

_SSL_FILES: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile")

OPTIONS: Final = frozenset(
    {
        "client_id",
        "connections_max_idle_ms",
        "metadata_max_age_ms",
        "retry_backoff_ms",
        "sasl_mechanism",
        "sasl_oauth_token_provider",
        "sasl_plain_password",
        "sasl_plain_username",
        "security_protocol",
        "ssl_context",
        *oauth.OPTIONS,
        *_SSL_FILES,
    }
)
"""The options that all clients accept: producer, consumer, admin client and FastStream's broker."""

_ONE_OF: Final = {
    "security_protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl_mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
}

_SECRET: Final = frozenset({"sasl_plain_password", oauth.CLIENT_SECRET})

_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")

_QUOTED_MAX: Final = 100

PREFIX_DEFAULT: Final = "runfold"

_SECONDS_MAX: Final = 24 * 3600
"""The limit of durations: Kafka's protocol has 32 bits for a time in milliseconds."""

_LONG_SECONDS_MAX: Final = 100 * 366 * 24 * 3600
"""The limit of durations that are compared with times of records."""


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
    """`options`, with their password hidden, if every client accepts them and the named files can
    be read. Otherwise raises `ValueError`.
    """
    for name, value in options.items():
        if name not in OPTIONS:
            close = get_close_matches(name, sorted(OPTIONS), n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(sorted(OPTIONS))}"
            raise ValueError(f"there is no option {name[:_QUOTED_MAX]!r}; {hint}")
        if name in _ONE_OF and value not in _ONE_OF[name]:
            raise ValueError(f"{name} is one of {', '.join(_ONE_OF[name])}")
        if name in _SSL_FILES and value is not None and not Path(value).is_file():
            raise ValueError(f"{name}: there is no file {value}")
    _check_protocol({name: value for name, value in options.items() if value is not None})
    _for_aiokafka(options)
    return {
        name: SecretStr(value) if name in _SECRET and isinstance(value, str) else value
        for name, value in options.items()
    }


def check_replicas(*, replication_factor: int, min_insync_replicas: int) -> None:
    """Raises `ValueError` if topics have fewer replicas than a record needs."""
    if min_insync_replicas > replication_factor:
        raise ValueError(
            f"min_insync_replicas={min_insync_replicas} is more than replication_factor={replication_factor}:"
            " no record could be published"
        )


def _read_effect_keys(value: object) -> object:
    if not isinstance(value, str | Path):
        return value
    try:
        return read_effect_keys(Path(value))
    except ConfigurationError as error:
        raise ValueError(str(error)) from error


def checked_key_url(value: str) -> str:
    """`value`, if it can name an encryption key. Otherwise raises `ValueError`."""
    if not re.fullmatch(r"file:/.+|vault(\+http)?://[^/]+/.+|aws-kms:.+", value):
        raise ValueError("a key is file:/path, vault://host/v1/transit/keys/name or aws-kms:ID")
    return value


def _parts(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


ClearLabels = Annotated[tuple[str, ...], BeforeValidator(_parts)]
KeyUrl = Annotated[str, AfterValidator(checked_key_url)]
Addresses = Annotated[str, AfterValidator(checked_addresses)]
Prefix = Annotated[str, AfterValidator(checked_prefix)]
Options = Annotated[Mapping[str, Any], AfterValidator(checked_options)]
Replicas = Annotated[int, Field(ge=1, le=32_767)]
Partitions = Annotated[int, Field(ge=1, le=PARTITIONS_MAX)]
Seconds = Annotated[float, Field(gt=0, le=_SECONDS_MAX, allow_inf_nan=False)]
LongSeconds = Annotated[float, Field(gt=0, le=_LONG_SECONDS_MAX, allow_inf_nan=False)]


class LogSettings(BaseModel):
    """The settings of the Kafka clients, of new topics and of the blob store. `kafka_options` are
    passed to every aiokafka client, for example `security_protocol`, `ssl_context`,
    `sasl_mechanism`.
    """

    model_config = ConfigDict(
        frozen=True, arbitrary_types_allowed=True, extra="forbid", hide_input_in_errors=True
    )

    kafka: Addresses = "127.0.0.1:9092"
    """`bootstrap.servers`: host:port, several separated by commas."""
    prefix: str = PREFIX_DEFAULT
    create_topics: bool = True
    """Whether a client creates the shared topics of a prefix that nobody has used yet."""
    partitions: Partitions | None = None
    """The number of partitions of the catalog and of each shared topic. If it is unset, a client
    reads it from Kafka, or creates the topics with the default.
    """
    replication_factor: Replicas = 1
    min_insync_replicas: Replicas = 1
    source: str = "runfold"
    """The `ce_source` of published events: a URI reference that names the producer."""
    publish_timeout_seconds: Seconds = 30.0
    """How long a publish waits for Kafka before it fails with a retriable error."""
    park_seconds: Seconds = PARK_SECONDS_MIN
    """The shortest `park_seconds` of any projector on this log."""
    kafka_options: Options = Field({}, repr=False)
    effect_keys: Annotated[EffectKeys | None, BeforeValidator(_read_effect_keys)] = Field(None, repr=False)
    """The keys of effects, or the path of their file: see `runfold.log.effect_keys`."""
    blobs: BlobUrl | None = None
    """The URL of the blob store. If it is unset, large bytes stay in the events."""
    blob_bytes_min: BlobBytesMin = BYTES_MIN
    """The size from which on bytes leave the event."""
    blob_bytes_max: BlobBytesMax = BYTES_MAX
    """The size of the largest blob."""
    archive_url: BlobUrl | None = None
    """The URL of the archive. If it is unset, archived parts of logs cannot be read."""
    _archived: ArchivedLogs | None = PrivateAttr(None)
    encryption_key: KeyUrl | None = None
    """The URL of the key that wraps all others. If it is unset, events are stored in clear."""
    encryption_clear_labels: ClearLabels | None = None
    """The keys of labels that stay clear, so that lists can be filtered by them."""
    encryption_cache_seconds: Seconds = 3600.0
    """How long unwrapped keys are used while the server with the key does not answer."""

    @model_validator(mode="after")
    def _replicas_suffice(self) -> Self:
        check_replicas(
            replication_factor=self.replication_factor, min_insync_replicas=self.min_insync_replicas
        )
        return self

    @property
    def topics(self) -> Topics:
        """The names of the topics, and their number of partitions if it is known."""
        return _topics(self.prefix, self.partitions)

    @property
    def archived(self) -> ArchivedLogs | None:
        """Reads archived records. None if no archive was opened: see `with_archived`."""
        return self._archived

    def with_archived(self, archived: ArchivedLogs) -> Self:
        """The same with the opened archive."""
        settings = self.model_copy()
        settings._archived = archived  # noqa: SLF001  # of this class
        return settings

    def of_visitor(self) -> Self:
        """The same for a program that uses what a service has set up. With another prefix than the
        default one, which somebody may have mistyped, it creates no topics.
        """
        return self.model_copy(update={"create_topics": self.prefix == PREFIX_DEFAULT})

    def client_options(self) -> dict[str, Any]:
        """The options of every aiokafka client. The paths `ssl_cafile`, `ssl_certfile` and
        `ssl_keyfile` become the `ssl_context` that aiokafka needs, and the options of OAUTHBEARER a
        token provider.
        """
        return {"bootstrap_servers": self.kafka, **_for_aiokafka(self.kafka_options)}


@lru_cache(maxsize=1_000)
def _topics(prefix: str, partitions: int | None) -> Topics:
    return Topics(prefix, partitions)


def _check_protocol(options: Mapping[str, Any]) -> None:
    """Raises `ValueError` if security options are missing or have no effect."""
    protocol = options.get("security_protocol", "PLAINTEXT")
    for name in options:
        part = name.partition("_")[0].upper()
        if part in ("SSL", "SASL") and part not in protocol:
            raise ValueError(f"{name} has no effect: security_protocol is {protocol}, which has no {part}")
    by_token = options.get("sasl_mechanism") == "OAUTHBEARER"
    if by_token:
        oauth.check(options)
    for name in (*oauth.OPTIONS, oauth.PROVIDER):
        if name in options and not by_token:
            raise ValueError(f"{name} has no effect: it needs sasl_mechanism OAUTHBEARER")
    for name in ("sasl_plain_username", "sasl_plain_password"):
        if protocol.startswith("SASL") and not by_token and name not in options:
            raise ValueError(f"security_protocol {protocol} needs {name}, which is missing")


def _for_aiokafka(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with an SSL context instead of paths, and with a token provider. Raises
    `ValueError` for files without a certificate or key.
    """
    result = {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in options.items()
    }
    if result.get("sasl_mechanism") == "OAUTHBEARER":
        result[oauth.PROVIDER] = oauth.token_provider_of(result)
    result = {name: value for name, value in result.items() if name not in oauth.OPTIONS}
    files = {name.removeprefix("ssl_"): result.pop(name, None) for name in _SSL_FILES}
    if str(result.get("security_protocol")).endswith("SSL") and "ssl_context" not in result:
        try:
            result["ssl_context"] = create_ssl_context(**files)
        except OSError as error:
            paths = ", ".join(str(path) for path in files.values() if path)
            raise ValueError(f"no certificates or keys could be read from {paths}: {error}") from error
    return result
