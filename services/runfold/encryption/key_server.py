"""Requests to the server that has the operator's key."""

import asyncio
from collections.abc import Callable
from http.client import HTTPException
from typing import Final

from runfold_schemas.errors import UnavailableError

ANSWER_SECONDS: Final = 10.0
"""The longest time for an answer."""


async def answer_of(server: str, request: Callable[[], bytes]) -> bytes:
    """Runs a request in a thread. Raises `UnavailableError` if the answer does not come in time, or
    has another form.
    """
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await asyncio.to_thread(request)
    except TimeoutError as error:
        raise UnavailableError(server, reason="it does not answer in time") from error
    except (OSError, AttributeError, HTTPException, LookupError, TypeError, ValueError) as error:
        raise UnavailableError(server, reason=" ".join(str(error).split())[:200]) from error
