"""Runs calls at the same time, and raises the first failure itself instead of a group."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(*calls: Coroutine[Any, Any, None]) -> None:
    """Returns when all have returned. If one fails, cancels the others and raises its error."""
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
