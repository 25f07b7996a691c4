"""The rule of every route: which scopes it needs, and by which owner an API key's limits are
checked.

A route without a rule stops the service at its start. docs/access.md has the table in words.
"""

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from runfold.http.principal import Scope


class Whose(Enum):
    """The owner of the data of a route, which decides for a principal that is limited to agents or
    users.
    """

    NOBODY = auto()
    """The route has no data of agents or users."""
    CHANGED_RUN = auto()
    """The run in the path: its agent, and the user of the run or of its session."""
    READ_RUN = auto()
    """As `CHANGED_RUN`. The app of the run's session counts as an agent of the run too."""
    SESSION = auto()
    """The session in the path: its app and its user."""
    LISTED_RUNS = auto()
    """The agent and the session in the query. They are filled in if only one is possible."""
    NAMED = auto()
    """The agent, user, session, bank, memory or scope that the request names. The verbs check them
    (`runfold.permissions`), because they may be in the body.
    """
    EVERYBODY = auto()
    """Data of all agents and users: limited principals are refused."""
    INSTALLATION = auto()
    """Data of all tenants. As `EVERYBODY`, and for principals of the installation's own tenant."""


class Rule(NamedTuple):
    """The principal has to have all scopes of one of the sets. No set: the route is public."""

    scopes: tuple[frozenset[Scope], ...]
    whose: Whose
    opens_run: bool = False
    is_free: bool = False
    """Whether no quota of what is published refuses it, because it ends or deletes something."""

    @property
    def is_public(self) -> bool:
        return not self.scopes

    @property
    def publishes(self) -> bool:
        """Whether the route needs a scope to change something, and quotas count that."""
        return not self.is_free and bool(self.scopes) and all(scopes & _CHANGING for scopes in self.scopes)


_CHANGING: Final = frozenset({Scope.publish, Scope.memories})


def _needs(*scopes: Scope, whose: Whose) -> Rule:
    return Rule((frozenset(scopes),), whose)


_PUBLIC: Final = Rule((), Whose.NOBODY)
_METRICS: Final = _needs(whose=Whose.INSTALLATION)
_LOGIN: Final = _needs(whose=Whose.NAMED)
"""For every holder of a credential."""
_PUBLISH_RUN: Final = _needs(Scope.publish, whose=Whose.CHANGED_RUN)
_READ_RUN: Final = _needs(Scope.read, whose=Whose.READ_RUN)
_FORK_RUN: Final = Rule((frozenset({Scope.publish, Scope.read}),), Whose.READ_RUN, opens_run=True)
"""The run in the path is read. The handler checks the run that begins."""
_READ_SESSION_RUNS: Final = _needs(Scope.read, whose=Whose.SESSION)
_PUBLISH: Final = _needs(Scope.publish, whose=Whose.NAMED)
_READ: Final = _needs(Scope.read, whose=Whose.NAMED)
_PUBLISH_AND_READ: Final = _needs(Scope.publish, Scope.read, whose=Whose.NAMED)
"""For changes whose answers show the whole session, with the state that it shares."""
_FIND_MEMORIES: Final = Rule((frozenset({Scope.read}), frozenset({Scope.memories})), Whose.NAMED)
_MEMORIES: Final = _needs(Scope.memories, whose=Whose.NAMED)
_DELETE_ENGINE: Final = _needs(Scope.memories, Scope.publish, whose=Whose.NAMED)
"""An engine is deleted with its sessions."""
_ADMINISTER: Final = _needs(Scope.administer, whose=Whose.EVERYBODY)

