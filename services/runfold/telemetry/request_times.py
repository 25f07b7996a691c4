"""How long requests to servers take: to Kafka, MongoDB and models. Services that have metrics set
the observer. Without one, as in an agent's process, nothing is measured.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

KAFKA: Final = "kafka"
MONGODB: Final = "mongodb"
EMBEDDING_MODEL: Final = "embedding_model"
LANGUAGE_MODEL: Final = "language_model"

ResultT = TypeVar("ResultT")

Observe = Callable[[str, str, float, bool], None]
"""Is called with the server, the operation, the time in seconds, and whether the request failed."""


class RequestTimes:
    """Where the times of one process go."""

    def __init__(self) -> None:
        self.observe: Observe | None = None

    @contextmanager
    def measured(self, server: str, operation: str) -> Iterator[None]:
        """For the length of a request. Any error is a failure, a cancellation is none."""
        began = time.perf_counter()
        try:
            yield
        except Exception:
            self.note(server, operation, time.perf_counter() - began, failed=True)
            raise
        self.note(server, operation, time.perf_counter() - began, failed=False)

    async def awaited(self, server: str, operation: str, answer: Awaitable[ResultT]) -> ResultT:
        """The answer of a request that was sent just now."""
        with self.measured(server, operation):
            return await answer

    def note(self, server: str, operation: str, seconds: float, *, failed: bool) -> None:
        """Notes a request that has ended."""
        if self.observe is not None:
            self.observe(server, operation, seconds, failed)


REQUEST_TIMES: Final = RequestTimes()
"""Those of this process."""
