"""Runs as JSON, with their usage and their cost."""

from datetime import date, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from runfold_projections.run import RunRecord
from runfold_projections.usage import TokenTotals
from runfold_schemas.messages import Provider


class CostDocument(BaseModel):
    """The cost by the table of prices that is set now."""

    amount: float | None = Field(description="Null if it is not known exactly.")
    reason: str | None = Field(description="The reason why the amount is null.")
    currency: str | None = Field(description="Null if no prices are set; `prices_date` likewise.")
    prices_date: date | None = Field(description="The day of the prices.")


class _Totals(TokenTotals):
    """Totals with all numbers, also those that are 0."""

    cache_write_1h_tokens: int = 0
    reasoning_tokens: int = 0
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    server_tool_requests: dict[str, int] = Field(default_factory=dict)


class ModelUsageDocument(_Totals):
    """The usage of a model."""

    model: str | None = Field(description="Null for responses that do not name their model.")
    maker: str | None
    provider: Provider | None = Field(description="The format of the recorded responses.")
    is_others: bool = Field(description="True in the last row of a run with more than 50 models.")
    calls: int
    cost: float | None = Field(description="Null if it is not known exactly: see `usage.cost`.")


class UsageDocument(_Totals):
    """The usage of a run. `input_tokens` includes cached tokens, `output_tokens` reasoning."""

    by_model: list[ModelUsageDocument]
    cost: CostDocument


class _Times(BaseModel):
    ended_at: datetime | None = Field(
        None,
        description="The time of the event that ended the run. Null while the run goes on. Of a run that an"
        " earlier version folded, the time of its last event.",
    )
    duration_seconds: float | None = Field(
        None, description="From `started_at` to `ended_at`. Null while the run goes on."
    )
    is_session: bool = Field(
        False,
        description="Whether the run is a session's own. In status `running` it is open: it goes on until"
        " the session ends.",
    )


class RunArchiveDocument(BaseModel):
    """Where the log of a run lies that was sealed."""

    status: Literal["sealed", "archived"] = Field(
        description="`sealed`: the records go from the topic to the archive."
    )
    end: int = Field(description="The records before this offset are archived or sealed.")
    base: int = Field(description="The offset at which the run goes on.")


class RunDocument(_Times, RunRecord):
    """A run record with its usage by model and its cost."""

    usage: UsageDocument
    archive: Annotated[RunArchiveDocument | None, Field(exclude_if=lambda value: value is None)] = None
    """None if the log was never sealed, or if MongoDB does not answer."""


class RunSummary(_Times, RunRecord):
    """A run record in a list."""

    cost: CostDocument


class RunList(BaseModel):
    """A page of runs. The records are those that were saved last, which may lag a moment behind the
    log.
    """

    runs: list[RunSummary]
    next_cursor: str | None = Field(description="Null on the last page.")
