"""What the catalog says: which runs there are, where the log of each is, and which one has
something new.
"""

from pydantic import BaseModel, ConfigDict


class Life(BaseModel):
    """One life of a run: where its log is, whose it is, and whether it has ended or was deleted."""

    model_config = ConfigDict(frozen=True, extra="allow")

    run_id: str
    log_id: str
    agent_id: str
    session_id: str | None = None
    user_id: str | None = None
    ended: bool = False
    deleted: bool = False
    """Nothing of it is to be read any more; its topic is gone or goes."""


class Bell(BaseModel):
    """The run has something new."""

    model_config = ConfigDict(frozen=True)

    run_id: str
