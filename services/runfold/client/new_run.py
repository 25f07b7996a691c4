"""What a fork is to be."""

from collections.abc import Mapping
from typing import NamedTuple, TypedDict


class NewRun(NamedTuple):
    """The id of a fork, and what it belongs to besides the agent of its source."""

    run_id: str | None = None
    session_id: str | None = None
    labels: Mapping[str, str] = {}
    repairs: bool = True
    """Whether the fork gets the events that make every provider accept its ledger."""


class ForkOptions(TypedDict, total=False):
    """The options of a fork."""

    at: int | None
    """The last offset of the source that the fork includes. By default all events are copied."""
    before_turn: str | None
    """The turn before whose first event the fork ends."""
    run_id: str | None
    """By default a new UUIDv7."""
    session_id: str | None
    """The session that the fork belongs to."""
    labels: Mapping[str, str] | None
    """Labels that are merged over those of the source."""
    repair: bool
    """Whether calls without a result get one, so that every provider accepts the ledger. By default
    True.
    """
