"""Which language model the settings ask for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from runfold.generation.model import MemoryModel
from runfold.settings import Settings
from runfold_schemas.errors import ConfigurationError


@asynccontextmanager
async def chosen_model(settings: Settings) -> AsyncIterator[MemoryModel | None]:
    """The model for the length of the block; None where none is named. Raises `ConfigurationError`
    where it cannot be used.
    """
    if settings.generation_model is None:
        yield None
        return
    # The library that speaks to models takes a second to import, and is needed where there is one.
    try:
        from runfold.generation.language_model import connect_model  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            "RUNFOLD_GENERATION_MODEL is set, and what speaks to models is not installed: install runfold[generation]"
        ) from error
    async with connect_model(settings.generation_model, url=settings.generation_url) as model:
        yield model
