"""Every client reaches a secured Kafka with the same options, whichever library opens it."""

import base64
import ssl

import pytest
from faststream.kafka.security import parse_security
from pydantic import ValidationError

from runfold.log.catalog_group import _broker, security_of
from runfold.log.oauth import Tokens, token_provider_of
from runfold.log.settings import LogSettings
from runfold_schemas.errors import ConfigurationError


def test_a_plain_kafka_needs_no_security():
    assert security_of(LogSettings().client_options()) is None


def test_faststream_is_told_each_of_several_addresses():
    broker = _broker(LogSettings(kafka="a:1, b:2"))

    assert broker._connection_kwargs["bootstrap_servers"] == ["a:1", "b:2"]


def test_tls_by_the_names_of_files_becomes_a_context():
    options = LogSettings(kafka_options={"security_protocol": "SSL", "ssl_cafile": None}).client_options()

    assert isinstance(options["ssl_context"], ssl.SSLContext)
    assert not {"ssl_cafile", "ssl_certfile", "ssl_keyfile"} & options.keys()
    assert parse_security(security_of(options)) == {
        "security_protocol": "SSL",
        "ssl_context": options["ssl_context"],
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_faststream_is_told_what_aiokafka_is_told(mechanism: str, protocol: str):
    given = {
        "security_protocol": protocol,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }
    if protocol == "SASL_PLAINTEXT":
        given |= {"ssl_context": None}

    options = LogSettings(kafka_options=given).client_options()

    assert parse_security(security_of(options)) == {name: options[name] for name in {*given, "ssl_context"}}


def test_faststream_gets_a_token_provider_beside_its_security():
    given = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": "https://login.example.com/token",
        "sasl_oauthbearer_client_credentials_client_id": "runfold",
        "sasl_oauthbearer_client_credentials_client_secret": "s3cret",
    }
    settings = LogSettings(kafka_options=given)

    options = settings.client_options()

    assert parse_security(security_of(options))["sasl_mechanism"] == "OAUTHBEARER"
    assert options["sasl_oauth_token_provider"] is settings.client_options()["sasl_oauth_token_provider"]
    assert "s3cret" not in repr(settings.kafka_options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"sasl_mechanism": "GSSAPI"}, "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
        ({"sasl_mechanism": "OAUTHBEARER"}, "needs one of sasl_oauthbearer_token_endpoint_url"),
        (
            {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_endpoint_url": "https://a/b"},
            "needs sasl_oauthbearer_client_credentials_client_id",
        ),
        (
            {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_endpoint_url": "file:///etc/passwd"},
            "begins with https",
        ),
        (
            {
                "sasl_plain_username": "u",
                "sasl_plain_password": "p",
                "sasl_oauthbearer_scope": "kafka",
            },
            "it needs sasl_mechanism OAUTHBEARER",
        ),
    ],
)
def test_options_that_cannot_log_in_are_refused_by_name(options: dict[str, str], reason: str):
    with pytest.raises(ValidationError, match=reason):
        LogSettings(kafka_options={"security_protocol": "SASL_SSL", **options})


def test_msk_without_its_extra_is_refused_with_the_command_that_installs_it(monkeypatch):
    options = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_msk_region": "eu-west-1",
    }
    assert "sasl_oauth_token_provider" in LogSettings(kafka_options=options).client_options()

    monkeypatch.setattr("runfold.log.oauth.find_spec", lambda _: None)
    with pytest.raises(ValidationError, match=r"pip install 'runfold\[msk\]'"):
        LogSettings(kafka_options=options)


async def test_a_token_of_msk_is_signed_with_the_credentials_of_the_process(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    provider = token_provider_of({"sasl_oauthbearer_msk_region": "eu-south-1"})

    token = await provider.token()

    signed = base64.urlsafe_b64decode(token + "==").decode()
    assert signed.startswith("https://kafka.eu-south-1.amazonaws.com/?Action=kafka-cluster%3AConnect")
    assert await provider.token() == token


async def test_a_token_is_fetched_again_before_it_expires():
    tokens = iter([("short", 0.0), ("long", 1000.0), ("never", 1.0)])
    provider = Tokens(lambda: next(tokens))

    assert [await provider.token() for _ in range(3)] == ["short", "long", "long"]


def test_an_unknown_mechanism_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="GSSAPI"):
        security_of({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"})
