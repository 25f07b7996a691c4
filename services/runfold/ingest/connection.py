"""The service's connection to the log: made in the background, so that the service starts while Kafka is away."""

import asyncio
import logging
from typing import Final, NoReturn

from runfold.client import Runfold
from runfold.log.settings import LogSettings
from runfold_schemas.errors import UnavailableError

_RETRY_SECONDS: Final = 1.0
_CHECK_SECONDS: Final = 2.0

_log = logging.getLogger(__name__)


class Connection:
    """A `Runfold` from the moment that Kafka has answered. `hold` runs beside whoever asks for it."""

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings
        self._runfold: Runfold | None = None
        self._reason = "not connected yet"

    def runfold(self) -> Runfold:
        """Raises `UnavailableError` before the connection stands."""
        if self._runfold is None:
            raise UnavailableError("Kafka", reason=self._reason)
        return self._runfold

    async def check(self) -> None:
        """Returns if Kafka answers and the catalog is read to its end, so that ended runs are known as such."""
        runfold = self.runfold()
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await runfold.catalog.lookup("a run that nobody opens")
        except TimeoutError as error:
            raise UnavailableError("Kafka", reason=f"no answer within {_CHECK_SECONDS} s") from error

    async def hold(self) -> NoReturn:
        """Endless: connects, waiting while Kafka is away, and keeps the connection until it is cancelled.

        Once it stands, the client itself survives that Kafka goes and comes back. Raises `ConfigurationError`.
        """
        while True:
            try:
                async with Runfold.of(self._settings) as runfold:
                    await runfold.catalog.follow_all()
                    self._runfold = runfold
                    _log.info("connected to Kafka at %s", self._settings.kafka)
                    await asyncio.Event().wait()
            except UnavailableError as error:
                if error.reason != self._reason:
                    _log.warning("%s", error)
                self._reason = error.reason
            finally:
                self._runfold = None
            await asyncio.sleep(_RETRY_SECONDS)
