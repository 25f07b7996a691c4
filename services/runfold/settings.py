"""Every setting of the services, with its default; the environment overrides (`RUNFOLD_KAFKA`,
`RUNFOLD_MONGO`, ...).

Values that could not work are refused here, before anything is started; `fault_of` tells it in a
line.
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

_OF_TESTS = "RUNFOLD_TEST_"
"""Variables of our own tests begin so."""


def _from_json(value: object) -> object:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError as error:
        raise ValueError(f"this is not JSON: {error}") from error


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="RUNFOLD_", frozen=True)

    kafka: Addresses = Field(
        "127.0.0.1:9092", description="Kafka's bootstrap.servers: host:port, several by comma"
    )
    kafka_options: Annotated[Options, NoDecode, BeforeValidator(_from_json)] = Field(
        {}, description="JSON: further options of every Kafka client, e.g. security_protocol"
    )
    mongo: str = Field(
        "mongodb://127.0.0.1:27017/?replicaSet=rs0", description="MongoDB's connection string; a replica set"
    )
    prefix: Prefix = Field(
        "runfold",
        description="common prefix of the topics, and the database's name; one prefix is one Runfold",
    )
    database: str = Field(
        default_factory=lambda given: given["prefix"],
        description="name of the MongoDB database, where it is not to be the prefix; never shared by two prefixes",
        validate_default=True,
    )
    host: str = Field("127.0.0.1", description="address that the HTTP services listen on")
    port: int = Field(
        8080,
        ge=1,
        le=65_534,
        description="port of the HTTP service; the projector's health is one port further",
    )
    replication_factor: Replicas = Field(1, description="of the topics that are created; 3 in production")
    min_insync_replicas: Replicas = Field(1, description="of the topics that are created; 2 in production")
    publish_timeout_seconds: Seconds = Field(
        30.0, description="how long a publish waits for Kafka before it fails as retriable"
    )
    park_seconds: Seconds = Field(
        60.0, description="how long a quiet run is still tailed; publishers rely on 10 at the least"
    )
    publisher_park_seconds: Seconds = Field(
        PARK_SECONDS_MIN,
        description="the park time that publishers here assume; lower it together with park_seconds",
    )
    sweep_seconds: Seconds = Field(
        10.0, description="how often a projector looks for records that nobody announced"
    )
    session_timeout_seconds: Seconds = Field(
        10.0, ge=6, le=1800, description="how long a silent projector keeps its runs; Kafka allows 6 to 1800"
    )
    worker_id: str | None = Field(
        None, description="stable name of this projector (static group membership); none by default"
    )
    wait_timeout_seconds: Seconds = Field(5.0, description="how long a read waits for its min_offset")
    retire_seconds: Seconds = Field(
        20.0,
        description="how long the old edition stays after a rebuild was switched to; where it is read meanwhile, 10 at the least",
    )
    embedding_url: str | None = Field(
        None,
        description="base URL of an OpenAI-compatible endpoint that embeds memories; none: a model on this machine",
    )
    embedding_model: str = Field(
        "text-embedding-3-small", min_length=1, description="the endpoint's model; not of the local one"
    )
    embedding_api_key: SecretStr | None = Field(None, description="the endpoint's key, where it wants one")
    embedding_dimensions: int | None = Field(
        None,
        ge=1,
        le=65_536,
        description="asks the endpoint for shorter vectors; as its model has them by default",
    )
    generation_model: str | None = Field(
        None,
        min_length=1,
        description="language model that generates memories, as openai:gpt-5-mini; none: only facts given directly",
    )
    generation_url: str | None = Field(
        None,
        description="base URL of an OpenAI-compatible server that has the model; none: the provider's own",
    )
    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)] = Field(
        "INFO", description="DEBUG, INFO, WARNING or ERROR"
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
                f"{value!r} is no database's name: 1 to 63 characters, none of / \\ . \" $ * < > : | ? or space"
            )
        if value in ("admin", "config", "local"):
            raise ValueError(f"{value!r} is MongoDB's own database: set RUNFOLD_DATABASE to another name")
        return value

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        check_replicas(
            replication_factor=self.replication_factor, min_insync_replicas=self.min_insync_replicas
        )
        if self.park_seconds < self.publisher_park_seconds:
            raise ValueError(
                f"park_seconds={self.park_seconds:g} is less than publisher_park_seconds={self.publisher_park_seconds:g}:"
                " a run would be parked while its publisher believes that it is tailed"
            )
        return self

    def log(self, source: str = "runfold") -> LogSettings:
        """The part of the settings that speaks about the log."""
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
    """The environment variable of a setting."""
    return f"RUNFOLD_{name.upper()}"


def fault_of(error: ValidationError) -> tuple[str, str]:
    """The name of the setting that is wrong, "" where several do not fit together, and what is
    wrong with it.
    """
    field, sentence = first_fault(error)
    name = field.partition(".")[0]
    fault = sentence.removeprefix(f"{field}: ").removeprefix("Value error, ")
    if not name:
        fault = re.sub(r"\b([a-z_]+)(?==)", lambda match: variable(match[1]), fault)
    return name, fault


def unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each variable that looks like a setting and is none: a mistyped one would do
    nothing, silently.
    """
    known = {variable(name) for name in Settings.model_fields}
    for name in sorted(environment):
        if (
            name.upper().startswith("RUNFOLD_")
            and not name.startswith(_OF_TESTS)
            and name.upper() not in known
        ):
            close = get_close_matches(name.upper(), known, n=1)
            meant = f"did you mean {close[0]}?" if close else "`runfold settings` lists them"
            yield f"there is no setting {name}: {meant}"
