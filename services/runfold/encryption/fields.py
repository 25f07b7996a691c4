"""The fields of events, and how each is stored when encryption is on: the single table of it.

A sealed event keeps its clear fields, and has its ciphertext beside them. So it stays a valid event
of its kind, and every fold works without keys. In `run.py`, `session.py` and `memory.py` folds copy
some values out of their event; those values have a ciphertext of their own.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

PLACEHOLDER: Final = "[sealed]"
ERASED: Final = "[erased]"


class Form(Enum):
    """How a field is stored."""

    CLEAR = "clear"
    SEALED = "sealed"
    """Left out. It is in the event's ciphertext alone."""
    TEXT = "text"
    """As `SEALED`, with a placeholder in its place, because the field is required."""
    BODY = "body"
    """As `TEXT`, in the form of the framework."""
    FALSE = "false"
    """As `TEXT`: the block counts as unfinished, so a ledger without the key omits it."""
    VALUE = "value"
    """A ciphertext of its own as well, because folds copy the value."""
    VALUES = "values"
    """As `VALUE`, for each value of an object. The keys of the object are clear."""
    MODEL = "model"
    """A memory, or a list of facts: its scope and times are clear, and it has a ciphertext."""
    CHANGES = "changes"
    """A list of changes of memories, each as its own kind."""
    STAND_INS = "stand-ins"
    """A list of events' data, each as its own kind."""


_C, _S, _T = Form.CLEAR, Form.SEALED, Form.TEXT

ENVELOPE: Final[Mapping[str, Form]] = {
    "event_id": _C,
    "run_id": _C,
    "timestamp": _C,
    "type": _C,
    "schema_version": _C,
    "turn_id": _C,
    "labels": Form.SEALED,
    "message_id": _C,
    "provider": _C,
    "maker": _C,
    "expected_offset": _C,
    "state_delta": Form.VALUES,
}

_CHANGE: Final[Mapping[str, Form]] = {
    "bank_id": _C,
    "memory_id": _C,
    "based_on": _C,
    "leaves_revision": _C,
    "revision_labels": Form.VALUES,
    "revision_expires_at": _C,
    "extracted": Form.MODEL,
}
_MEMORY: Final = {**_CHANGE, "memory": Form.MODEL}
_SESSION: Final = {
    "session_id": _C,
    "labels": Form.VALUES,
    "display_name": Form.VALUE,
    "expires_at": _C,
}

DATA: Final[Mapping[str, Mapping[str, Form]]] = {
    "system_message": {"message": _T, "provider_data": _S},
    "user_message": {"message": _T, "structured": _S, "parts": _S},
    "assistant_message": {
        "message": _T,
        "structured": _S,
        "content_index": _C,
        "refusal": _C,
        "citations": _S,
        "provider_data": _S,
        "blobs": _S,
    },
    "thinking": {
        "text": _S,
        "signature": _S,
        "redacted": _S,
        "content_index": _C,
        "final": _C,
        "provider_data": _S,
    },
    "tool_call": {
        "tool_call_id": _C,
        "tool_name": _C,
        "payload": _S,
        "parent_tool_call_id": _C,
        "provider_data": _S,
        "blobs": _S,
    },
    "tool_result": {
        "tool_call_id": _C,
        "tool_name": _C,
        "result": _T,
        "error": _T,
        "duration_ms": _C,
        "parent_tool_call_id": _C,
        "attachments": _S,
        "provider_data": _S,
        "blobs": _S,
    },
    "planner_note": {"note": _T},
    "token_usage": {
        "model": _C,
        "input_tokens": _C,
        "output_tokens": _C,
        "cache_read_tokens": _C,
        "cache_write_tokens": _C,
        "cache_write_1h_tokens": _C,
        "reasoning_tokens": _C,
        "input_audio_tokens": _C,
        "output_audio_tokens": _C,
        "server_tool_requests": _C,
        "input_includes_cache": _C,
    },
    "provider_part": {"content": _T, "content_index": _C, "finished": Form.FALSE, "blobs": _S},
    "response_recorded": {
        "model": _C,
        "stop_reason": _C,
        "refused": _C,
        "finished": _C,
        "faults": _S,
        "response_id": _C,
        "provider_data": _S,
        "next_request": _S,
        "blobs": _S,
    },
    "event_amended": {"offset": _C, "stand_ins": Form.STAND_INS, "reason": _T},
    "summary": {"text": _T, "end_offset": _C},
    "run_opened": {
        "agent_id": _C,
        "log_id": _C,
        "session_id": _C,
        "user_id": _C,
        "status": _C,
        "labels": Form.VALUES,
        "forked_from": _C,
    },
    "prompt_rendered": {"prompt_id": _C, "version": _C, "scope": _S},
    "policy_decided": {"allowed_tools": _C, "caps": _C, "labels": _S, "metadata": _S},
    "run_scored": {
        "scorer": _C,
        "score": _C,
        "label": _C,
        "reason": _S,
        "scored_turn_id": _C,
        "scored_offset": _C,
    },
    "run_started": {},
    "run_paused": {"reason": _S},
    "run_resumed": {},
    "run_completed": {},
    "run_failed": {"error": Form.VALUE},
    "run_canceled": {"reason": _S},
    "run_labeled": {"labels": Form.VALUES, "metadata": _S},
    "phase_changed": {"phase": _C},
    "framework_event": {"framework": _C, "body": Form.BODY, "unset": _S, "files_by_id": _C},
    "state_changed": {},
    "state_deleted": {"keys": _C, "erased": _C},
    "run_deleted": {"log_id": _C, "erased": _C},
    "subject_erased": {"subject": _C, "receipt": _C, "signature": _C, "public_key": _C},
    "session_created": {**_SESSION, "app": _C, "user": _C, "log_id": _C},
    "session_updated": _SESSION,
    "session_deleted": {"session_id": _C, "expires_at": _C, "erased": _C},
    "memory_created": _MEMORY,
    "memory_updated": _MEMORY,
    "memory_deleted": {**_CHANGE, "erased": _C, "began": _C},
    "memory_rolled_back": {**_MEMORY, "revision_id": _C},
    "generation_requested": {
        "bank_id": _C,
        "scope": _C,
        "first_offset": _C,
        "end_offset": _C,
        "reason": _C,
        "options": _S,
    },
    "memories_generated": {
        "bank_id": _C,
        "trigger": _C,
        "error": _S,
        "created": Form.CHANGES,
        "updated": Form.CHANGES,
        "deleted": Form.CHANGES,
    },
    "bank_created": {"bank_id": _C, "config": _C},
    "bank_updated": {"bank_id": _C, "config": _C, "based_on": _C},
    "bank_deleted": {"bank_id": _C},
}
"""Fields that the table lacks, those of later versions, are sealed."""

MEMORY: Final[Mapping[str, Form]] = {
    "fact": _T,
    "scope": _C,
    "topics": _C,
    "metadata": _S,
    "display_name": _S,
    "description": _S,
    "expires_at": _C,
}
EXTRACTED: Final[Mapping[str, Form]] = {"fact": _T, "context": _S}
