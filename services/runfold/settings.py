"""The settings of the services with their defaults. Environment variables override the defaults:
`RUNFOLD_KAFKA`, `RUNFOLD_MONGO`, and so on.

`Settings` refuses values that cannot work, before a service connects anywhere. `fault_of` puts the
refusal into one line.
"""

import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    FilePath,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from runfold.blobs.settings import BYTES_MAX, BYTES_MIN, BlobBytesMax, BlobBytesMin, BlobUrl
from runfold.http.settings import Hosts, HttpSettings, OidcScopes, Origins, ProviderUrl, check_oidc
from runfold.log.effect_keys import read_effect_keys
from runfold.log.settings import (
    Addresses,
    ClearLabels,
    KeyUrl,
    LogSettings,
    LongSeconds,
    Options,
    Partitions,
    Prefix,
    Replicas,
    Seconds,
    check_replicas,
)
from runfold.prices import PriceTable, read_prices
from runfold.secret_urls import MongoUrl, SecretHttpUrl
from runfold.telemetry.log_settings import LogFormat, LogLevel, LogLevels
from runfold_schemas.codec import first_fault
from runfold_schemas.errors import ConfigurationError
from runfold_schemas.topics import PARK_SECONDS_MIN

_TEST_PREFIX = "RUNFOLD_TEST_"
"""The prefix of variables that only Runfold's own tests read."""


def _from_json(value: object) -> object:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError as error:
        raise ValueError(f"the value is not JSON: {error}") from error


