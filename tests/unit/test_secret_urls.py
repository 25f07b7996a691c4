"""Settings and texts show no password and no key."""

import json
import pickle
import time

import pytest
from pydantic import ValidationError

from runfold.log.settings import LogSettings
from runfold.secret_urls import SecretUrl, without_secrets
from runfold.settings import Settings

HUSH = "hUsH-9"

OPTIONS = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_plain_username": "u",
    "sasl_plain_password": HUSH,
}


def test_no_setting_shows_its_secret():
    settings = Settings(
        mongo=f"mongodb://u:{HUSH}@h/?authMechanismProperties=AWS_SESSION_TOKEN:{HUSH}&tls=true",
        kafka_options=OPTIONS,
        embedding_url=f"https://u:{HUSH}@h/v1",
        embedding_api_key=HUSH,
        generation_url=f"https://h/v1?key={HUSH}",
    )

    endpoint = Settings(embedding_url=f"https://h/v1?code={HUSH}&api-version=3")
    shown = [repr(endpoint), str(endpoint.embedding_url)]
    shown += [repr(settings), str(settings), str(settings.model_dump()), settings.model_dump_json()]
    shown += [repr(settings.log()), str(settings.log().model_dump()), f"{settings.mongo}"]
    assert not [text for text in shown if HUSH in text]
    assert "tls=true" in str(settings.mongo)
    assert settings.log().client_options()["sasl_plain_password"] == HUSH
    assert settings.mongo.get_secret_value().count(HUSH) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"mongo": HUSH},
        {"mongo": [HUSH]},
        {"embedding_url": HUSH},
        {"kafka_options": {**OPTIONS, "sasl_mechanism": "none"}},
        {"kafka_options": {**OPTIONS, "security_protocol": "PLAINTEXT"}},
        {"kafka_options": HUSH},
        {"embedding_api_key": [HUSH]},
        {"database": "a", "prefix": "b", "min_insync_replicas": 2, "mongo": f"mongodb://u:{HUSH}@h"},
    ],
)
def test_a_refused_setting_is_not_repeated(wrong: dict[str, object]):
    with pytest.raises(ValidationError) as refused:
        Settings(**wrong)

    assert HUSH not in str(refused.value)


def test_the_clients_settings_are_not_repeated_either():
    with pytest.raises(ValidationError) as refused:
        LogSettings(kafka_options={**OPTIONS, "sasl_mechanism": "none"})

    assert HUSH not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mongodb://u:p@h/?a=b", "mongodb://***@h/?a=b"),
        ("mongodb://u:p/q@r@h1,h2/db", "mongodb://***@h1,h2/db"),
        ("mongodb+srv://token@h", "mongodb+srv://***@h"),
        (
            'POST https://u:p@h/v1?api-key=k&x=1 "HTTP/1.1"',
            'POST https://***@h/v1?api-key=***&x=1 "HTTP/1.1"',
        ),
        ("GET https://h/v1beta/models?key=AIza", "GET https://h/v1beta/models?key=***"),
        ("?x-goog-api-key=k;a=b", "?x-goog-api-key=***;a=b"),
        (
            "mongodb://h/?tlsCertificateKeyFilePassword=p&tls=true",
            "mongodb://h/?tlsCertificateKeyFilePassword=***&tls=true",
        ),
        ("write to ann@example.com about key=value", "write to ann@example.com about key=value"),
        ("http://h/a and b@c", "http://h/a and b@c"),
    ],
)
def test_logins_and_keys_are_left_out_of_texts(text: str, shown: str):
    assert without_secrets(text) == shown


def test_a_secret_url_is_itself_again_after_a_copy():
    url = SecretUrl(f"https://u:{HUSH}@h")

    assert pickle.loads(pickle.dumps(url)) == url
    assert HUSH not in json.dumps(str(url))


def test_a_long_text_needs_linear_time():
    began = time.process_time()
    text = "://" * 200_000

    assert without_secrets(text) == text
    assert without_secrets(f"{text}me:pw@host 'kafka://a@b@c' x://y") == "://***@host 'kafka://***@c' x://y"
    assert time.process_time() - began < 5
