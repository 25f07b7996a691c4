"""Tells the process what is used for a tenant: tokens of language models, and bytes that no request
has in its body.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

token_note: Final[ContextVar[Callable[[int], None] | None]] = ContextVar("token note", default=None)
"""Is called with the tokens of each event that the current task publishes, and of each answer of
the language model that it asks."""


bytes_note: Final[ContextVar[Callable[[int], None] | None]] = ContextVar("bytes note", default=None)
"""Is called with the bytes of the events that the current task copies."""


def note_bytes(size: int) -> None:
    """Has the bytes counted as published, if somebody counts them."""
    if (note := bytes_note.get()) is not None:
        note(size)


def note_tokens(tokens: int) -> None:
    """Has the tokens counted for the tenant of the current task, if somebody counts them."""
    if (note := token_note.get()) is not None:
        note(tokens)
