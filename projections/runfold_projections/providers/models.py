"""The rules in which models of one request format differ, as their makers and users publish them.

Encoders and validation read this table. A rule has its public source beside it. A name that no row
matches gets the format's own rules: the strictest ones where a maker has tightened them from model
to model (Anthropic, Bedrock, Gemini), and the most common ones where many makers share the format
(OpenAI's two).
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from runfold_schemas.messages import Provider


class ModelRules(NamedTuple):
    """What a model accepts."""

    continues: bool
    """Whether a request may end with a message of the assistant, which the model continues."""
    trailing_space: bool
    """Whether that last message may end with white space."""
    instructions_within: bool
    """Whether a system message may be within the conversation."""
    user_after_results: bool
    """Whether a message of the user may follow results of tools directly."""
    short_ids: bool
    """Whether ids of calls have exactly nine letters and digits."""
    reasoning_always: bool
    """Whether each message of the assistant has reasoning, also if it was made without."""
    thinking_first: bool
    """Whether the last message of the assistant starts with thinking, if thinking is on and the
    message calls tools.
    """


_FORMATS: Final[Mapping[Provider, ModelRules]] = {
    # https://platform.claude.com/docs/en/about-claude/models/migration-guide (prefill)
    # https://github.com/anomalyco/opencode/issues/1295 (white space)
    # https://github.com/anomalyco/opencode/issues/3077 (thinking)
    "anthropic": ModelRules(
        continues=False,
        trailing_space=False,
        instructions_within=False,
        user_after_results=True,
        short_ids=False,
        reasoning_always=False,
        thinking_first=True,
    ),
    # https://github.com/i-am-bee/beeai-framework/issues/753 (last turn)
    # https://github.com/strands-agents/sdk-python/issues/1694 (last turn)
    "bedrock": ModelRules(
        continues=False,
        trailing_space=False,
        instructions_within=False,
        user_after_results=True,
        short_ids=False,
        reasoning_always=False,
        thinking_first=True,
    ),
    # https://github.com/microsoft/semantic-kernel/pull/13288 and
    # https://github.com/crewAIInc/crewAI/pull/6973 (last turn)
    # https://ai.google.dev/api/generate-content: contents have the roles user and model.
    "gemini": ModelRules(
        continues=False,
        trailing_space=True,
        instructions_within=False,
        user_after_results=True,
        short_ids=False,
        reasoning_always=False,
        thinking_first=False,
    ),
    "openai-chat": ModelRules(
        continues=True,
        trailing_space=True,
        instructions_within=True,
        user_after_results=True,
        short_ids=False,
        reasoning_always=False,
        thinking_first=False,
    ),
    "openai-responses": ModelRules(
        continues=True,
        trailing_space=True,
        instructions_within=True,
        user_after_results=True,
        short_ids=False,
        reasoning_always=False,
        thinking_first=False,
    ),
}


class _Row(NamedTuple):
    pattern: re.Pattern[str]
    """Is searched for in the model's name, in lower case."""
    rules: Mapping[str, bool]
    formats: frozenset[Provider]
    """The formats in which the row applies."""


def _row(pattern: str, *formats: Provider, **rules: bool) -> _Row:
    return _Row(re.compile(pattern), rules, frozenset(formats or _FORMATS))


# A later row replaces what an earlier one says.
_ROWS: Final[Sequence[_Row]] = (
    # Routers offer Claude in OpenAI's format: https://github.com/aj47/SpeakMCP/pull/1037
    _row("claude", "openai-chat", "openai-responses", continues=False, trailing_space=False),
    # https://platform.claude.com/docs/en/about-claude/models/whats-new-claude-4-6#prefill-removal:
    # models before 4.6 continue the assistant's message.
    _row(r"claude-(?:\d|v\d|instant|(?:opus|sonnet|haiku)-4(?![-.][6-9](?!\d)))", continues=True),
    # https://platform.claude.com/docs/en/build-with-claude/adaptive-thinking: with adaptive
    # thinking, earlier turns need not start with thinking. Models since 4.7 have no other mode.
    _row(
        r"claude-(?:opus-4[-.][7-9]|mythos|fable|(?:opus|sonnet|haiku)-[5-9])",
        "anthropic",
        "bedrock",
        thinking_first=False,
    ),
    # https://platform.claude.com/docs/en/build-with-claude/mid-conversation-system-messages: since
    # Opus 4.8, on Anthropic's own API. Vertex AI, whose names have an "@", does not take them.
    _row(
        r"^(?!.*@).*claude-(?:opus-4[-.][89]|(?:opus|sonnet|haiku|fable|mythos)-[5-9])",
        "anthropic",
        instructions_within=True,
    ),
    # https://github.com/huggingface/smolagents/issues/757 (last role)
    # https://github.com/swarmauri/swarmauri-sdk/issues/162 (system after assistant)
    # https://github.com/avante-corp/avante.nvim/pull/2695 (user after tool)
    # https://github.com/anomalyco/opencode/issues/1680 (ids of calls)
    _row(
        "(?:mi|mini|magi|code|dev)stral|(?:mix|pix)tral",
        "openai-chat",
        continues=False,
        instructions_within=False,
        user_after_results=False,
        short_ids=True,
    ),
    # https://github.com/vercel/ai/pull/14740: "The `reasoning_content` in the thinking mode must be
    # passed back to the API", also in the messages of another model.
    _row(r"deepseek-?v(?:[4-9]|\d\d)", "openai-chat", reasoning_always=True),
    # https://github.com/vllm-project/vllm/issues/41114 and
    # https://github.com/QwenLM/Qwen3.8/issues/244: "System message must be at the beginning."
    _row(r"qwen-?3\.[5-9]", "openai-chat", instructions_within=False),
)


@lru_cache(maxsize=256)
def rules_of(provider: Provider, model: str | None) -> ModelRules:
    """What a model accepts in a format. Without a model: the rules of the format."""
    rules = _FORMATS[provider]
    if model is None:
        return rules
    changes: dict[str, Any] = {}
    for row in _ROWS:
        if provider in row.formats and row.pattern.search(model.lower()):
            changes |= row.rules
    return rules._replace(**changes)
