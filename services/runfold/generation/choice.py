"""Connects the language model that the settings name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from runfold.generation.model import MemoryModel
from runfold.secret_urls import revealed
from runfold.settings import Settings
from runfold_schemas.errors import ConfigurationError


@asynccontextmanager
async def chosen_model(settings: Settings) -> AsyncIterator[MemoryModel | None]:
    """The model that the settings name, connected for the length of the block; None if they name
    none. Raises `ConfigurationError` if the model cannot be used.
    """
    if settings.generation_model is None:
        yield None
        return
    # This library takes a second to import, and is needed only if the settings name a model.
    try:
        from runfold.generation.language_model import connect_model  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            "RUNFOLD_GENERATION_MODEL is set, and the packages for models are not installed:"
            " run pip install 'runfold[generation]'"
        ) from error
    url = revealed(settings.generation_url) if settings.generation_url is not None else None
    async with connect_model(settings.generation_model, url=url) as model:
        yield model
