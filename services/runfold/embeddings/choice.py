"""Chooses the embedder for the settings."""

import logging

from runfold.embeddings.embedder import Embedder
from runfold.embeddings.local import LocalEmbedder
from runfold.secret_urls import revealed
from runfold.settings import Settings
from runfold_schemas.errors import ConfigurationError

_log = logging.getLogger(__name__)


def embedder_of(settings: Settings) -> Embedder:
    """The embedder for the endpoint at `embedding_url`. If that is unset, the model on this
    machine.

    Raises `ConfigurationError` if a package for it is missing.
    """
    if settings.embedding_url is not None:
        return _endpoint(revealed(settings.embedding_url), settings)
    if settings.embedding_api_key is not None:
        _log.warning(
            "RUNFOLD_EMBEDDING_API_KEY has no effect: RUNFOLD_EMBEDDING_URL is not set, so the model on this"
            " machine is used"
        )
    return LocalEmbedder()


def _endpoint(url: str, settings: Settings) -> Embedder:
    # Imported here, so that the local model needs no httpx.
    try:
        from runfold.embeddings.openai_compatible import OpenAICompatibleEmbedder  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"an embedding endpoint needs {error.name}: pip install 'runfold[memory]'"
        ) from error
    return OpenAICompatibleEmbedder(
        url,
        model=settings.embedding_model,
        api_key=settings.embedding_api_key,
        dimensions=settings.embedding_dimensions,
    )
