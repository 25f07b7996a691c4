"""The permissions of the principal of one request: which effects of events it may have, and which
runs, sessions and memories it may use.

A thing of another owner is answered as a thing that does not exist, so that nobody can find out
ids by trying them. If the request itself names an agent or a user outside of the limits, the error
says so.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from runfold.http.authorisation import current_principal, is_limited, require_scope
from runfold.http.principal import Principal, Scope
from runfold.http.route_rules import Whose
from runfold.permissions.limits import (
    only_choice,
    reaches_agent,
    reaches_scope,
    reaches_user,
    require_agent,
    require_scope_of_memories,
    require_user,
)
from runfold.permissions.owners import Owners, RunOwner
from runfold_projections.effects import (
    ActsAs,
    ChangesAppState,
    ChangesBank,
    ChangesMemory,
    ChangesSession,
    ChangesUserState,
    Effect,
    JoinsSession,
    ReadsAgent,
    ReadsRun,
    ReadsSession,
    effects_of,
)
from runfold_projections.session import SessionRecord
from runfold_schemas.catalog import Life
from runfold_schemas.errors import (
    ForbiddenError,
    MemoryNotFoundError,
    RunNotFoundError,
    SessionNotFoundError,
)
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import is_generation_log


class Permissions:
    """The permissions of one principal."""

    def __init__(self, principal: Principal, owners: Owners) -> None:
        self.principal = principal
        self.owners = owners
        self.is_limited = is_limited(principal)
        self.is_complete = not self.is_limited and principal.scopes >= frozenset(Scope) - {Scope.administer}
        """Whether no effect can be refused."""

    # Effects.

    async def check_events(self, events: Iterable[AnyEvent], *, app: str, user: str | None) -> None:
        """Checks the effects of events that are appended to a run of this agent and user."""
        if self.is_complete:
            return
        for event in events:
            await self.check_effects(effects_of(event, app=app, user=user), action=event.type)

    async def check_effects(self, effects: Iterable[Effect], *, action: str) -> None:
        """Raises `ForbiddenError`, or the error of a thing that does not exist."""
        if self.is_complete:
            return
        for effect in effects:
            await self._check_effect(effect, action)

    async def _check_effect(self, effect: Effect, action: str) -> None:
        """Needs the scope of the effect, and that its object is within the limits."""
        principal = self.principal
        require_scope(principal, scope_for(effect), action=action)
        match effect:
            case ActsAs():
                require_agent(principal, effect.agent_id, action=action)
                if effect.user_id is not None:
                    require_user(principal, effect.user_id, action=action)
            case JoinsSession() | ChangesSession() | ReadsSession():
                await self.check_session(effect.session_id)
            case ChangesAppState():
                require_agent(principal, effect.app, action=f"a change of `app:` state by {action}")
                require_user(principal, None, action=f"a change of `app:` state by {action}")
            case ChangesUserState():
                require_agent(principal, effect.app, action=action)
                require_user(principal, effect.user, action=action)
            case ChangesMemory():
                await self._check_memory_change(effect, action)
            case ChangesBank():
                require_agent(principal, effect.bank_id, action=action)
                require_user(principal, None, action=action)
            case ReadsAgent():
                require_agent(principal, effect.agent_id, action=action)
            case ReadsRun():
                await self.check_run(effect.run_id, to_read=True)
            case _:
                assert_never(effect)

    async def _check_memory_change(self, change: ChangesMemory, action: str) -> None:
        if change.scope is None and change.memory_id is not None:
            await self.check_memory(change.bank_id, change.memory_id)
        else:
            require_scope_of_memories(self.principal, change.bank_id, change.scope, action=action)

    # Runs.

    async def check_opening(self, run_id: str | None, *, agent_id: str, session_id: str | None) -> None:
        """Checks the effects of opening a run with this id. A run without a session is of no user.
        A limited principal names a session that exists, because others may create a missing one.
        """
        effects: list[Effect] = [ActsAs(agent_id)]
        if session_id is not None:
            effects.append(JoinsSession(session_id))
        else:
            require_user(
                self.principal, None, action="a new run without a session", instead="send session_id"
            )
        if run_id is not None and is_generation_log(run_id):
            effects.append(ChangesMemory(agent_id))
        await self.check_effects(effects, action="a new run")

    async def check_fork(self, source: Life, *, session_id: str | None) -> None:
        """Checks the effects of a fork that belongs to this session, or to none. The source may be
        read, which needs less than to act as its agent.
        """
        user = source.user_id
        if user is None and source.session_id is not None and self.is_limited:
            record = await self.owners.session(source.session_id)
            user = record.user if record is not None else None
        effects: list[Effect] = [ActsAs(source.agent_id, user)]
        if session_id is not None:
            effects.append(JoinsSession(session_id))
        elif user is None:
            require_user(self.principal, None, action="a fork of a run without a user")
        await self.check_effects(effects, action="a fork")

    async def check_run(self, run_id: str, *, to_read: bool) -> None:
        """Raises `RunNotFoundError` for a run outside of the limits. A run is read by those who
        reach its agent or its session, and changed by those who reach its agent.
        """
        if not self.is_limited:
            return
        owner = await self.owners.run(run_id)
        if owner is None or not await self._reaches_run(owner, to_read=to_read):
            raise RunNotFoundError(run_id)

    async def _reaches_run(self, owner: RunOwner, *, to_read: bool) -> bool:
        reaches_its_agent = reaches_agent(self.principal, owner.agent_id)
        if reaches_its_agent and (owner.user_id is not None or self.principal.users is None):
            return reaches_user(self.principal, owner.user_id)
        if owner.session_id is None or not (reaches_its_agent or to_read):
            return False
        record = await self.owners.session(owner.session_id)
        return record is not None and self.reaches_session(record)

    # Sessions.

    async def check_session(self, session_id: str) -> None:
        """Raises `SessionNotFoundError` for a session outside of the limits."""
        if self.is_limited:
            self.check_record(session_id, await self.owners.session(session_id))

    def check_record(self, session_id: str, record: SessionRecord | None) -> None:
        """As `check_session`, for the record of a session that was read just now."""
        if record is None or not self.reaches_session(record):
            raise SessionNotFoundError(session_id)

    def reaches_session(self, record: SessionRecord) -> bool:
        return reaches_agent(self.principal, record.app) and reaches_user(self.principal, record.user)

    # Memories.

    async def check_memory(self, bank_id: str, memory_id: str) -> None:
        """Raises `MemoryNotFoundError` for a memory outside of the limits."""
        if not self.is_limited:
            return
        scope = await self.owners.scope_of_memory(bank_id, memory_id)
        if scope is None or not reaches_scope(self.principal, bank_id, scope):
            raise MemoryNotFoundError(bank_id, memory_id)

    def check_scope(self, bank_id: str, scope: Mapping[str, str] | None, *, action: str) -> None:
        """Raises `OutsideLimitsError` for a scope outside of the limits. None: all scopes."""
        require_scope_of_memories(self.principal, bank_id, scope, action=action)

    def check_bank(self, bank_id: str, *, action: str) -> None:
        """Raises `OutsideLimitsError` unless the bank as a whole is within the limits."""
        require_agent(self.principal, bank_id, action=action)


def scope_for(effect: Effect) -> Scope:
    """The scope that the effect needs."""
    match effect:
        case ActsAs() | JoinsSession() | ChangesSession() | ChangesAppState() | ChangesUserState():
            return Scope.publish
        case ChangesMemory() | ChangesBank():
            return Scope.memories
        case ReadsAgent() | ReadsRun() | ReadsSession():
            return Scope.read
        case _:
            assert_never(effect)


PermissionsOfRequest = Callable[[], Permissions]
"""Returns the permissions of the request that the current task answers."""


OwnersOfRequest = Callable[[], Owners]
"""Returns the owners in the tenant of the request that the current task answers."""


def permissions_by(owners: OwnersOfRequest) -> PermissionsOfRequest:
    """A function that returns the permissions of the current request, with these owners."""
    return lambda: Permissions(current_principal(), owners())


class OwnerChecks:
    """Checks the owners that the parameters of a request name, for limited principals."""

    def __init__(self, owners: OwnersOfRequest) -> None:
        self._owners = owners

    async def __call__(self, principal: Principal, whose: Whose, parameters: Mapping[str, str]) -> None:
        """Raises `ForbiddenError`, or the error of a thing that does not exist."""
        permissions = Permissions(principal, self._owners())
        if whose in (Whose.READ_RUN, Whose.CHANGED_RUN):
            await permissions.check_run(parameters["run_id"], to_read=whose is Whose.READ_RUN)
        elif whose is Whose.SESSION:
            await permissions.check_session(parameters["session_id"])
        elif whose is Whose.LISTED_RUNS:
            await self._check_list(permissions, parameters)

    async def _check_list(self, permissions: Permissions, parameters: Mapping[str, str]) -> None:
        principal = permissions.principal
        agent = only_choice(principal.agents, parameters.get("agent_id"))
        require_agent(principal, agent, action="a list of runs")
        if principal.users is not None:
            if "session_id" not in parameters:
                if "user_id" not in parameters:
                    raise ForbiddenError(
                        "a key that is limited to users lists the runs of one session or of one user:"
                        " send session_id or user_id"
                    )
                require_user(principal, parameters["user_id"], action="a list of runs")
                return
            await permissions.check_session(parameters["session_id"])
