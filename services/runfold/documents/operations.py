"""How an installation works, as JSON."""

from datetime import datetime
from typing import Literal

from pydantic import AliasChoices, BaseModel, Field

OperationsStatus = Literal["ok", "degraded", "failing"]


class Lag(BaseModel):
    records: int = Field(description="Records that are not folded yet.")
    seconds: float | None = Field(
        description="The age of the oldest of them, or an upper bound of it. Null if no projector has ever"
        " reported about a part of the catalog."
    )


class ServerDocument(BaseModel):
    server: str
    status: Literal["ok", "away"]
    since: datetime | None = Field(description="When it went away or came back.")
    last_error: str | None
    last_error_at: datetime | None


class ProjectorDocument(BaseModel):
    worker_id: str
    status: Literal["working", "waiting", "parked", "away"] = Field(
        description="`waiting`: it owns no partition of the catalog. `parked`: it hosts this tenant, which"
        " is quiet. `away`: it has not reported for 20 seconds."
    )
    started_at: datetime
    seen_at: datetime
    edition: str | None
    partitions: list[int]
    active_runs: int
    backlog_runs: int
    lag: Lag


class StuckDocument(BaseModel):
    """Work that waits without progress."""

    what: str = Field(description="As the label `what` of the metric `runfold_stuck`.")
    name: str = Field(description="The run, the topic or the broker, if it is about one.")
    run_id: str | None = Field(description="The run, if `name` is the topic of its log.")
    reason: str
    since: datetime
    worker_id: str


class EditionsDocument(BaseModel):
    current: str | None = None
    building: str | None = None
    joined: str | None = None
    previous: str | None = None


class RebuildDocument(BaseModel):
    edition: str
    status: Literal["running", "done", "failed", "away"]
    started_at: datetime
    seen_at: datetime
    done_records: int
    total_records: int


class VerifyDocument(BaseModel):
    ended_at: datetime
    duration_seconds: float
    status: Literal["ok", "different", "quarantined"]
    differences: int


class TopicsDocument(BaseModel):
    runs: int = Field(description="Topics of runs.")


class ArchiveDocument(BaseModel):
    """The archive, as the process sees it that answers."""

    status: Literal["ok", "away"]
    last_error: str | None = None
    committed_at: datetime | None = Field(
        None, description="When somebody last wrote to the archive. Null if nobody has, or if it is away."
    )
    records: int | None = Field(None, description="The number of archived records. Null if it is away.")
    stored_bytes: int | None = Field(None, description="The size of their files. Null if it is away.")
    logs: int = Field(description="Logs of runs that were sealed: nearly all of them are archived.")


class OperationsDocument(BaseModel):
    as_of: datetime
    status: OperationsStatus = Field(
        "ok", description="`failing`: in a part of the installation nothing is folded."
    )
    reasons: list[str] = Field(default_factory=list, description="Why the status is not `ok`.")
    servers: list[ServerDocument] = Field(description="As the process sees them that answers.")
    projectors: list[ProjectorDocument]
    partitions_without_projector: list[int]
    lag: Lag
    stuck: list[StuckDocument]
    runs: dict[str, int] = Field(description="The number of runs by status.")
    topics: TopicsDocument
    quarantine: dict[str, int] = Field(description="The number of entries by kind.")
    dead_letters: int | None = Field(
        description="Those whose event was not published again, of the newest 20,000. Null while Kafka does"
        " not answer, and while the topic is read for the first time for more than 5 s."
    )
    archive: ArchiveDocument | None = Field(
        None, description="Null if the process that answers has no archive."
    )
    editions: EditionsDocument
    rebuild: RebuildDocument | None = None
    verify_report: VerifyDocument | None = Field(
        None, validation_alias=AliasChoices("verify", "verify_report"), serialization_alias="verify"
    )
