"""The service's connection to Kafka. It is made in the background, so the service starts without
Kafka.
"""

import asyncio
import contextlib
import logging
from typing import Final, NoReturn, Self

from runfold.client.run import Run
from runfold.client.run_cache import Runs
from runfold.client.runfold import Runfold
from runfold.encryption.sealing import Sealing
from runfold.log.clients import LogClients
from runfold.log.settings import LogSettings
from runfold_schemas.errors import ConfigurationError, RunfoldError, UnavailableError

_RETRY_SECONDS: Final = 1.0
_CHECK_SECONDS: Final = 2.0

_log = logging.getLogger(__name__)


class Connection:
    """A `Runfold` from Kafka's first answer to the end of the `async with` block.

    Before, and while the broker's settings are wrong, `runfold` raises the reason. Later the client
    itself survives outages of Kafka. Over `clients`, which are connected already, entering waits
    for the first attempt.
    """

    def __init__(
        self, settings: LogSettings, *, clients: LogClients | None = None, sealing: Sealing | None = None
    ) -> None:
        self.runs = Runs()
        """The runs that requests have named."""
        self._settings = settings
        self._clients = clients
        self._sealing = sealing
        self._runfold: Runfold | None = None
        self._refusal: RunfoldError = UnavailableError("Kafka", reason="not connected yet")
        self._holding: asyncio.Task[NoReturn]
        self._tried = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._holding = asyncio.create_task(self._hold())
        if self._clients is not None:
            await self._tried.wait()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._holding.cancel()
        await asyncio.gather(self._holding, return_exceptions=True)

    async def run(self, run_id: str) -> Run:
        """The run of that id, to publish to it. Raises as `runfold` and `Runfold.get_run` do."""
        return await self.runs.get(self.runfold(), run_id)

    def runfold(self) -> Runfold:
        """Raises `UnavailableError` or `ConfigurationError` while there is no connection."""
        if self._runfold is None:
            raise self._refusal
        return self._runfold

    async def check(self) -> None:
        """Returns if Kafka answers and the catalog can be read to its end."""
        runfold = self.runfold()
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await runfold.connection.catalog.check()
        except TimeoutError as error:
            raise UnavailableError("Kafka", reason=f"no answer within {_CHECK_SECONDS} s") from error

    async def _hold(self) -> NoReturn:
        while True:
            try:
                opened = Runfold.of(self._settings, clients=self._clients, sealing=self._sealing)
                async with opened as runfold:
                    self._runfold = runfold
                    self._tried.set()
                    if self._clients is None:
                        _log.info("connected to Kafka at %s", self._settings.kafka)
                        with contextlib.suppress(UnavailableError):
                            # Requests need not wait: a look-up reads what is missing.
                            await runfold.connection.catalog.follow_all()
                    await asyncio.Event().wait()
            except (UnavailableError, ConfigurationError) as error:
                if str(error) != str(self._refusal):
                    _log.warning("%s", error)
                self._refusal = error
            finally:
                self._runfold = None
                self._tried.set()
            await asyncio.sleep(_RETRY_SECONDS)
