"""What clients without a key show in the place of ciphertexts."""

import subprocess
import sys

from runfold.client.prefixes import Prefix, changes_of
from runfold.encryption.hiding import hide_value
from runfold_projections.admission import Admitted
from runfold_schemas.codec import Record, encode, parse_event

ID = "0198a5c0-0000-7000-8000-000000000001"
SEALED = f"sealed:v1:{'k' * 22}:AAAA"


def prefix(*, is_revealed: bool) -> Prefix:
    fields = {"event_id": ID, "run_id": "r", "timestamp": "2026-01-01T00:00:00Z", "type": "state_changed"}
    event = parse_event({**fields, "data": {}, "state_delta": {"sealed": SEALED, "clear": [SEALED]}})
    record = Record(0, 1000, b"r", (), encode(event))
    return Prefix([Admitted(record, "accepted", event)], 1, is_revealed)


def test_ciphertext_in_state_is_hidden_without_the_key():
    hidden, shown = prefix(is_revealed=False), prefix(is_revealed=True)

    assert hidden.view("r").state == {"sealed": "[sealed]", "clear": [SEALED]}
    assert shown.view("r").state == {"sealed": SEALED, "clear": [SEALED]}
    assert [change.value for change in changes_of(hidden, "sealed")] == ["[sealed]"]
    assert [change.value for change in changes_of(shown, "sealed")] == [SEALED]


def test_a_text_that_is_no_ciphertext_is_shown():
    texts = ["sealed:v1:", "sealed:v1:short:AAAA", f"sealed:v1:{'k' * 22}:A", "x" + SEALED, ""]

    assert [hide_value(text) for text in texts] == texts


def test_clients_hide_without_the_package_of_encryption():
    code = "import sys; sys.modules['cryptography'] = None; import runfold.encryption.hiding, runfold.sync"

    subprocess.run([sys.executable, "-c", code], check=True)
