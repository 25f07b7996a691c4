"""The sealing of one run's events, as clients call it. Needs no package of its own."""

from collections.abc import Awaitable
from typing import Protocol

from runfold_schemas.events import AnyEvent


class Seal(Protocol):
    """Makes of an encoded event its clear part, and its bytes as they are stored. The subject is
    that of the run, unless another one is named.
    """

    def __call__(
        self, event: AnyEvent, value: bytes, *, subject: str = ...
    ) -> Awaitable[tuple[AnyEvent, bytes]]: ...
