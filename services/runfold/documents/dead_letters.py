"""Dead letters as JSON."""

from datetime import datetime

from pydantic import BaseModel, Field


class Requeued(BaseModel):
    """Where the event of a dead letter was published."""

    run_id: str
    offset: int
    event_id: str
    by: str = Field(description="The key or the token that asked for it.")
    at: datetime


class DeadLetterEntry(BaseModel):
    """A record that could not be decoded."""

    id: str = Field(description="`{topic}:{offset}` of the record.")
    topic: str = Field(description="The topic of the record. Its log still has the record.")
    partition: int | None = Field(description="Null for the log of a run, which has one partition.")
    offset: int
    run_id: str | None = Field(description="Null for a record of a shared topic.")
    reason: str
    buried_at: datetime
    bytes: int
    is_cut: bool = Field(description="Whether the dead letter lacks the end of a large record.")
    requeued: Requeued | None = None


class DeadLetterDocument(DeadLetterEntry):
    """A dead letter with its content."""

    key: str | None
    headers: list[tuple[str, str]]
    value: str | None = Field(description="Null if the bytes are no UTF-8.")
    value_base64: str


class DeadLetterPage(BaseModel):
    dead_letters: list[DeadLetterEntry]
    next_cursor: str | None = None
