"""The limits of a principal: the agents and the users whose data it may use.

An agent is named by the agent of a run, the app of a session and the id of a bank alike: the runs
of a bank's generations have the bank as their agent, and an engine of Vertex AI is a bank and an
app. The scope of a memory names users by `user` and `user_id`, and agents by `agent_id`,
`app_name`, `agent` and `app`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from runfold.http.principal import Principal
from runfold_schemas.errors import OutsideLimitsError
from runfold_schemas.memories import USER_KEYS

_AGENT_KEYS: Final = ("agent_id", "app_name", "agent", "app")


def reaches_agent(principal: Principal, agent: str | None) -> bool:
    """Whether data of the agent is within the limits. None: of no agent in particular."""
    return principal.agents is None or (agent is not None and agent in principal.agents)


def reaches_user(principal: Principal, user: str | None) -> bool:
    """Whether data of the user is within the limits. None: of no user in particular."""
    return principal.users is None or (user is not None and user in principal.users)


def reaches_scope(principal: Principal, bank_id: str, scope: Mapping[str, str] | None) -> bool:
    """Whether memories of this scope in the bank are within the limits. None: of all scopes."""
    return _reaches_bank(principal, bank_id, scope or {}) and _reaches_users(principal, scope or {})


def require_agent(principal: Principal, agent: str | None, *, action: str) -> None:
    """Raises `OutsideLimitsError` for an agent outside of the limits."""
    if not reaches_agent(principal, agent):
        raise _outside(action, "agent", agent)


def require_user(principal: Principal, user: str | None, *, action: str, instead: str = "") -> None:
    """Raises `OutsideLimitsError` for a user outside of the limits. `instead` says what to send if
    a user is missing.
    """
    if not reaches_user(principal, user):
        raise _outside(action, "user", user, instead=instead)


def require_scope_of_memories(
    principal: Principal, bank_id: str, scope: Mapping[str, str] | None, *, action: str
) -> None:
    """Raises `OutsideLimitsError` for memories outside of the limits."""
    if not _reaches_bank(principal, bank_id, scope or {}):
        raise _outside(action, "agent", bank_id)
    if not _reaches_users(principal, scope or {}):
        users = _values(scope or {}, USER_KEYS)
        instead = "name a user in the scope, such as scope=user:ann"
        raise _outside(action, "user", next(iter(users), None), instead=instead)


def only_choice(allowed: Sequence[str] | None, chosen: str | None) -> str | None:
    """The filter of a list: the chosen one, or else the only one that the principal is limited
    to.
    """
    return allowed[0] if chosen is None and allowed is not None and len(allowed) == 1 else chosen


def _reaches_bank(principal: Principal, bank_id: str, scope: Mapping[str, str]) -> bool:
    return reaches_agent(principal, bank_id) or _are_all_in(_values(scope, _AGENT_KEYS), principal.agents)


def _reaches_users(principal: Principal, scope: Mapping[str, str]) -> bool:
    return principal.users is None or _are_all_in(_values(scope, USER_KEYS), principal.users)


def _values(scope: Mapping[str, str], keys: Sequence[str]) -> set[str]:
    return {scope[key] for key in keys if key in scope}


def _are_all_in(values: Collection[str], allowed: Collection[str] | None) -> bool:
    return bool(values) and all(value in (allowed or ()) for value in values)


def _outside(action: str, kind: str, value: str | None, *, instead: str = "") -> OutsideLimitsError:
    named = f"the {kind} {value!r}" if value is not None else f"all {kind}s"
    hint = f": {instead}" if instead and value is None else ""
    return OutsideLimitsError(
        f"{action} needs a key for {named}, and this key is limited to other {kind}s{hint}",
        limit=f"{kind}s",
        value=value or "",
    )
