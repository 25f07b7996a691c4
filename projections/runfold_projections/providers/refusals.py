"""Which of the providers' reasons for an end say that a model, or a filter of its provider, refused
to answer.

Sources: Anthropic's `StopReason`, Bedrock's `StopReason` in botocore, Gemini's `FinishReason` and
`BlockedReason` in google-genai, `finish_reason` of Chat Completions, and the reason of
`incomplete_details` in the Responses API.
"""

from collections.abc import Mapping
from typing import Final

from runfold_schemas.messages import Provider

_REFUSALS: Final[Mapping[Provider, frozenset[str]]] = {
    "anthropic": frozenset({"refusal"}),
    "bedrock": frozenset({"content_filtered", "guardrail_intervened"}),
    "gemini": frozenset(
        {
            "BLOCKLIST",
            "IMAGE_PROHIBITED_CONTENT",
            "IMAGE_RECITATION",
            "IMAGE_SAFETY",
            "PROHIBITED_CONTENT",
            "RECITATION",
            "SAFETY",
            "SPII",
        }
    ),
    "openai-chat": frozenset({"content_filter"}),
    "openai-responses": frozenset({"content_filter"}),
}


def is_refusal(provider: Provider, stop_reason: str | None) -> bool:
    return stop_reason in _REFUSALS[provider]
