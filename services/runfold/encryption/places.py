"""The places of ciphertexts, which are their associated data: a ciphertext at another place does
not open. Whoever reads a value makes its place of the record that has the value.
"""

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from runfold.encryption.cipher import place
from runfold.encryption.subjects import user_of_subject
from runfold_schemas.data import USER_PREFIX

_NO_RUN: Final = ""


class RunPlaces(NamedTuple):
    """The places of what belongs to a run or to its session: its labels, error, name and state."""

    prefix: str
    subject: str
    run_id: str

    def of(self, kind: str, name: str) -> bytes:
        # A user's id is any text, so its length is part of the place.
        return place(self.prefix, kind, self.run_id, str(len(self.subject)), self.subject, name)

    def of_state(self, key: str) -> bytes:
        """Of a value of the run, or of all sessions of its user."""
        if not key.startswith(USER_PREFIX):
            return self.of("state", key)
        shared = RunPlaces(self.prefix, user_of_subject(self.subject), _NO_RUN)
        return shared.of("user-state", key)


def memory_place(prefix: str, key: str, scope: Mapping[str, str]) -> bytes:
    """Of a memory. `key` is that of bank and memory."""
    return place(prefix, "memory", json.dumps([key, sorted(scope.items())]))


def revision_place(prefix: str, key: str, revision_id: str, label: str | None = None) -> bytes:
    """Of a label of one revision of a memory, or of the facts that it was made of."""
    return place(prefix, "revision", json.dumps([key, revision_id, label]))
