"""Which embedder the settings ask for."""

import logging

from runfold.embeddings.embedder import Embedder
from runfold.embeddings.local import LocalEmbedder
from runfold.settings import Settings
from runfold_schemas.errors import ConfigurationError

_log = logging.getLogger(__name__)


def embedder_of(settings: Settings) -> Embedder:
    """The endpoint at `embedding_url`; without one, the model on this machine.

    Raises `ConfigurationError` where a package for it is missing.
    """
    if settings.embedding_url is not None:
        return _endpoint(settings.embedding_url, settings)
    if settings.embedding_api_key is not None:
        _log.warning(
            "RUNFOLD_EMBEDDING_API_KEY is not used: without RUNFOLD_EMBEDDING_URL the model on this"
            " machine is"
        )
    return LocalEmbedder()


def _endpoint(url: str, settings: Settings) -> Embedder:
    # Whoever uses the local model does not wait for httpx.
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
