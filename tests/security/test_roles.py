"""All routes by all roles: each principal is answered 403 exactly where its scopes say so."""

import re
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from tests.principals import PRINCIPALS, As

from runfold.http.authorisation import is_limited
from runfold.http.principal import Principal
from runfold.http.route_rules import RULES, Rule, Whose

ROLES = {principal.subject.removeprefix("key:"): principal for principal in PRINCIPALS}

BODIES: Mapping[str, Any] = {
    "POST /v1/runs": {"agent_id": "desk", "session_id": "s-of-bob"},
    "POST /v1/runs/{run_id}/events": {"type": "user_message", "data": {"message": "hello"}},
    "POST /v1/runs/{run_id}/responses": {"choices": []},
    "POST /v1/runs/{run_id}/status": {"action": "pause"},
    "POST /v1/runs/{run_id}/ledger": {"messages": []},
    "POST /v1/sessions": {"app": "desk", "user": "bob"},
    "PATCH /v1/sessions/{session_id}": {},
    "POST /v1/sessions/{session_id}/events": {"type": "user_message", "data": {"message": "hello"}},
    "POST /v1/banks": {"bank_id": "desk"},
    "PATCH /v1/banks/{bank_id}": {},
    "POST /v1/banks/{bank_id}/memories": {"fact": "a", "scope": {"user": "bob"}},
    "PATCH /v1/banks/{bank_id}/memories/{memory_id}": {},
    "POST /v1/banks/{bank_id}/memories/generate": {"scope": {"user": "bob"}, "facts": [{"fact": "a"}]},
    "POST /v1/banks/{bank_id}/memories/ingest": {"scope": {"user": "bob"}, "stream_id": "a"},
    "POST /v1/banks/{bank_id}/memories/purge": {"scope": {"user": "bob"}},
    "POST /v1/banks/{bank_id}/memories/retrieve": {"scope": {"user": "bob"}},
    "POST /v1/banks/{bank_id}/memories/{memory_id}/rollback": {"revision_id": "r"},
    "POST /v1/quarantine/{entry_id}/skip": {"offset": 0},
}
"""Bodies that are right, because a wrong one may be answered before anything else."""

WITHOUT_PATH = {"POST /", "PATCH /", "GET /docs/assets", "GET /console"}


def url_of(name: str) -> tuple[str, str]:
    method, _, path = name.partition(" ")
    if path.startswith("/reasoningEngines"):
        path = f"/v1beta1{path}"
    if name == "GET /docs/assets":
        path += "/swagger-ui.css"
    if name == "GET /console":
        path += "/any/js/main.js"
    ids = {"engine": "404", "bank_id": "desk", "app": "desk", "user": "bob", "sha256": "0" * 64}
    return method, re.sub(r"\{(\w+)\}", lambda match: ids.get(match.group(1), "none"), path)


def is_refused(principal: Principal, rule: Rule) -> bool:
    if rule.is_public:
        return False
    has_scopes = any(scopes <= principal.scopes for scopes in rule.scopes)
    return not has_scopes or (rule.whose in (Whose.EVERYBODY, Whose.INSTALLATION) and is_limited(principal))


@pytest.mark.parametrize("role", ["everything", "nothing", "publish", "read", "memories", "administer"])
@pytest.mark.parametrize("name", RULES)
async def test_a_route_is_refused_to_those_who_lack_its_scope(client: httpx.AsyncClient, name, role):
    method, path = url_of(name)

    if path.endswith("/none/follow"):
        path += "?until_end=true"
    response = await As(client, role)(method, path, BODIES.get(name))

    assert response.status_code != 401
    assert (response.status_code == 403) is is_refused(ROLES[role], RULES[name]), response.text
    if response.status_code == 403:
        check_problem(path, response, ROLES[role])


def check_problem(path: str, response: httpx.Response, principal: Principal) -> None:
    """The answer says which scope is missing, in the form of the protocol."""
    document = response.json()
    if "reasoningEngines" in path:
        assert document["error"]["status"] == "PERMISSION_DENIED"
        missing = document["error"]["message"].split("'")[1]
    else:
        assert document["type"] == "urn:runfold:problem:ScopeMissing"
        missing = document["missing_scope"]
        assert missing in document["detail"]
    assert missing not in principal.scopes


@pytest.mark.parametrize("name", RULES)
async def test_without_a_credential_only_public_routes_answer(client: httpx.AsyncClient, name):
    method, path = url_of(name)

    response = await client.request(method, path, json=BODIES.get(name))

    assert (response.status_code == 401) is not RULES[name].is_public, response.text


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.whose is not Whose.NOBODY])
async def test_a_limited_key_never_reaches_what_everybody_shares(client: httpx.AsyncClient, name):
    """The ids in the paths are nobody's. `desk-bob` may use the app "desk" and the user "bob"."""
    method, path = url_of(name)

    response = await As(client, "desk-bob")(method, path, BODIES.get(name))

    if RULES[name].whose in (Whose.EVERYBODY, Whose.INSTALLATION):
        assert response.status_code == 403, response.text
        assert "limited" in response.text or "administer" in response.text
    elif RULES[name].whose in (Whose.CHANGED_RUN, Whose.READ_RUN, Whose.SESSION):
        assert response.status_code == 404, response.text
