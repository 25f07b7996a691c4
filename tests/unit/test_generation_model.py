"""The shipped model, against a server on loopback that speaks OpenAI's chat completions with
answers of a script.
"""

import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.querying import served
from tests.scripted_completions import Endpoint

from runfold.generation.language_model import LanguageModel, connect_model
from runfold.generation.model import Action, Found
from runfold_schemas.errors import ConfigurationError, GenerationFailedError, UnavailableError


@pytest.fixture(autouse=True)
def _without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def connected(endpoint: Endpoint, **options: Any) -> AsyncIterator[LanguageModel]:
    async with (
        served(endpoint.app) as client,
        connect_model("openai:scripted", url=f"{client.base_url}/v1", retries=0, **options) as model,
    ):
        yield model


async def test_facts_are_extracted_with_their_topics():
    endpoint = Endpoint({"facts": [{"fact": "Sails", "topics": ["boats"]}]})

    async with connected(endpoint) as model:
        found = await model.extract(
            '{"role": "user", "text": "I sail"}', instructions="Find what is said of boats."
        )

    assert found == [Found(fact="Sails", topics=["boats"])]
    [asked] = endpoint.requests
    assert asked["model"] == "scripted"
    system, user = asked["messages"]
    assert system["content"] == "Find what is said of boats."
    assert user == {"role": "user", "content": '{"role": "user", "text": "I sail"}'}


async def test_decisions_come_with_their_numbers():
    endpoint = Endpoint({"actions": [{"kind": "delete", "facts": [0], "memory": 1, "text": None}]})

    async with connected(endpoint) as model:
        actions = await model.consolidate(["Hates tea"], ["Sails", "Likes tea"])

    assert actions == [Action(kind="delete", facts=[0], memory=1, text=None)]
    asked = endpoint.requests[0]["messages"][-1]["content"]
    assert asked.splitlines() == [
        "New facts:",
        '{"number": 0, "fact": "Hates tea"}',
        "Memories:",
        '{"number": 0, "memory": "Sails"}',
        '{"number": 1, "memory": "Likes tea"}',
    ]


@pytest.mark.parametrize("nonsense", ['{"facts": 7}', "no JSON at all", '{"facts": [{"fact": "no topics"}]}'])
async def test_an_answer_that_is_none_is_asked_for_once_more(nonsense: str):
    endpoint = Endpoint(nonsense, {"facts": []})

    async with connected(endpoint) as model:
        assert await model.extract("{}", instructions="x") == []

    assert len(endpoint.requests) == 2


async def test_a_model_that_never_answers_as_it_is_asked_has_no_answer():
    endpoint = Endpoint('{"facts": 7}')

    async with connected(endpoint) as model:
        with pytest.raises(GenerationFailedError):
            await model.extract("{}", instructions="x")

    assert len(endpoint.requests) == 2


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, GenerationFailedError),
        (401, ConfigurationError),
        (403, ConfigurationError),
        (404, ConfigurationError),
        (429, UnavailableError),
        (500, UnavailableError),
        (503, UnavailableError),
    ],
)
async def test_a_refusal_says_whether_to_ask_again(status: int, error: type[Exception]):
    async with connected(Endpoint(status)) as model:
        with pytest.raises(error, match=str(status)):
            await model.consolidate(["x"], ["y"])


@pytest.mark.parametrize("status", [401, 403])
async def test_what_a_provider_says_of_a_key_is_not_repeated(status: int):
    async with connected(Endpoint(status)) as model:
        with pytest.raises(ConfigurationError, match="OPENAI_API_KEY") as refusal:
            await model.extract("{}", instructions="x")

    told = "".join(traceback.format_exception(refusal.value))
    assert "refused with" not in told


async def test_a_server_that_is_away_is_unavailable():
    endpoint = Endpoint({"facts": []})

    async with served(endpoint.app) as client:
        url = f"{client.base_url}/v1"

    async with connect_model("openai:scripted", url=url, retries=0) as model:
        with pytest.raises(UnavailableError):
            await model.extract("{}", instructions="x")


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("nobody:knows-it", None),
        ("openai:gpt-5-mini", None),
        ("anthropic:claude-sonnet-4-5", "http://127.0.0.1:1/v1"),
        ("gpt-5-mini", None),
        ("openai:", "http://127.0.0.1:1/v1"),
        ("openai:scripted", "http://127.0.0.1:port/v1"),
    ],
)
async def test_a_model_that_cannot_be_used_is_told_at_once(name: str, url: str | None):
    with pytest.raises(ConfigurationError, match="RUNFOLD_GENERATION_MODEL is"):
        async with connect_model(name, url=url):
            pass
