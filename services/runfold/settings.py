"""Every setting of the services, with its default; the environment overrides (`RUNFOLD_KAFKA`, `RUNFOLD_MONGO`, ...)."""

import re
from typing import Any

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from runfold.log.settings import LogSettings
from runfold_schemas.topics import PARK_SECONDS_MIN


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="RUNFOLD_", frozen=True)

    kafka: str = Field("127.0.0.1:9092", description="Kafka's bootstrap.servers: host:port, several by comma")
    kafka_options: dict[str, Any] = Field(
        {}, description="JSON: further options of every Kafka client, e.g. security_protocol"
    )
    mongo: str = Field(
        "mongodb://127.0.0.1:27017/?replicaSet=rs0", description="MongoDB's connection string; a replica set"
    )
    prefix: str = Field("runfold", description="common prefix of the topics; one prefix is one Runfold")
    database: str = Field("runfold", description="name of the MongoDB database")
    host: str = Field("127.0.0.1", description="address that the HTTP services listen on")
    port: int = Field(
        8080, description="port of the HTTP service; the projector's health is one port further"
    )
    replication_factor: int = Field(1, description="of the topics that are created; 3 in production")
    min_insync_replicas: int = Field(1, description="of the topics that are created; 2 in production")
    publish_timeout_seconds: float = Field(
        30.0, description="how long a publish waits for Kafka before it fails as retriable"
    )
    park_seconds: float = Field(
        60.0, description="how long a quiet run is still tailed; publishers rely on 10 at the least"
    )
    publisher_park_seconds: float = Field(
        PARK_SECONDS_MIN,
        description="the park time that publishers here assume; lower it together with park_seconds",
    )
    sweep_seconds: float = Field(
        10.0, description="how often a projector looks for records that nobody announced"
    )
    session_timeout_seconds: float = Field(10.0, description="how long a silent projector keeps its runs")
    worker_id: str | None = Field(
        None, description="stable name of this projector (static group membership); none by default"
    )
    wait_timeout_seconds: float = Field(5.0, description="how long a read waits for its min_offset")
    retire_seconds: float = Field(
        10.0, description="how long the old generation stays after a rebuild was switched to"
    )
    log_level: str = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")

    @field_validator("mongo")
    @classmethod
    def _names_a_host(cls, value: str) -> str:
        if not re.match(r"mongodb(\+srv)?://[^/?]", value):
            raise ValueError("a connection string begins with mongodb:// or mongodb+srv:// and a host")
        return value

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
