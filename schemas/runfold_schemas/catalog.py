"""The entries of the catalog: the lives of runs, and bells for runs with new events."""

from pydantic import BaseModel, ConfigDict


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


class Bell(BaseModel):
    """The run has new events."""

    model_config = ConfigDict(frozen=True)

    run_id: str
