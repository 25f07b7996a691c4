"""The names of attributes: OpenTelemetry's conventions for generative AI (version 1.41), and what
backends read beside them.

Langfuse reads the cost from `gen_ai.usage.cost`, and groups by `session.id` and `user.id`. Phoenix
shows the kind of a span by `openinference.span.kind`. It derives the rest from the conventions.
"""

from collections.abc import Mapping
from typing import Final

from runfold_schemas.messages import Provider

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
AGENT_ID: Final = "gen_ai.agent.id"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_CREATION_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
COST: Final = "gen_ai.usage.cost"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
ERROR_TYPE: Final = "error.type"

SESSION: Final = "session.id"
USER: Final = "user.id"
OPENINFERENCE_KIND: Final = "openinference.span.kind"

RUN: Final = "runfold.run.id"
STATUS: Final = "runfold.run.status"
TURN: Final = "runfold.turn.id"
OFFSET: Final = "runfold.offset"
FORKED_FROM: Final = "runfold.forked_from.run_id"
TRUNCATED: Final = "runfold.trace.truncated"
LABEL: Final = "runfold.label."

KINDS: Final = {"invoke_agent": "AGENT", "chat": "LLM", "execute_tool": "TOOL"}
"""OpenInference's kinds of spans."""

PROVIDERS: Final[Mapping[Provider, str]] = {
    "anthropic": "anthropic",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "gemini": "gcp.gemini",
    "bedrock": "aws.bedrock",
}
"""The conventions' names of the formats that responses were recorded from."""
