"""The entries of the catalog: the lives of runs, bells for runs with new events, and skips of
records that an operator set aside for good.
"""

from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from runfold_schemas.topics import OFFSET_MAX, Partition

_GAP_MAX = 2**21
"""The offsets between `end` and `base`: an archiver leaves half of them. An entry that leaves more
is no archiver's.
"""


class Life(BaseModel):
    """One life of a run: its log, its agent, session and user, and whether it has ended or was
    deleted.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    run_id: str
    log_id: str
    agent_id: str
    session_id: str | None = None
    user_id: str | None = None
    ended: bool = False
    deleted: bool = False
    """Readers must not show the run any more. Its topic is deleted now or soon."""


class Segments(BaseModel):
    """Where the log of a run lies. Before the first sealing there is no such entry: then the log is
    the topic of base 0.

        archived records | a sealed topic, if any | gap | the topic of `base`, if it exists

    An entry only moves forward: to a higher base, or from `sealed_base` to None.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    run_id: str
    log_id: str
    base: int = Field(gt=0, le=OFFSET_MAX)
    """The offset of the run at which its last topic begins. The topic may not exist yet."""
    end: int = Field(ge=0, le=OFFSET_MAX)
    """The end of the records before `base`."""
    sealed_base: int | None = Field(default=None, ge=0, le=OFFSET_MAX)
    """The base of the topic before the last one, which takes no records any more. None if it is
    archived: then readers take all records before `end` from the archive.
    """
    archived_end: int | None = Field(default=None, ge=0, le=OFFSET_MAX)
    """The offset behind what is archived. None in an entry of an earlier version."""
    archived_records: int | None = Field(default=None, ge=0)
    """How many records before `archived_end` the archive has. With fewer, it lost some."""

    @model_validator(mode="after")
    def _check_order(self) -> "Segments":
        if not (self.sealed_base or 0) <= self.end < self.base:
            raise ValueError("end: must lie behind sealed_base and before base")
        if self.base - self.end > _GAP_MAX:
            raise ValueError(f"base: must lie at most {_GAP_MAX} behind end")
        return self


class ArchivedRun(NamedTuple):
    """What the catalog says of an archived run, and the archive remembers. Of a deleted run the
    archive has the id alone.
    """

    life: Life
    segments: Segments | None


class Bell(BaseModel):
    """The run has new events."""

    model_config = ConfigDict(frozen=True)

    run_id: str


class Skip(BaseModel):
    """An operator's decision that records of a topic count for nothing: those of
    `[offset, next_offset)`. Every reader of the topic follows it, so every replay agrees.
    """

    model_config = ConfigDict(frozen=True)

    topic: str
    partition: int = Field(default=0, ge=0)
    offset: int = Field(ge=0, le=OFFSET_MAX)
    next_offset: int = Field(ge=1, le=OFFSET_MAX + 1)

    @model_validator(mode="after")
    def _check_range(self) -> "Skip":
        if self.next_offset <= self.offset:
            raise ValueError("next_offset: must be greater than offset")
        return self

    @property
    def at(self) -> Partition:
        return Partition(self.topic, self.partition)

    @property
    def offsets(self) -> range:
        return range(self.offset, self.next_offset)
