"""The table of sealed fields has every field of every kind, and a sealed event is a valid event."""

import re
from pathlib import Path

from runfold.encryption.fields import DATA, ENVELOPE, EXTRACTED, MEMORY, Form
from runfold_schemas.codec import TYPE_OF
from runfold_schemas.events import Event
from runfold_schemas.memories import ExtractedMemory, Memory

ARCHITECTURE = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()
KINDS = {kind: data for data, kind in TYPE_OF.items()}


def test_the_table_has_every_field_of_every_kind():
    assert set(DATA) == set(KINDS)
    for kind, data in KINDS.items():
        assert set(DATA[kind]) == set(data.model_fields), kind
    assert set(ENVELOPE) == {*Event.model_fields, "type"} - {"data"}
    assert set(MEMORY) == set(Memory.model_fields)
    assert set(EXTRACTED) == set(ExtractedMemory.model_fields)


def test_the_architecture_calls_no_field_clear_that_is_sealed():
    rows = [row.split("|")[1:3] for row in ARCHITECTURE.splitlines() if row.startswith("| ")]
    named = {
        (name, stored.strip())
        for fields, stored in rows
        for name in re.findall(r"`([a-z_]+)`", fields)
        if stored.strip() in ("clear", "encrypted")
    }
    forms = [*DATA.values(), ENVELOPE, MEMORY, EXTRACTED]

    assert len(named) > 20
    for name, stored in named - {("state_delta", "clear"), ("reason", "clear")}:
        found = {table[name] is Form.CLEAR for table in forms if name in table}
        assert True in found if stored == "clear" else found == {False}, name
