"""A setting that cannot work is refused before anything is started, in a line that names it."""

import inspect
import json
import re
import sys
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from pydantic import ValidationError

from runfold.log import oauth
from runfold.log.settings import OPTIONS, LogSettings
from runfold.settings import Settings, fault_of, unknown_variables
from runfold_schemas.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"RUNFOLD_{name.upper()}", raising=False)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("kafka", "", "'' is not host:port"),
        ("kafka", "kafka://host:9092", "'kafka://host:9092' is not host:port"),
        ("kafka", "one:9092,two:", "'two:' is not host:port"),
        ("kafka", "host:99999", "'host:99999' is not host:port"),
        ("kafka_options", "{broken", "the value is not JSON"),
        ("kafka_options", "[1]", "valid dictionary"),
        ("kafka_options", '{"security_protokol": "x"}', "did you mean security_protocol?"),
        ("kafka_options", '{"security_protocol": "TLS"}', "one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("kafka_options", '{"sasl_mechanism": "PLAIN"}', "security_protocol is PLAINTEXT, which has no SASL"),
        ("kafka_options", '{"security_protocol": "SASL_SSL"}', "needs sasl_plain_username"),
        ("kafka_options", '{"security_protocol": "SSL", "ssl_cafile": "/no/ca"}', "there is no file /no/ca"),
        ("kafka_options", '{"bogus": 1}', "there are: client_id, connections_max_idle_ms"),
        ("mongo", "localhost", "begins with mongodb://"),
        ("mongo", "mongodb://u:pw@h/?w=1&bogus=S3CRET", "unknown option bogus"),
        ("prefix", "a.b", "A-Z, a-z, 0-9 and -"),
        ("database", "a.b/c", "cannot name a MongoDB database"),
        ("database", "", "cannot name a MongoDB database"),
        ("database", "admin", "database of MongoDB itself"),
        ("port", "65535", "less than or equal to 65534"),
        ("replication_factor", "0", "greater than or equal to 1"),
        ("min_insync_replicas", "-1", "greater than or equal to 1"),
        ("sweep_seconds", "-1", "greater than 0"),
        ("retire_seconds", "0", "greater than 0"),
        ("wait_timeout_seconds", "nan", "finite"),
        ("publish_timeout_seconds", "inf", "finite"),
        ("publish_timeout_seconds", "1e9", "less than or equal to 86400"),
        ("session_timeout_seconds", "2", "greater than or equal to 6"),
        ("log_level", "loud", "'DEBUG', 'INFO', 'WARNING' or 'ERROR'"),
    ],
)
def test_what_cannot_work_is_told_with_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
):
    monkeypatch.setenv(f"RUNFOLD_{name.upper()}", value)

    wrong, fault = refusal()

    assert wrong == name
    assert told in fault
    assert "\n" not in fault


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            {"RUNFOLD_REPLICATION_FACTOR": "2", "RUNFOLD_MIN_INSYNC_REPLICAS": "3"},
            "RUNFOLD_MIN_INSYNC_REPLICAS=3 is more than RUNFOLD_REPLICATION_FACTOR=2",
        ),
        (
            {"RUNFOLD_PARK_SECONDS": "5"},
            "RUNFOLD_PARK_SECONDS=5 is less than RUNFOLD_PUBLISHER_PARK_SECONDS=10",
        ),
    ],
)
def test_settings_that_do_not_fit_together_are_both_named(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], told: str
):
    for name, value in values.items():
        monkeypatch.setenv(name, value)

    assert refusal()[1].startswith(told)


def test_what_is_right_is_taken(monkeypatch: pytest.MonkeyPatch):
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_plain_username": "u", "sasl_plain_password": "p"}
    monkeypatch.setenv("RUNFOLD_KAFKA", "one:9092, two:9093,[::1]:9094,three")
    monkeypatch.setenv("RUNFOLD_KAFKA_OPTIONS", json.dumps(options))
    monkeypatch.setenv("RUNFOLD_LOG_LEVEL", "debug")
    monkeypatch.setenv("RUNFOLD_PARK_SECONDS", "5")
    monkeypatch.setenv("RUNFOLD_PUBLISHER_PARK_SECONDS", "5")

    settings = Settings()

    assert settings.log().client_options() == {"bootstrap_servers": settings.kafka, **options}
    assert settings.log_level == "DEBUG"


def test_the_archive_of_settings_is_that_of_their_prefix_and_is_opened_once(tmp_path: Path):
    settings = Settings(archive_url=f"file://{tmp_path}")  # type: ignore[arg-type]  # as in the environment
    acme = settings.of_tenant("acme", database="acme", partitions=None)

    archived = settings.log().archived

    assert archived is settings.log("other").of_visitor().archived is not None
    assert archived is not acme.log().archived is not None
    assert Settings().log().archived is None


def test_the_libraries_of_the_archive_are_missed_when_it_is_needed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)

    with pytest.raises(ConfigurationError, match=re.escape("install 'runfold[archive]'")):
        Settings(archive_url="file:///never-opened").log()  # type: ignore[arg-type]  # as in the environment


def test_the_database_is_the_prefix_until_it_is_told_otherwise(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RUNFOLD_PREFIX", "second")

    assert Settings().database == "second"
    assert Settings(database="other").database == "other"


def test_a_mistyped_variable_is_told_with_the_one_that_was_meant():
    environment = {"RUNFOLD_KAFKAA": "h:1", "RUNFOLD_TEST_KAFKA": "h:1", "RUNFOLD_KAFKA": "h:1", "HOME": "/"}

    assert list(unknown_variables(environment)) == [
        "there is no setting RUNFOLD_KAFKAA: did you mean RUNFOLD_KAFKA?"
    ]


def test_every_option_is_one_that_every_client_of_aiokafka_has():
    ours = {name for name in OPTIONS if name.endswith("file")} | set(oauth.OPTIONS)

    for client in (AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient):
        assert OPTIONS - ours <= inspect.signature(client).parameters.keys()


def test_the_client_refuses_what_the_services_refuse():
    with pytest.raises(ValidationError, match="host:port"):
        LogSettings(kafka="kafka://host:9092")
    with pytest.raises(ValidationError, match="kafka_option\n"):
        LogSettings(kafka_option={})  # type: ignore[call-arg]


def refusal() -> tuple[str, str]:
    with pytest.raises(ValidationError) as refused:
        Settings()
    return fault_of(refused.value)
