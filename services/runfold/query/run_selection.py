"""What a caller selects of the runs: the parameters of lists, for the API, the command line and
Python alike.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from runfold.query.times import Span, Time
from runfold.store.run_filter import RunFilter, RunOrder
from runfold_projections.run import LIVE
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.lists import RunSort, ShownStatus

_LIVE: Final[frozenset[ShownStatus]] = frozenset({*LIVE, "open"})


class RunParameters(BaseModel):
    """The parameters that are the same over HTTP and elsewhere, with their descriptions."""

    model_config = ConfigDict(frozen=True)

    session_id: str | None = Field(None, description="Runs of this session.")
    user_id: str | None = Field(None, description="Runs that were opened for this user.")
    since: Time | None = Field(
        None, description="Runs that started at this time or later. An age is a time too: `1h`, `2d`."
    )
    until: Time | None = Field(None, description="Runs that started before this time.")
    failed_since: Time | None = Field(None, description="Runs that failed at this time or later.")
    ended_since: Time | None = Field(None, description="Runs that ended at this time or later.")
    updated_since: Time | None = Field(None, description="Runs with an event of this time or later.")
    idle: Span | None = Field(
        None, description="Runs that have not ended, and whose last event is older than this: `30m`."
    )
    is_session: bool | None = Field(
        None, description="`true`: only the own runs of sessions. `false`: only other runs."
    )
    text: str | None = Field(
        None,
        description="Up to 40 words. Each begins a word of the run's id, agent, session, user or labels,"
        " or of the first 300 characters of its error. Case does not matter. Sealed texts are not found."
        " A search that takes longer than 5 s is refused: restrict it by other parameters.",
    )
    sort: RunSort = Field(
        "started",
        description="The order of the list. By `duration` and `ended`, only runs that have ended are in it;"
        " by `tokens` (of input and output), only runs that used some.",
    )
    ascending: bool = Field(
        default=False, description="`true`: the smallest first. Otherwise, the newest or largest."
    )


class RunSelection(RunParameters):
    """A selection of runs. Each parameter restricts it further."""

    model_config = ConfigDict(extra="forbid")

    status: Annotated[
        tuple[ShownStatus, ...],
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value or ()),
    ] = ()
    agent_id: str | None = None
    labels: Mapping[str, str] = {}

    @property
    def order(self) -> RunOrder:
        return RunOrder(self.sort, ascending=self.ascending)

    def filter(self) -> RunFilter:
        """The filter. Raises `InvalidEventError` for parameters that contradict each other."""
        ended_since = self.ended_since
        if self.failed_since is not None:
            ended_since = max(self.failed_since, ended_since or self.failed_since)
        return RunFilter(
            agent_id=self.agent_id,
            session_id=self.session_id,
            user_id=self.user_id,
            status=self._statuses(),
            labels=self.labels or None,
            since=self.since,
            until=self.until,
            ended_since=ended_since,
            updated_since=self.updated_since,
            updated_until=None if self.idle is None else datetime.now(UTC) - self.idle,
            is_session=self.is_session,
            text=self.text,
        )

    def _statuses(self) -> tuple[ShownStatus, ...] | None:
        statuses: frozenset[ShownStatus] | None = frozenset(self.status) or None
        choices: tuple[tuple[str, object, frozenset[ShownStatus]], ...] = (
            ("failed_since", self.failed_since, frozenset({"failed"})),
            ("idle", self.idle, _LIVE),
        )
        for field, value, of_field in choices:
            if value is None:
                continue
            statuses = of_field & statuses if statuses is not None else of_field - {"open"}
            if not statuses:
                raise InvalidEventError(f"{field}: no run in this status can match", field=field)
        return tuple(sorted(statuses)) if statuses else None
