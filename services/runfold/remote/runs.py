"""Runs over HTTP: listing them, reading them as they were, forking them, and what agents did, for
clients that reach Runfold's API and not Kafka.

    async with HttpRuns("http://127.0.0.1:8080") as runs:
        failed, cursor = await runs.list(status="failed", failed_since="1h")
        run = await runs.get_run(failed[0].run_id)
        fork = await run.fork(before_turn="turn-2")

The errors are those of `Run`, with the same attributes. Reads show what the projector has folded.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypedDict, Unpack

from pydantic import TypeAdapter

from runfold.client.prefixes import AsOfOptions, RunView, StateChange, as_of
from runfold.documents.agents import AgentDocument, AgentList, AgentStatistics, SharedToolDocument, ToolList
from runfold.documents.runs import RunList, RunSummary
from runfold.remote.api_client import HttpClient, HttpVerbs, pairs, quoted, texts_of
from runfold_projections.run import RunRecord
from runfold_projections.validation import Fault
from runfold_schemas.lists import RunSort, ShownStatus
from runfold_schemas.messages import Message, Provider
from runfold_schemas.runs import ForkedFrom
from runfold_schemas.topics import check_id

_PAGE: Final = 500
_MESSAGES: Final[TypeAdapter[list[Message]]] = TypeAdapter(list[Message])
_FAULTS: Final = TypeAdapter(list[Fault])


Moment = datetime | timedelta | str
"""A time, or how long ago it was: a `timedelta`, or a text such as `1h`."""


class RunFilters(TypedDict, total=False):
    """What a list of runs has: runs to which all of these apply. None does not restrict."""

    status: ShownStatus | Sequence[ShownStatus]
    """One status, or several of which a run has one. `open`: the own runs of sessions that go
    on.
    """
    agent_id: str | None
    session_id: str | None
    user_id: str | None
    labels: Mapping[str, str] | None
    since: Moment | None
    """Runs that started then or later."""
    until: Moment | None
    """Runs that started before."""
    failed_since: Moment | None
    ended_since: Moment | None
    updated_since: Moment | None
    idle: timedelta | str | None
    """Runs that have not ended, and had no event for so long."""
    is_session: bool | None
    """Only the own runs of sessions, or only others."""
    text: str | None
    """Each word begins a word of the run's ids, labels or error."""
    sort: RunSort
    """`started` by default. `duration` and `ended` list only runs that have ended, `tokens` only
    runs that used some.
    """
    ascending: bool


class HttpRuns(HttpVerbs):
    """Runs over HTTP, and statistics of agents. `HttpVerbs` has the parameters."""

    async def list(
        self, *, limit: int = 50, cursor: str | None = None, **filters: Unpack[RunFilters]
    ) -> tuple[Sequence[RunSummary], str | None]:
        """A page of runs, the newest first by default, and the cursor of the next page. The `limit`
        is 1,000 at most. Lists show what the projector has folded. The key of a label must not
        contain a colon. Raises `InvalidEventError`, `UnavailableError`.
        """
        labels = pairs(filters.pop("labels", None) or {}, field="label")
        parameters = {**filters, "label": labels, "limit": limit, "cursor": cursor}
        page = RunList.model_validate_json(
            await self._client.call("GET", "runs", params=texts_of(parameters))
        )
        return page.runs, page.next_cursor

    async def agents(self, *, since: Moment | None = None) -> Sequence[AgentStatistics]:
        """What agents did, by the runs that started since then: by default in the last 7 days, and
        at most 92 days ago. Raises `InvalidEventError`, `UnavailableError`.
        """
        body = await self._client.call("GET", "agents", params=texts_of({"since": since}))
        return AgentList.model_validate_json(body).agents

    async def agent(self, agent_id: str, *, since: Moment | None = None) -> AgentDocument:
        """The same of one agent, with its models and its tools. It need not have a run."""
        path = f"agents/{quoted(check_id(agent_id, name='agent_id'))}"
        body = await self._client.call("GET", path, params=texts_of({"since": since}))
        return AgentDocument.model_validate_json(body)

    async def tools(self, *, since: Moment | None = None) -> Sequence[SharedToolDocument]:
        """The tools of all agents, the most called first. The time is that of `agents`."""
        body = await self._client.call("GET", "tools", params=texts_of({"since": since}))
        return ToolList.model_validate_json(body).tools

    async def get_run(self, run_id: str) -> "HttpRun":
        """The run of that id. Raises `RunNotFoundError`, `UnavailableError`."""
        run = HttpRun(self._client, check_id(run_id, name="run_id"))
        await self._client.call("GET", run.path)
        return run


