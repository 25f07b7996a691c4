"""The settings of the services with their defaults. Environment variables override the defaults:
`RUNFOLD_KAFKA`, `RUNFOLD_MONGO`, and so on.

`Settings` refuses values that cannot work, before a service connects anywhere. `fault_of` puts the
refusal into one line.
"""

import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from runfold.log.settings import (
    Addresses,
    LogSettings,
    Options,
    Prefix,
    Replicas,
    Seconds,
    check_replicas,
)
from runfold_schemas.codec import first_fault
from runfold_schemas.topics import PARK_SECONDS_MIN

_TEST_PREFIX = "RUNFOLD_TEST_"
"""The prefix of variables that only Runfold's own tests read."""


def _from_json(value: object) -> object:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError as error:
        raise ValueError(f"the value is not JSON: {error}") from error


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


class Settings(BaseSettings):
    """All settings. Raises pydantic's `ValidationError` for values that cannot work."""

    model_config = SettingsConfigDict(env_prefix="RUNFOLD_", frozen=True)

    kafka: Addresses = Field(
        "127.0.0.1:9092", description="bootstrap servers of Kafka: host:port, several separated by commas"
    )
    kafka_options: Annotated[Options, NoDecode, BeforeValidator(_from_json)] = Field(
        {}, description="further options of every Kafka client, as a JSON object, e.g. security_protocol"
    )
    mongo: str = Field(
        "mongodb://127.0.0.1:27017/?replicaSet=rs0",
        description="connection string of MongoDB, which must be a replica set",
    )
    prefix: Prefix = Field(
        "runfold",
        description="prefix of all topics, and default name of the database; each installation of Runfold"
        " needs its own",
    )
    database: str = Field(
        default_factory=lambda settings: settings["prefix"],
        description="name of the MongoDB database, if it differs from the prefix; two prefixes never share"
        " a database",
        validate_default=True,
    )
    host: str = Field("127.0.0.1", description="address that the HTTP services listen on")
    port: int = Field(
        8080,
        ge=1,
        le=65_534,
        description="port of the HTTP service; the projector serves health and metrics on the port after it",
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
        60.0,
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
    worker_id: str | None = Field(
        None, description="stable name of this projector for Kafka's static group membership"
    )
    wait_timeout_seconds: Seconds = Field(5.0, description="how long a read waits for its min_offset")
    retire_seconds: Seconds = Field(
        20.0,
        description="how long the old edition stays after a rebuild switched to the new one; at least 10"
        " if it is read meanwhile",
    )
    embedding_url: str | None = Field(
        None,
        description="base URL of an OpenAI-compatible endpoint that embeds memories; if unset, a model"
        " runs on this machine",
    )
    embedding_model: str = Field(
        "text-embedding-3-small",
        min_length=1,
        description="model that the embedding endpoint uses; the local model ignores it",
    )
    embedding_api_key: SecretStr | None = Field(
        None, description="API key of the embedding endpoint, if it needs one"
    )
    embedding_dimensions: int | None = Field(
        None,
        ge=1,
        le=65_536,
        description="length of the vectors to request from the embedding endpoint; if unset, the model's"
        " own length",
    )
    generation_model: str | None = Field(
        None,
        min_length=1,
        description="language model that generates memories, e.g. openai:gpt-5-mini; if unset, only direct"
        " facts are added",
    )
    generation_url: str | None = Field(
        None,
        description="base URL of an OpenAI-compatible server for the language model; if unset, the"
        " provider's own",
    )
    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)] = Field(
        "INFO", description="lowest level of log messages: DEBUG, INFO, WARNING or ERROR"
    )

    @field_validator("mongo")
    @classmethod
    def _names_a_host(cls, value: str) -> str:
        if not re.match(r"mongodb(\+srv)?://[^/?]", value):
            raise ValueError("a connection string begins with mongodb:// or mongodb+srv:// and a host")
        return value

    @field_validator("embedding_url", "generation_url")
    @classmethod
    def _is_a_url(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"https?://[^/?#]", value):
            raise ValueError("a URL begins with http:// or https:// and a host")
        return value

    @field_validator("database")
    @classmethod
    def _can_be_a_database(cls, value: str) -> str:
        if not re.fullmatch(r'[^/\\. "$*<>:|?\0]{1,63}', value):
            raise ValueError(
                f'{value!r} cannot name a MongoDB database: use 1 to 63 characters without / \\ . " $ * < >'
                " : | ? and space"
            )
        if value in ("admin", "config", "local"):
            raise ValueError(
                f"{value!r} is a database of MongoDB itself: set RUNFOLD_DATABASE to another name"
            )
        return value

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
        return self

    def log(self, source: str = "runfold") -> LogSettings:
        """The settings of the Kafka clients. `source` is the `ce_source` of published events."""
        return LogSettings(
            kafka=self.kafka,
            kafka_options=self.kafka_options,
            prefix=self.prefix,
            source=source,
            replication_factor=self.replication_factor,
            min_insync_replicas=self.min_insync_replicas,
            publish_timeout_seconds=self.publish_timeout_seconds,
            park_seconds=self.publisher_park_seconds,
        )


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
