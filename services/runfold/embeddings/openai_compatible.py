"""An embedder behind HTTP: any endpoint that answers `POST {url}/embeddings` as OpenAI's does.

A request that fails for a passing reason is repeated a few times. If it still fails, `embed` raises
`UnavailableError`. Other failures are a `ConfigurationError` that names the setting.
"""

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import sha256
from http import HTTPStatus
from typing import Any, Final, Self

import httpx
import numpy as np
from pydantic import BaseModel, FiniteFloat, SecretStr, ValidationError

from runfold.embeddings.embedder import Vectors, embeddable
from runfold.secret_urls import without_secrets
from runfold.telemetry import outages
from runfold.telemetry.request_times import EMBEDDING_MODEL, REQUEST_TIMES
from runfold_schemas.errors import ConfigurationError, UnavailableError

_SERVER: Final = "The embedding endpoint"
_BATCH_MAX: Final = 32
"""The number of texts in one request. 32 texts have at most 256,000 bytes, so no more tokens.
OpenAI's limit is 300,000 tokens.
"""
_RETRIES: Final = 3
_DETAIL_MAX: Final = 300
_SETTINGS_BY_STATUS: Final[Mapping[int, str]] = {
    HTTPStatus.UNAUTHORIZED: "RUNFOLD_EMBEDDING_API_KEY",
    HTTPStatus.FORBIDDEN: "RUNFOLD_EMBEDDING_API_KEY",
    HTTPStatus.NOT_FOUND: "RUNFOLD_EMBEDDING_URL and RUNFOLD_EMBEDDING_MODEL",
}


class OpenAICompatibleEmbedder:
    """Computes vectors at an endpoint. It connects for the first text.

    Args:
        url: the base URL in front of `/embeddings`, e.g. `https://api.openai.com/v1`.
        model: the endpoint's name of the model.
        api_key: sent as a bearer token.
        dimensions: the length of vectors to request, for models that can shorten them; by default
            the model's own length.
        timeout_seconds: how long to wait in any step of a request.
        retry_seconds: the pause before the second attempt; it doubles before each further attempt.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        api_key: SecretStr | None = None,
        dimensions: int | None = None,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 0.5,
    ) -> None:
        self._url = _endpoint(url)
        self.model = _space(model, self._url, dimensions)
        self.dimensions = dimensions
        self._api_key = api_key.get_secret_value().strip() if api_key else ""
        self._parameters: dict[str, Any] = {"model": model, "encoding_format": "float"}
        if dimensions is not None:
            self._parameters["dimensions"] = dimensions
        self._timeout_seconds = timeout_seconds
        self._pauses_seconds = [retry_seconds * 2**attempt for attempt in range(_RETRIES)]
        self._client: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder.embed`. The first 8,000 bytes of a text are sent."""
        vectors = [np.empty((0, self.dimensions or 0), dtype=np.float32)]
        for first in range(0, len(texts), _BATCH_MAX):
            batch = [embeddable(text) for text in texts[first : first + _BATCH_MAX]]
            vectors.append(self._vectors(await self._request(batch), count=len(batch)))
        return np.concatenate(vectors[1:] or vectors)

    async def _request(self, batch: list[str]) -> bytes:
        for pause_seconds in self._pauses_seconds:
            try:
                return await self._attempt(batch)
            except UnavailableError:
                await asyncio.sleep(pause_seconds)
        return await self._attempt(batch)

    async def _attempt(self, batch: list[str]) -> bytes:
        with REQUEST_TIMES.measured(EMBEDDING_MODEL, "embed"):
            return await self._post(batch)

    async def _post(self, batch: list[str]) -> bytes:
        try:
            response = await self._open_client().post(self._url, json={**self._parameters, "input": batch})
        except httpx.HTTPError as error:
            reason = self._without_key(str(error)) or type(error).__name__
            outages.failed(_SERVER, reason)
            raise UnavailableError(_SERVER, reason=reason) from error
        if response.is_success:
            outages.answered(_SERVER)
            return response.content
        detail = self._without_key(f"HTTP {response.status_code}: {response.text}")[:_DETAIL_MAX]
        if _may_pass(response.status_code):
            # An answer may repeat the texts.
            outages.failed(_SERVER, f"HTTP {response.status_code}")
            raise UnavailableError(_SERVER, reason=detail)
        settings = _SETTINGS_BY_STATUS.get(response.status_code, "the RUNFOLD_EMBEDDING_ settings")
        raise ConfigurationError(f"the embedding endpoint refused the request, check {settings}: {detail}")

    def _open_client(self) -> httpx.AsyncClient:
        if self._client is None:
            headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
            self._client = httpx.AsyncClient(timeout=self._timeout_seconds, headers=headers)
        return self._client

    def _without_key(self, text: str) -> str:
        """`text` without the API key, because some endpoints repeat a wrong key, and errors are
        logged. The endpoint's URL may contain one too.
        """
        text = without_secrets(text)
        return text.replace(self._api_key, "***") if self._api_key else text

    def _vectors(self, body: bytes, *, count: int) -> Vectors:
        try:
            items = sorted(_Answer.model_validate_json(body).data, key=lambda item: item.index)
        except ValidationError as error:
            raise _not_compatible("its answer is not a list of embeddings") from error
        if [item.index for item in items] != list(range(count)):
            raise _not_compatible(
                f"its answer to {count} texts has {len(items)} embeddings, or wrong indexes"
            )
        self._check_lengths({len(item.embedding) for item in items})
        vectors = np.array([item.embedding for item in items], dtype=np.float64)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not lengths.all():
            raise _not_compatible("an embedding has no direction: all of it is 0")
        return np.asarray(vectors / lengths, dtype=np.float32)

    def _check_lengths(self, lengths: set[int]) -> None:
        """Checks the lengths of vectors. If none was requested, the first answer sets it."""
        if self.dimensions is None and len(lengths) == 1:
            [self.dimensions] = lengths
        if lengths != {self.dimensions}:
            raise ConfigurationError(
                f"the embedding endpoint gave vectors of {' and '.join(map(str, sorted(lengths)))}"
                f" dimensions instead of {self.dimensions or 'one length'}: check RUNFOLD_EMBEDDING_MODEL"
                " and RUNFOLD_EMBEDDING_DIMENSIONS"
            )


class _Item(BaseModel):
    index: int
    embedding: list[FiniteFloat]


class _Answer(BaseModel):
    data: list[_Item]


def _endpoint(url: str) -> httpx.URL:
    try:
        return httpx.URL(f"{url.rstrip('/')}/embeddings")
    except httpx.InvalidURL as error:
        reason = without_secrets(str(error))
        raise ConfigurationError(f"RUNFOLD_EMBEDDING_URL is not a URL: {reason}") from None


def _space(model: str, url: httpx.URL, dimensions: int | None) -> str:
    """The name of the vector space. It includes the URL, because two endpoints may use one name for
    different models. The URL is hashed, because it may contain a key.
    """
    source = f"{url} {dimensions or ''}".encode()
    return f"{model}@{sha256(source).hexdigest()[:16]}"


def _may_pass(status: int) -> bool:
    return status >= 500 or status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_TIMEOUT)


def _not_compatible(reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"RUNFOLD_EMBEDDING_URL is not an OpenAI-compatible endpoint for embeddings: {reason}"
    )
