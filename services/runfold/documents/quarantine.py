"""The quarantine as JSON."""

from datetime import datetime

from pydantic import BaseModel, Field

from runfold_schemas.lists import QuarantineKind


class QuarantineEntry(BaseModel):
    """Something that is not folded until an operator acts, and the records that are the cause."""

    id: str = Field(description="`run:{run_id}`, `key:{key}` or `record:{topic}-{partition}:{offset}`.")
    kind: QuarantineKind = Field(
        description="A run, a key of a shared topic, or records that belong to neither: of the catalog, or in"
        " a batch that cannot be unpacked."
    )
    topic: str
    partition: int
    offset: int = Field(description="The first record that cannot be folded or stored.")
    next_offset: int = Field(description="The offset after the last of these records.")
    reason: str
    since: datetime
    attempts: int = Field(description="How often a projector has tried.")


class QuarantinePage(BaseModel):
    quarantine: list[QuarantineEntry]
    next_cursor: str | None = None