class HttpRun:
    """One run over HTTP. `HttpRuns.get_run` and `fork` return one."""

    def __init__(
        self,
        client: HttpClient,
        run_id: str,
        *,
        forked_from: ForkedFrom | None = None,
        min_offset: int | None = None,
    ) -> None:
        """Reads wait until the run holds `min_offset`."""
        self.run_id = run_id
        self.path = f"runs/{quoted(run_id)}"
        self.forked_from = forked_from
        """Where the run comes from, if `fork` has returned it."""
        self._client = client
        self._min_offset = min_offset

    async def ledger(self, **options: Unpack[AsOfOptions]) -> list[Message]:
        """As `Run.ledger` without a format."""
        answer = json.loads(await self._get("/ledger", options))
        return _MESSAGES.validate_python(answer["messages"])

    async def faults(
        self,
        provider: Provider,
        *,
        thinking: bool = False,
        model: str | None = None,
        maker: str | None = None,
        **options: Unpack[AsOfOptions],
    ) -> list[Fault]:
        """As `Run.faults`."""
        rules = {"validate": provider, "thinking": thinking, "model": model, "maker": maker}
        return _FAULTS.validate_python(json.loads(await self._get("/ledger", options, **rules))["faults"])

    async def view(self, **options: Unpack[AsOfOptions]) -> RunView:
        """As `Run.view`."""
        state = json.loads(await self._get("/state", options))
        # Whatever was appended in between is not in the record either.
        last = state["next_offset"] - 1
        moment = options if last < 0 else AsOfOptions(as_of_offset=last)
        record = RunRecord.model_validate_json(await self._get("", moment))
        return RunView(record, state["state"], state["offsets"])

    async def state_changes(self, key: str, **options: Unpack[AsOfOptions]) -> list[StateChange]:
        """As `Run.state_changes`."""
        changes: list[StateChange] = []
        first_offset, path = 0, f"/state/{quoted(key)}"
        while True:
            answer = json.loads(await self._get(path, options, first_offset=first_offset, limit=_PAGE))
            changes += (StateChange(**change) for change in answer["changes"])
            if len(answer["changes"]) < _PAGE:
                return changes
            first_offset = answer["next_offset"]

    async def fork(
        self,
        *,
        at: int | None = None,
        before_turn: str | None = None,
        run_id: str | None = None,
        session_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        repair: bool = True,
    ) -> "HttpRun":
        """As `Run.fork`."""
        request = {
            "at": at,
            "before_turn": before_turn,
            "run_id": run_id,
            "session_id": session_id,
            "labels": dict(labels or {}),
            "repair": repair,
        }
        body = json.dumps({name: value for name, value in request.items() if value is not None})
        answer = json.loads(await self._client.call("POST", f"{self.path}/fork", json=body.encode()))
        origin = ForkedFrom.model_validate(answer["forked_from"])
        last = answer["next_offset"] - 1
        return HttpRun(self._client, answer["run_id"], forked_from=origin, min_offset=last)

    async def _get(self, path: str, options: AsOfOptions, **parameters: str | int | None) -> bytes:
        as_of(options)  # which refuses two of them
        sent = texts_of({**options, **parameters, "min_offset": self._min_offset})
        return await self._client.call("GET", f"{self.path}{path}", params=sent)
