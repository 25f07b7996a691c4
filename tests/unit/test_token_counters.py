"""The counter of tokens for a provider: its own if it works offline, and an estimate otherwise."""

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import tiktoken

from runfold.client import token_counters
from runfold.client.token_counters import counter_for, remembered
from runfold_projections.message_tokens import ESTIMATE
from runfold_projections.providers import EncodeOptions
from runfold_schemas.messages import PROVIDERS, Provider

BYTES = tiktoken.Encoding(
    "bytes",
    pat_str=r"\S+|\s+",
    mergeable_ranks={bytes([each]): each for each in range(256)},
    special_tokens={},
)
"""A vocabulary with a token for each byte."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of tiktoken's files, empty, in a process that has read none of them."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("nothing is downloaded")

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    token_counters._load.cache_clear()  # else the order of tests decides
    yield tmp_path
    token_counters._load.cache_clear()


@pytest.fixture
def vocabulary(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the vocabularies that were loaded, with the newest two in the cache."""
    loaded: list[str] = []

    def load(name: str) -> tiktoken.Encoding:
        loaded.append(name)
        return BYTES

    for name in ("o200k_base", "cl100k_base"):
        address = f"https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
        (cache / hashlib.sha1(address.encode()).hexdigest()).write_bytes(b"")  # a name
    monkeypatch.setattr(tiktoken, "get_encoding", load)
    return loaded


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("provider", PROVIDERS)
def test_without_a_vocabulary_tokens_are_estimated_and_nothing_is_downloaded(provider: Provider):
    assert counter_for(provider, {}, None) is ESTIMATE
    assert "estimate" in ESTIMATE.name


@pytest.mark.parametrize(
    ("model", "name"),
    [(None, "o200k_base"), ("gpt-4o", "o200k_base"), ("gpt-4", "cl100k_base"), ("gpt-99-moon", "o200k_base")],
)
def test_openai_counts_with_the_vocabulary_of_its_model(vocabulary: list[str], model: str | None, name: str):
    counter = counter_for("openai-responses", EncodeOptions(model=model), "openai")

    assert counter.name == f"tiktoken ({name})"
    assert vocabulary == [name]
    assert counter.count("Größe") == 7


@pytest.mark.parametrize(
    ("options", "maker"),
    [
        ({}, "api.groq.com"),
        ({}, "deepseek"),
        ({"model": "llama-4"}, None),
    ],
)
def test_other_makers_of_openais_format_have_vocabularies_of_their_own(
    vocabulary: list[str], options: EncodeOptions, maker: str | None
):
    assert counter_for("openai-chat", options, maker) is ESTIMATE
    assert vocabulary == []


@pytest.mark.usefixtures("vocabulary")
@pytest.mark.parametrize("maker", ["OpenAI", "api.openai.com", "ours.openai.azure.com"])
def test_openai_has_several_hosts(maker: str):
    assert counter_for("openai-chat", {}, maker).name.startswith("tiktoken")


def test_a_broken_vocabulary_is_none(vocabulary: list[str], monkeypatch: pytest.MonkeyPatch):
    def fail(_: str) -> NoReturn:
        raise ValueError("the file is cut")

    monkeypatch.setattr(tiktoken, "get_encoding", fail)

    assert counter_for("openai-chat", {}, None) is ESTIMATE
    assert vocabulary == []


def test_each_text_is_counted_once():
    counted: list[str] = []

    def encode(text: str) -> list[int]:
        counted.append(text)
        return [0] * len(text)

    count = remembered(encode)

    assert [count(text) for text in ("ab", "c", "ab")] == [2, 1, 2]
    assert counted == ["ab", "c"]