class Settings(BaseSettings):
    """All settings. Raises pydantic's `ValidationError` for values that cannot work."""

    # A refused value may contain a password, so pydantic's errors do not show it.
    model_config = SettingsConfigDict(env_prefix="RUNFOLD_", frozen=True, hide_input_in_errors=True)

    kafka: Addresses = Field(
        "127.0.0.1:9092", description="bootstrap servers of Kafka: host:port, several separated by commas"
    )
    kafka_options: Annotated[Options, NoDecode, BeforeValidator(_from_json)] = Field(
        {},
        description="further options of every Kafka client, as a JSON object, e.g. security_protocol",
        repr=False,
    )
    mongo: MongoUrl = Field(
        "mongodb://127.0.0.1:27017/?replicaSet=rs0",
        description="connection string of MongoDB, which must be a replica set",
        validate_default=True,
    )
    prefix: Prefix = Field(
        "runfold",
        description="prefix of all topics, and default name of the database; each installation of Runfold"
        " needs its own",
    )
    partitions: Partitions | None = Field(
        None,
        description="number of partitions with which the catalog and the shared topics are created, and which"
        " they must have; if unset, 12 for new topics, and any for topics that exist",
    )
    database: str = Field(
        default_factory=lambda settings: settings["prefix"],
        description="name of the MongoDB database, if it differs from the prefix; two prefixes never share"
        " a database",
        validate_default=True,
    )
    blobs: BlobUrl | None = Field(
        None,
        description="URL of the store of large images, documents, audio and video: file:///directory,"
        " s3://bucket/path, gs://bucket/path or az://container/path; if unset, they stay in the events",
    )
    blob_bytes_min: BlobBytesMin = Field(
        BYTES_MIN, description="size from which on bytes are stored in the blob store and not in the event"
    )
    blob_bytes_max: BlobBytesMax = Field(BYTES_MAX, description="size of the largest blob, in bytes")
    archive_url: BlobUrl | None = Field(
        None, description="URL of the archive of runs whose topics were deleted; as for the blob store"
    )
    archive_after_seconds: LongSeconds = Field(600.0, description="how long after its end a run is archived")
    archive_quiet_seconds: LongSeconds = Field(604_800.0, description="how long an open run has to be quiet")
    archive_delete_seconds: LongSeconds = Field(60.0, description="how long an archived run's topic stays")
    archive_erase_seconds: LongSeconds = Field(3600.0, description="how long archive files keep deleted runs")
    archive_compact_files: int = Field(32, ge=2, description="number of small archive files that become one")
    archive_catalog_seconds: LongSeconds | None = Field(None, description="how long ended runs stay listed")
    host: str = Field("127.0.0.1", description="address that the HTTP services listen on")
    port: int = Field(
        8080,
        ge=1,
        le=65_534,
        description="port of the HTTP service; the projector serves health and metrics on the port after it",
    )
    authentication: Literal["required", "none"] | None = Field(
        None,
        description="required: every request needs an API key or a token; none: everybody who reaches the"
        " service may do everything; if unset, none, and the services listen on loopback only",
    )
    api_key: SecretStr | None = Field(None, description="API key or token that clients of the HTTP API send")
    oidc_issuer: ProviderUrl | None = Field(
        None, description="issuer of the tokens (JWT) that are accepted beside API keys: an https URL"
    )
    oidc_audience: str | None = Field(None, min_length=1, description="audience that tokens must name")
    oidc_jwks_url: ProviderUrl | None = Field(
        None, description="URL of the issuer's public keys; if unset, the issuer's description names it"
    )
    oidc_scopes_claim: str = Field(
        "scope",
        min_length=1,
        description="claim that says what a token's holder may do: a list, or words; a.b is b within a",
    )
    oidc_scopes: Annotated[OidcScopes | None, NoDecode, BeforeValidator(_from_json)] = Field(
        None,
        description="what the words of that claim allow, as a JSON object of lists of publish, read,"
        " memories and administer; if unset, runfold:publish allows publish, and so on",
    )
    oidc_tenant_claim: str | None = Field(
        None,
        description="claim that names the tenant of a token, which is RUNFOLD_PREFIX in an installation"
        " without tenants; if unset, every token is of that tenant",
    )
    oidc_agents_claim: str | None = Field(
        None, description="claim with the agents that a token is limited to; if unset, no limit"
    )
    oidc_users_claim: str | None = Field(
        None, description="claim with the users that a token is limited to, e.g. sub; if unset, no limit"
    )
    oidc_clock_skew_seconds: float = Field(
        300.0,
        ge=0,
        le=3600,
        description="how far in the future the begin of a token may be, for clocks that differ",
    )
    oidc_client_id: str | None = Field(
        None, min_length=1, description="client at the provider by which people log in to the console"
    )
    oidc_client_secret: SecretStr | None = Field(
        None, description="secret of that client; if unset, it is a public one"
    )
    oidc_console_url: ProviderUrl | None = Field(
        None, description="URL of the console; the provider leads back to v1/login/oidc/done below it"
    )
    oidc_login_scopes: str = Field(
        "openid", min_length=1, description="scopes that a login asks the provider for, separated by spaces"
    )
    allowed_hosts: Hosts | None = Field(
        None,
        description="names that clients may use for the HTTP services, without ports, separated by commas,"
        " e.g. *.example.com; if unset, a service on loopback has loopback names only, others have any name",
    )
    allowed_origins: Origins | None = Field(
        None,
        description="origins of web pages that may use the HTTP services, separated by commas, e.g."
        " https://app.example.com; if unset, no pages but their own",
    )
    client_timeout_seconds: Seconds = Field(
        20.0,
        description="how long an HTTP service waits for the head of a request, or for 512 bytes a second of"
        " its body; three times as long for a client that does not read its answer",
    )
    keep_alive_seconds: int = Field(
        5,
        ge=1,
        le=3600,
        description="how long an HTTP connection stays open without a request; at least 4, because"
        " Python's clients use a connection again for 3 s; behind a gateway, set it"
        " higher than the gateway's own time",
    )
    connections_max: int = Field(
        2_000,
        ge=1,
        description="how many connections an HTTP service has at once; more get 503",
    )
    followers_max: int = Field(
        1_000, ge=1, description="how many followers of runs an HTTP service has at once; more get 503"
    )
    audit_log: str | None = Field(
        None,
        min_length=1,
        description="file to which an HTTP service appends a line of JSON for each request, stdout or"
        " otlp; if unset, there is no audit log",
    )
    effect_keys: FilePath | None = Field(
        None,
        description="path of a file with the keys of effects, which `runfold effects generate` makes: with"
        " it, events of runs change memories, banks and shared state only if a key has signed them; if"
        " unset, all do",
    )
    replication_factor: Replicas = Field(
        1, description="replication factor of the topics that Runfold creates; use 3 in production"
    )
    min_insync_replicas: Replicas = Field(
        1, description="min.insync.replicas of the topics that Runfold creates; use 2 in production"
    )
    publish_timeout_seconds: Seconds = Field(
        30.0, description="how long a publish waits for Kafka before it fails with a retriable error"
    )
    park_seconds: Seconds = Field(
        300.0,
        description="how long a projector tails a run without new events; at least 10, because"
        " publishers rely on that",
    )
    publisher_park_seconds: Seconds = Field(
        PARK_SECONDS_MIN,
        description="the park_seconds that publishers in this process assume; lower both together",
    )
    sweep_seconds: Seconds = Field(
        10.0, description="how often a projector looks for records that were not announced in the catalog"
    )
    session_timeout_seconds: Seconds = Field(
        10.0,
        ge=6,
        le=1800,
        description="how long a projector that does not answer keeps its runs; Kafka allows 6 to 1800",
    )
    worker_id: str | None = Field(None, description="stable name for Kafka's static group membership")
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="how many processes `runfold serve projector` runs, which share the runs; health and"
        " metrics of each are on a port of its own, one after the other",
    )
    wait_timeout_seconds: Seconds = Field(5.0, description="how long a read waits for its min_offset")
    retire_seconds: Seconds = Field(
        20.0,
        description="how long the old edition stays after a rebuild switched to the new one; at least 10"
        " if it is read meanwhile",
    )
    embedding_url: SecretHttpUrl | None = Field(
        None,
        description="base URL of an OpenAI-compatible endpoint that embeds memories; if unset, a model"
        " runs on this machine",
    )
    embedding_model: str = Field(
        "text-embedding-3-small",
        min_length=1,
        description="model that the embedding endpoint uses; the local model ignores it",
    )
    embedding_api_key: SecretStr | None = Field(None, description="API key of that endpoint, if it needs one")
    embedding_dimensions: int | None = Field(
        None,
        ge=1,
        le=65_536,
        description="length of the vectors to request from it; if unset, the model's own length",
    )
    generation_model: str | None = Field(
        None,
        min_length=1,
        description="language model that generates memories, e.g. openai:gpt-5-mini; if unset, only direct"
        " facts are added",
    )
    generation_url: SecretHttpUrl | None = Field(
        None,
        description="base URL of an OpenAI-compatible server for the language model; if unset, the"
        " provider's own",
    )
    prices: Path | None = Field(
        None,
        description="path of a JSON file with the prices of models, for the cost of runs; read when a"
        " service starts; if unset, costs are null",
    )
    signing_keys: FilePath | None = Field(
        None,
        description="path of a PEM file with the keys of evidence, which `runfold evidence generate` makes: a"
        " projector signs with the first private key, and all keys are trusted; if unset, nothing is signed",
    )
    signing_seconds: Seconds = Field(60.0, description="how often a projector signs the heads of logs")
    evidence_bucket: BlobUrl | None = Field(
        None,
        description="URL of a store that gets a copy of each signed tree, such as a bucket with object lock;"
        " as for the blob store",
    )
    encryption_key: KeyUrl | None = Field(
        None,
        description="URL of the key that wraps the keys of users: file:/path,"
        " vault://host/v1/transit/keys/name or aws-kms:ID; if unset, events are stored in clear",
    )
    encryption_clear_labels: Annotated[ClearLabels | None, NoDecode] = Field(
        None,
        description="keys of labels that stay clear, separated by commas; lists can be filtered by these"
        " labels alone",
    )
    encryption_cache_seconds: Seconds = Field(
        3600.0, description="how long events are read and sealed while the encryption key cannot be reached"
    )
    tracer_contents: bool = Field(
        False,
        description="whether the tracer exports what was said and what tools were given and returned",
    )
    tracer_quiet_seconds: Seconds = Field(
        30.0, description="how long a run that has not ended is quiet before the tracer exports it"
    )
    log_level: LogLevel = Field("INFO", description="lowest level of messages: DEBUG, INFO, WARNING or ERROR")
    log_levels: Annotated[LogLevels, NoDecode] = Field(
        {},
        description="levels of single modules, e.g. runfold.projector=debug,aiokafka=warning",
    )
    log_format: LogFormat | None = Field(
        None,
        description="text: readable lines; json: a JSON document a line; if unset, text on a terminal, and"
        " json elsewhere",
    )

    @field_validator("prices")
    @classmethod
    def _has_prices(cls, value: Path | None) -> Path | None:
        if value is not None:
            read_prices(value)
        return value

    @field_validator("effect_keys")
    @classmethod
    def _has_effect_keys(cls, value: Path | None) -> Path | None:
        try:
            if value is not None:
                read_effect_keys(value)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return value

    @field_validator("database")
    @classmethod
    def _can_be_a_database(cls, value: str) -> str:
        return checked_database(value)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        check_replicas(
            replication_factor=self.replication_factor, min_insync_replicas=self.min_insync_replicas
        )
        if self.park_seconds < self.publisher_park_seconds:
            raise ValueError(
                f"park_seconds={self.park_seconds:g} is less than"
                f" publisher_park_seconds={self.publisher_park_seconds:g}:"
                " the projector would park a run while its publisher assumes that it is tailed; lower both"
                " together"
            )
        check_oidc(
            issuer=self.oidc_issuer,
            audience=self.oidc_audience,
            required=self.authentication == "required",
            client_id=self.oidc_client_id,
            console_url=self.oidc_console_url,
        )
        return self

    def price_table(self) -> PriceTable | None:
        """The prices in the file, as they are now. Raises `ValueError`."""
        return read_prices(self.prices) if self.prices is not None else None

    def of_tenant(self, name: str, *, database: str, partitions: int | None) -> Self:
        """The settings of another tenant of the same installation: all but these are the same."""
        return self.model_copy(update={"prefix": name, "database": database, "partitions": partitions})

    def http(self, *, port: int | None = None) -> HttpSettings:
        """The settings of an HTTP service, on the port of the API or on `port`."""
        return HttpSettings(
            host=self.host,
            port=port or self.port,
            authentication=self.authentication,
            allowed_hosts=self.allowed_hosts,
            allowed_origins=self.allowed_origins,
            client_timeout_seconds=self.client_timeout_seconds,
            keep_alive_seconds=self.keep_alive_seconds,
            connections_max=self.connections_max,
            audit_log=self.audit_log,
        )

    def log(self, source: str = "runfold") -> LogSettings:
        """The settings of the Kafka clients. `source` is the `ce_source` of published events."""
        names = Settings.model_fields.keys() & LogSettings.model_fields.keys() - {"park_seconds"}
        same: dict[str, Any] = {name: getattr(self, name) for name in names}
        log = LogSettings(**same, source=source, park_seconds=self.publisher_park_seconds)
        if self.archive_url is None:
            return log
        from runfold.archive.opening import opened  # noqa: PLC0415  # few installations need it

        return log.with_archived(opened(self.archive_url, self.prefix))


