"""The verbs of sessions for a limited principal."""

from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from runfold.client.session import EventSelection
from runfold.http.principal import Principal, Scope
from runfold.permissions.permissions import Permissions
from runfold.permissions.sessions import PermittedSessions
from runfold_schemas.errors import SessionNotFoundError


@pytest.mark.parametrize(
    ("selection", "moment"),
    [(EventSelection(), {}), (None, {"as_of_offset": 0}), (None, {"before_turn": "t-1"})],
)
async def test_the_log_of_a_session_of_others_is_not_read(selection, moment):
    owners = SimpleNamespace(session=AsyncMock(return_value=SimpleNamespace(app="shop", user="bob")))
    principal = Principal(tenant="t", subject="key:1", scopes=frozenset(Scope), users=("ann",))
    verbs = SimpleNamespace(view=AsyncMock())
    sessions = PermittedSessions(verbs, Permissions(principal, owners), AsyncMock())

    with pytest.raises(SessionNotFoundError):
        await sessions.view("s-1", selection, **moment)

    verbs.view.assert_not_awaited()
