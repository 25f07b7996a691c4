"""The budget that a ledger is fitted to, and the ledger that fits it."""

from dataclasses import dataclass, field

from runfold_schemas.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most tokens that the messages of a request may have. Tools and the answer come on top of
    them, so leave room for both. Raises `ValueError` for values without a meaning.
    """

    tokens: int
    cut_to: float = 0.6
    """The share of the budget that remains when messages are left out. With a smaller
    share, requests are cut less often, and each time by more.
    """

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError("a budget has 1 token or more")
        if not 0 < self.cut_to <= 1:
            raise ValueError("cut_to is a share between 0 and 1")


@dataclass(frozen=True, slots=True)
class Fitted:
    """A ledger that fits its budget."""

    messages: list[Message]
    tokens: int
    counted_by: str
    """How the tokens were counted."""
    left_out: list[Message] = field(default_factory=list)
    """The messages to summarize: those before the cut that no summary covers, without instructions
    that are kept. If there are any, and the request has a summary, then that summary is the first
    of them.
    """
    end_offset: int | None = None
    """The `end_offset` of a `Summary` of `left_out`. None if nothing was left out."""
    run_indexes: list[int] = field(default_factory=list)
    """The number of the run of each message, if a session of several runs was fitted."""
    run_index: int = 0
    """The number of the run that `end_offset` belongs to, if a session of several runs was fitted.
    """
