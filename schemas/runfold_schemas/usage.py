"""The tokens that a call of a model used."""

from pydantic import Field

from runfold_schemas.data import Count, Data, LaterCount, LaterFlag, ServerTools


class TokenUsage(Data):
    """The tokens of one call of a model. The run record adds them up."""

    model: str | None = None
    input_tokens: Count = 0
    """All tokens of the request, with the cached tokens: see `input_includes_cache`."""
    output_tokens: Count = 0
    """All tokens of the response, with its reasoning."""
    cache_read_tokens: Count = 0
    """The tokens of the input that were read from the provider's cache."""
    cache_write_tokens: Count = 0
    """The tokens of the input that were written to the provider's cache."""
    cache_write_1h_tokens: LaterCount = 0
    """The written tokens that the cache keeps for an hour. Anthropic charges more for them."""
    reasoning_tokens: LaterCount = 0
    """The tokens of the output that are reasoning."""
    input_audio_tokens: LaterCount = 0
    """The tokens of the input that are audio."""
    output_audio_tokens: LaterCount = 0
    """The tokens of the output that are audio."""
    server_tool_requests: ServerTools = Field(default_factory=dict)
    """The requests to tools that the provider runs, by tool: `{"web_search": 2}`."""
    input_includes_cache: LaterFlag = None
    """False if the cached tokens are to be added to `input_tokens`. If this is absent, they are
    added for events with the provider `anthropic` or `bedrock`, because recordings of earlier
    versions have the numbers of the provider.
    """
