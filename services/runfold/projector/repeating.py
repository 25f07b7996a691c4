"""Work of a worker that outlives an error in it.

Only an error of a server ends a worker, which then begins anew. Work that looks at all runs does
not end it for another error, because the next worker would meet the same error again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from runfold.projector.quarantine import defect

_PAUSE_SECONDS: Final = 2.0

_log = logging.getLogger(__name__)


async def repeated(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Does the work, and begins it again after an error, until it returns. Raises errors of
    servers.
    """
    while True:
        try:
            return await work()
        except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
            _log.error("%s failed and begins again", what, exc_info=defect(error))
        await asyncio.sleep(_PAUSE_SECONDS)
