"""The fields of a run's document that lists filter and sort by, beside those under its checksum.

They follow from the run's state. An earlier version does not write them, so `listed` has the
position of the state that they are of. A live run is saved often, and a change of an indexed field
costs more than the rest of the save, so its time and its tokens are rounded up.
"""

import re
from datetime import datetime
from typing import Any, Final

from pymongo import ASCENDING, DESCENDING, IndexModel

from runfold.store.listing import list_index, microseconds
from runfold_projections.activity import RunActivity
from runfold_projections.run import LIVE, RunRecord
from runfold_projections.usage import ModelUsage, RunUsage
from runfold_schemas.sessions import is_session_run

LIST_FIELDS: Final = (
    "listed",
    "user_id",
    "updated_us",
    "ended_us",
    "duration_us",
    "tokens",
    "is_session",
    "text",
    "models",
)

UPDATED_STEP_US: Final = 10_000_000
"""The time of a live run's last event is rounded up to this, so no list by time misses the run."""

_WORDS_MAX: Final = 40
"""The number of words that a search looks for."""

_WORD_LENGTH_MAX: Final = 32
_ERROR_LENGTH: Final = 300
_TEXT_LENGTH: Final = 4_000
_INTEGER_MAX: Final = 2**63 - 1
_SEALED: Final = "sealed:"
_WORD: Final = re.compile(r"\w+")
_BEGIN: Final = r"(?<![\p{L}\p{N}_])"
"""The begin of a word. MongoDB's `\\w` knows ASCII only."""

LIST_INDEXES: Final = (
    list_index("started_us", "status", "is_session"),
    list_index("updated_us", "status"),
    # Partial indexes cost nothing for the runs that they leave out.
    IndexModel(
        [("user_id", ASCENDING), ("started_us", DESCENDING), ("_id", DESCENDING)],
        partialFilterExpression={"user_id": {"$gt": ""}},
    ),
    IndexModel(
        [("status", ASCENDING), ("ended_us", DESCENDING), ("_id", DESCENDING)],
        partialFilterExpression={"ended_us": {"$gt": 0}},
    ),
    IndexModel(
        [("duration_us", DESCENDING), ("_id", DESCENDING)],
        partialFilterExpression={"duration_us": {"$gte": 0}},
    ),
    IndexModel([("tokens", DESCENDING), ("_id", DESCENDING)], partialFilterExpression={"tokens": {"$gt": 0}}),
)
"""No index has the words of `text`: their keys cost more than all these indexes. A search reads the
runs in the order of its list until a page is full.
"""


def list_fields(
    record: RunRecord, log_id: str, usage: RunUsage | None, activity: RunActivity | None
) -> dict[str, Any]:
    ended_at = ended_at_of(record, activity)
    return {
        "listed": record.next_offset,
        "user_id": record.user_id,
        "updated_us": _updated_us(record),
        "ended_us": microseconds(ended_at) if ended_at else None,
        "duration_us": duration_us(record, ended_at),
        "tokens": _tokens(record),
        "is_session": is_session_run(record.run_id, log_id),
        "text": _text_of(record),
        "models": model_fields(usage),
    }


def changed_times(record: RunRecord, before: RunRecord) -> dict[str, Any]:
    """The position, and the time and the tokens of a live run if they are not those of `before`."""
    fields: dict[str, Any] = {"listed": record.next_offset}
    if (updated_us := _updated_us(record)) != _updated_us(before):
        fields["updated_us"] = updated_us
    if record.usage is not before.usage and (tokens := _tokens(record)) != _tokens(before):
        fields["tokens"] = tokens
    return fields


def _updated_us(record: RunRecord) -> int:
    updated_us = microseconds(record.updated_at or record.started_at)
    if record.forked_from is not None:  # Its copies are older than the fork, which is not idle yet.
        updated_us = max(updated_us, microseconds(record.started_at))
    if record.status not in LIVE:
        return updated_us
    return -(-updated_us // UPDATED_STEP_US) * UPDATED_STEP_US


def _tokens(record: RunRecord) -> int:
    tokens = record.usage.input_tokens + record.usage.output_tokens
    return min(_rounded_up(tokens) if record.status in LIVE else tokens, _INTEGER_MAX)


def _rounded_up(tokens: int) -> int:
    """The number, or one that is up to an eighth larger."""
    step: int = 1 << max(0, tokens.bit_length() - 4)
    return -(-tokens // step) * step


def ended_at_of(record: RunRecord, activity: RunActivity | None) -> datetime | None:
    """When the run ended. If an earlier version folded it, the time of its last event is taken."""
    if record.status in LIVE:
        return None
    return (activity.ended_at if activity is not None else None) or record.updated_at


def duration_us(record: RunRecord, ended_at: datetime | None) -> int | None:
    """The duration of a run that has ended. Producers' clocks may differ: it is 0 at least."""
    if ended_at is None or record.started_at is None:
        return None
    return max(0, microseconds(ended_at) - microseconds(record.started_at))


def _text_of(record: RunRecord) -> str:
    """The text by whose words the run is found."""
    error = (record.error or "")[:_ERROR_LENGTH]
    ids = (record.run_id, record.agent_id, record.session_id or "", record.user_id or "")
    texts = [text for text in (*ids, error, *record.labels.values()) if not text.startswith(_SEALED)]
    return " ".join(texts)[:_TEXT_LENGTH].lower()


def text_query(text: str) -> list[dict[str, Any]]:
    """The conditions of a search: each word of the text begins a word of the run."""
    return [{"text": {"$regex": _BEGIN + word}} for word in _words_of(text)]


def has_words(run_text: str, text: str) -> bool:
    """As `text_query`, for the text of one run."""
    return all(re.search(rf"\b{word}", run_text) for word in _words_of(text))


def _words_of(text: str) -> list[str]:
    return [word[:_WORD_LENGTH_MAX] for word in _WORD.findall(text.lower())][:_WORDS_MAX]


def model_fields(usage: RunUsage | None) -> list[dict[str, Any]]:
    """The rows of the usage, as MongoDB can add them up."""
    return [_model(row) for row in usage.models] if usage is not None else []


def _model(row: ModelUsage) -> dict[str, Any]:
    # Every default is false. MongoDB cannot store larger integers.
    fields: dict[str, Any] = {
        name: min(value, _INTEGER_MAX) if value.__class__ is int else value
        for name, value in row.__dict__.items()
        if value
    }
    if requests := fields.pop("server_tool_requests", None):
        fields["server_tools"] = [[name, min(count, _INTEGER_MAX)] for name, count in requests.items()]
    return fields
