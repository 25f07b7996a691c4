"""What a process without the key shows in the place of ciphertexts. It cannot know whether they are
at their own place, so it hides all of them.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from runfold.encryption.fields import PLACEHOLDER
from runfold.encryption.sealed_text import MARK, parse_text
from runfold_projections.memory import Revision
from runfold_projections.run import RunRecord
from runfold_projections.session import SessionRecord

RecordT = TypeVar("RecordT", bound=RunRecord)


def hide_run(record: RecordT) -> RecordT:
    if not any(map(_is_hidden, (*record.labels.values(), record.error))):
        return record
    return record.model_copy(update={"labels": hide_values(record.labels), "error": hide_value(record.error)})


def hide_session(record: SessionRecord) -> SessionRecord:
    return record.model_copy(
        update={"labels": hide_values(record.labels), "display_name": hide_value(record.display_name)}
    )


def hide_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Labels, or values of state."""
    return {key: hide_value(value) for key, value in values.items()}


def hide_revision(revision: Revision) -> Revision:
    return revision.model_copy(update={"labels": hide_values(revision.labels)})


def hide_value(value: Any) -> Any:
    """A label, or a value of state."""
    return PLACEHOLDER if _is_hidden(value) else value


def _is_hidden(value: Any) -> bool:
    return (
        isinstance(value, str)
        and value.startswith(MARK)
        and parse_text(value.encode(errors="replace")) is not None
    )
