"""How to reach the log, and what its topics are created with."""

from collections.abc import Mapping
from typing import Any

from aiokafka.helpers import create_ssl_context
from pydantic import BaseModel, ConfigDict

from runfold_schemas.topics import PARK_SECONDS_MIN


class LogSettings(BaseModel):
    """`kafka_options` goes to every aiokafka client as it is: `security_protocol`, `ssl_context`, `sasl_...`."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    kafka: str = "127.0.0.1:9092"
    """`bootstrap.servers`: host:port, several by comma."""
    prefix: str = "runfold"
    replication_factor: int = 1
    min_insync_replicas: int = 1
    source: str = "runfold"
    """`ce_source` of what is published here: a URI reference that names the producer."""
    publish_timeout_seconds: float = 30.0
    """How long a publish waits for Kafka before it fails as retriable."""
    park_seconds: float = PARK_SECONDS_MIN
    """The shortest park time of any projector on this log."""
    kafka_options: Mapping[str, Any] = {}

    def client_options(self) -> dict[str, Any]:
        """What every aiokafka client is opened with. `ssl_cafile`, `ssl_certfile` and `ssl_keyfile` (paths, as text can carry
        them) become the `ssl_context` that aiokafka wants.
        """
        options = {"bootstrap_servers": self.kafka, **self.kafka_options}
        files = {name: options.pop(name, None) for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile")}
        if str(options.get("security_protocol")).endswith("SSL") and "ssl_context" not in options:
            options["ssl_context"] = create_ssl_context(
                cafile=files["ssl_cafile"], certfile=files["ssl_certfile"], keyfile=files["ssl_keyfile"]
            )
        return options
