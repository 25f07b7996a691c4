"""Every client reaches a secured Kafka with the same options, whichever library opens it."""

import ssl

import pytest
from faststream.kafka.security import parse_security

from runfold.log.catalog_group import security_of
from runfold.log.settings import LogSettings
from runfold_schemas.errors import ConfigurationError


def test_a_plain_kafka_needs_no_security():
    assert security_of(LogSettings().client_options()) is None


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


def test_a_mechanism_that_needs_more_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="OAUTHBEARER"):
        security_of({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"})