RULES: Final[dict[str, Rule]] = {
    # Every service.
    "GET /": _PUBLIC,
    "GET /console": _PUBLIC,
    "GET /docs": _PUBLIC,
    "GET /docs/assets": _PUBLIC,
    "GET /docs/assets/start.js": _PUBLIC,
    "GET /openapi.json": _PUBLIC,
    "GET /health/live": _PUBLIC,
    "GET /health/ready": _PUBLIC,
    "GET /metrics": _METRICS,
    # The console.
    "GET /v1/login": _LOGIN,
    "POST /v1/login": _LOGIN,
    "DELETE /v1/login": _LOGIN,
    "GET /v1/login/oidc": _PUBLIC,
    "GET /v1/login/oidc/done": _PUBLIC,
    # Runs.
    "POST /v1/runs": _PUBLISH._replace(opens_run=True),
    "POST /v1/runs/{run_id}/bell": _PUBLISH_RUN._replace(is_free=True),
    "POST /v1/runs/{run_id}/events": _PUBLISH_RUN,
    "POST /v1/runs/{run_id}/fork": _FORK_RUN,
    "POST /v1/runs/{run_id}/repair": _PUBLISH_RUN._replace(is_free=True),
    "POST /v1/runs/{run_id}/responses": _PUBLISH_RUN,
    "POST /v1/runs/{run_id}/status": _PUBLISH_RUN._replace(is_free=True),
    "GET /v1/runs": _needs(Scope.read, whose=Whose.LISTED_RUNS),
    "GET /v1/runs/{run_id}": _READ_RUN,
    "DELETE /v1/runs/{run_id}": _PUBLISH_RUN,
    "GET /v1/runs/{run_id}/blobs/{sha256}": _READ_RUN,
    "GET /v1/runs/{run_id}/events": _READ_RUN,
    "GET /v1/runs/{run_id}/follow": _READ_RUN,
    "GET /v1/runs/{run_id}/ledger": _READ_RUN,
    "GET /v1/runs/{run_id}/state": _READ_RUN,
    "GET /v1/runs/{run_id}/state/{key}": _READ_RUN,
    "POST /v1/runs/{run_id}/ledger": _READ_RUN,
    "GET /v1/agents": _READ,
    "GET /v1/agents/{agent_id}": _READ,
    "GET /v1/tools": _READ,
    # Sessions.
    "POST /v1/sessions": _PUBLISH_AND_READ._replace(opens_run=True),
    "GET /v1/sessions": _READ,
    "GET /v1/sessions/{session_id}": _READ,
    "PATCH /v1/sessions/{session_id}": _PUBLISH_AND_READ,
    "DELETE /v1/sessions/{session_id}": _PUBLISH,
    "POST /v1/sessions/{session_id}/end": _PUBLISH_AND_READ._replace(is_free=True),
    "POST /v1/sessions/{session_id}/events": _PUBLISH,
    "GET /v1/sessions/{session_id}/events": _READ,
    "GET /v1/sessions/{session_id}/ledger": _READ_SESSION_RUNS,
    "GET /v1/sessions/{session_id}/runs": _READ_SESSION_RUNS,
    "GET /v1/apps/{app}/state": _READ,
    "GET /v1/apps/{app}/users//state": _READ,
    "GET /v1/apps/{app}/users/{user}/state": _READ,
    "DELETE /v1/apps/{app}/state": _PUBLISH,
    "DELETE /v1/apps/{app}/users//state": _PUBLISH,
    "DELETE /v1/apps/{app}/users/{user}/state": _PUBLISH,
    # Memories.
    "POST /v1/banks": _MEMORIES,
    "GET /v1/banks": _FIND_MEMORIES,
    "GET /v1/banks/{bank_id}": _FIND_MEMORIES,
    "PATCH /v1/banks/{bank_id}": _MEMORIES,
    "DELETE /v1/banks/{bank_id}": _MEMORIES,
    "POST /v1/banks/{bank_id}/memories": _MEMORIES,
    "GET /v1/banks/{bank_id}/memories": _FIND_MEMORIES,
    "POST /v1/banks/{bank_id}/memories/generate": _MEMORIES,
    "POST /v1/banks/{bank_id}/memories/ingest": _MEMORIES,
    "POST /v1/banks/{bank_id}/memories/purge": _MEMORIES._replace(is_free=True),
    "POST /v1/banks/{bank_id}/memories/retrieve": _FIND_MEMORIES,
    "GET /v1/banks/{bank_id}/memories/{memory_id}": _FIND_MEMORIES,
    "PATCH /v1/banks/{bank_id}/memories/{memory_id}": _MEMORIES,
    "DELETE /v1/banks/{bank_id}/memories/{memory_id}": _MEMORIES,
    "GET /v1/banks/{bank_id}/memories/{memory_id}/revisions": _FIND_MEMORIES,
    "GET /v1/banks/{bank_id}/memories/{memory_id}/revisions/{revision_id}": _FIND_MEMORIES,
    "POST /v1/banks/{bank_id}/memories/{memory_id}/rollback": _MEMORIES,
    # Operations.
    "GET /v1/operations": _ADMINISTER,
    "GET /v1/dead-letters": _ADMINISTER,
    "GET /v1/dead-letters/{letter_id}": _ADMINISTER,
    "POST /v1/dead-letters/{letter_id}/requeue": _ADMINISTER,
    "GET /v1/quarantine": _ADMINISTER,
    "GET /v1/quarantine/{entry_id}": _ADMINISTER,
    "POST /v1/quarantine/{entry_id}/retry": _ADMINISTER,
    "POST /v1/quarantine/{entry_id}/skip": _ADMINISTER,
    "DELETE /v1/users/{user}": _ADMINISTER,
    "GET /v1/erasures": _ADMINISTER,
    "GET /v1/erasures/{subject}": _ADMINISTER,
    "GET /v1/keys": _ADMINISTER,
    "POST /v1/keys": _ADMINISTER,
    "GET /v1/keys/{key_id}": _ADMINISTER,
    "DELETE /v1/keys/{key_id}": _ADMINISTER,
    "POST /v1/keys/{key_id}/rotate": _ADMINISTER,
    # Google's protocol, below both versions, with and without project and location.
    "PATCH /": _PUBLIC,
    "POST /": _PUBLIC,
    "POST /reasoningEngines": _MEMORIES,
    "GET /reasoningEngines": _FIND_MEMORIES,
    "GET /reasoningEngines/{engine}": _FIND_MEMORIES,
    "PATCH /reasoningEngines/{engine}": _MEMORIES,
    "DELETE /reasoningEngines/{engine}": _DELETE_ENGINE,
    "GET /reasoningEngines/{engine}/operations/{operation}": _FIND_MEMORIES,
    "POST /reasoningEngines/{engine}/sessions": _PUBLISH_AND_READ._replace(opens_run=True),
    "GET /reasoningEngines/{engine}/sessions": _READ,
    "GET /reasoningEngines/{engine}/sessions/{session}": _READ,
    "PATCH /reasoningEngines/{engine}/sessions/{session}": _PUBLISH_AND_READ,
    "DELETE /reasoningEngines/{engine}/sessions/{session}": _PUBLISH,
    "POST /reasoningEngines/{engine}/sessions/{session}:appendEvent": _PUBLISH,
    "GET /reasoningEngines/{engine}/sessions/{session}/events": _READ,
    "GET /reasoningEngines/{engine}/sessions/{session}/operations/{operation}": _READ,
    "POST /reasoningEngines/{engine}/memories": _MEMORIES,
    "GET /reasoningEngines/{engine}/memories": _FIND_MEMORIES,
    "POST /reasoningEngines/{engine}/memories:generate": _MEMORIES,
    "POST /reasoningEngines/{engine}/memories:ingestEvents": _MEMORIES,
    "POST /reasoningEngines/{engine}/memories:purge": _MEMORIES._replace(is_free=True),
    "POST /reasoningEngines/{engine}/memories:retrieve": _FIND_MEMORIES,
    "POST /reasoningEngines/{engine}/memories:retrieveProfiles": _FIND_MEMORIES,
    "GET /reasoningEngines/{engine}/memories/{memory}": _FIND_MEMORIES,
    "PATCH /reasoningEngines/{engine}/memories/{memory}": _MEMORIES,
    "DELETE /reasoningEngines/{engine}/memories/{memory}": _MEMORIES,
    "POST /reasoningEngines/{engine}/memories/{memory}:rollback": _MEMORIES,
    "GET /reasoningEngines/{engine}/memories/{memory}/operations/{operation}": _FIND_MEMORIES,
    "GET /reasoningEngines/{engine}/memories/{memory}/revisions": _FIND_MEMORIES,
    "GET /reasoningEngines/{engine}/memories/{memory}/revisions/{revision}": _FIND_MEMORIES,
}
"""By method and path."""

_OF_VERTEX: Final = re.compile(
    r"/v1(?:beta1)?(?:/projects/\{project\}/locations/\{location\})?(?=/reasoningEngines)"
)


def rule_of(method: str, path: str, rules: Mapping[str, Rule] = RULES) -> Rule | None:
    """The rule of a route, given the template of its path."""
    return rules.get(rule_name(method, path))


def rule_name(method: str, path: str) -> str:
    """The name of a route in the table."""
    return f"{'GET' if method == 'HEAD' else method} {_OF_VERTEX.sub('', path, count=1)}"
