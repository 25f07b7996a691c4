"""The refusals of limited keys say what to send."""

import pytest
from tests.principals import principal

from runfold.permissions.limits import require_scope_of_memories
from runfold_schemas.errors import OutsideLimitsError


def test_a_list_of_all_memories_is_refused_with_the_scope_to_send():
    limited = principal("ann", "memories", users=("ann",))
    with pytest.raises(OutsideLimitsError, match="scope=user:ann"):
        require_scope_of_memories(limited, "tastes", None, action="a list of memories")
