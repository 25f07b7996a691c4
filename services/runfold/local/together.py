"""Runs calls at the same time and fails with the first failure itself, not with a group around
it.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(*calls: Coroutine[Any, Any, None]) -> None:
    """Return when all have; when one fails, the others are cancelled and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
