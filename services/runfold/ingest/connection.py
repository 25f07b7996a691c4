"""The service's connection to Kafka. It is made in the background, so the service starts without
Kafka.
"""

import asyncio
import logging
from typing import Final, NoReturn, Self

from runfold.client.runfold import Runfold
from runfold.log.settings import LogSettings
from runfold_schemas.errors import ConfigurationError, RunfoldError, UnavailableError

_RETRY_SECONDS: Final = 1.0
_CHECK_SECONDS: Final = 2.0

_log = logging.getLogger(__name__)


class Connection:
    """A `Runfold` from Kafka's first answer to the end of the `async with` block.

    Before, and while the broker's settings are wrong, `runfold` raises the reason. Later the client
    itself survives outages of Kafka.
    """

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings
        self._runfold: Runfold | None = None
        self._refusal: RunfoldError = UnavailableError("Kafka", reason="not connected yet")
        self._holding: asyncio.Task[NoReturn]

    async def __aenter__(self) -> Self:
        self._holding = asyncio.create_task(self._hold())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._holding.cancel()
        await asyncio.gather(self._holding, return_exceptions=True)

    def runfold(self) -> Runfold:
        """Raises `UnavailableError` or `ConfigurationError` while there is no connection."""
        if self._runfold is None:
            raise self._refusal
        return self._runfold

    async def check(self) -> None:
        """Returns if Kafka answers and the catalog was read to its end, so that the client knows
        which runs have ended.
        """
        runfold = self.runfold()
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await runfold.connection.catalog.lookup("a run that nobody opens")
        except TimeoutError as error:
            raise UnavailableError("Kafka", reason=f"no answer within {_CHECK_SECONDS} s") from error

    async def _hold(self) -> NoReturn:
        while True:
            try:
                async with Runfold.of(self._settings) as runfold:
                    await runfold.connection.catalog.follow_all()
                    self._runfold = runfold
                    _log.info("connected to Kafka at %s", self._settings.kafka)
                    await asyncio.Event().wait()
            except (UnavailableError, ConfigurationError) as error:
                if str(error) != str(self._refusal):
                    _log.warning("%s", error)
                self._refusal = error
            finally:
                self._runfold = None
            await asyncio.sleep(_RETRY_SECONDS)