def checked_database(value: str) -> str:
    """`value`, if it can name a database of Runfold's. Otherwise raises `ValueError`."""
    if not re.fullmatch(r'[^/\\. "$*<>:|?\0]{1,63}', value):
        raise ValueError(
            f'{value!r} cannot name a MongoDB database: use 1 to 63 characters without / \\ . " $ * < >'
            " : | ? and space"
        )
    if value in ("admin", "config", "local"):
        raise ValueError(f"{value!r} is a database of MongoDB itself: choose another one")
    return value


def variable(name: str) -> str:
    """The name of a setting's environment variable."""
    return f"RUNFOLD_{name.upper()}"


def fault_of(error: ValidationError) -> tuple[str, str]:
    """The name of the wrong setting and what is wrong with it. The name is "" if several settings
    contradict each other.
    """
    field, sentence = first_fault(error)
    name = field.partition(".")[0]
    fault = sentence.removeprefix(f"{field}: ").removeprefix("Value error, ")
    if not name:
        fault = re.sub(r"\b([a-z_]+)(?==)", lambda match: variable(match[1]), fault)
    return name, fault


def unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each `RUNFOLD_` variable that is not a setting. Without this warning a
    mistyped variable would have no effect, and nobody would notice.
    """
    settings = {variable(name) for name in Settings.model_fields}
    for name in sorted(environment):
        if (
            name.upper().startswith("RUNFOLD_")
            and not name.startswith(_TEST_PREFIX)
            and name.upper() not in settings
        ):
            close = get_close_matches(name.upper(), settings, n=1)
            hint = f"did you mean {close[0]}?" if close else "`runfold settings` lists all settings"
            yield f"there is no setting {name}: {hint}"
