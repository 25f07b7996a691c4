"""The counts of tokens in the providers' responses, in one meaning: that of `TokenUsage`.

Anthropic and Bedrock count cached tokens beside the input; OpenAI and Gemini count them within it.
Gemini and xAI count reasoning beside the answer; the others count it within the answer.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from runfold_projections.providers.values import camel_case, others
from runfold_schemas.data import SERVER_TOOLS_MAX
from runfold_schemas.messages import Provider

Counts = dict[str, Any]
"""Fields of `TokenUsage`. None stands for a number that the provider does not give."""

_NOTHING: Final[Mapping[str, Any]] = {}

_REQUESTS: Final = re.compile(r"([a-z0-9_]{1,64})_requests")
"""The members of a response that count the requests to a tool of the provider."""

_HOSTED: Final = re.compile(r"(web_search|file_search|code_interpreter|image_generation)_call")
"""The items of Responses that stand for one request to a tool of OpenAI."""


class UsageReader:
    """The counts of one response so far. Later numbers replace earlier numbers, because some
    providers count again in each chunk.
    """

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        names, self._read = _READERS[provider]
        self._names = frozenset(names)
        self._usage: dict[str, Any] = {}

    def take(self, usage: Any) -> None:
        """Takes the provider's object of counts, an SDK's object or decoded JSON."""
        # Gemini counts in each chunk of a stream, and sets few of the members.
        names = self._names & usage.__pydantic_fields_set__ if isinstance(usage, BaseModel) else self._names
        for name in names:
            if (value := _member(usage, name)) is not None:
                self._usage[name] = value

    def counts(self) -> Counts:
        """The fields of `TokenUsage`. Empty if the response has no count."""
        return self._fields(self._read(self._usage))

    def further_calls(self) -> list[Counts]:
        """The counts of further calls of models for this response, which `counts` does not have.
        The counts of another model's call have its `model`.
        """
        calls: list[Counts] = []
        for iteration in _items(self._usage.get("iterations")):
            kind = _member(iteration, "type")
            if kind in ("compaction", "advisor_message"):
                counts = self._fields(_anthropic_tokens(iteration))
                model = {"model": _member(iteration, "model")} if kind == "advisor_message" else {}
                calls += [{**counts, **model}] if counts else []
        return calls

    def _fields(self, read: Counts) -> Counts:
        counts = {name: count for name, count in read.items() if count is not None}
        requests = counts.pop("server_tool_requests", {})
        counts = {name: count for name, count in counts.items() if count < 2**63}
        if self._provider in _WITHOUT_CACHE and (
            counts.get("cache_read_tokens") or counts.get("cache_write_tokens")
        ):
            counts["input_includes_cache"] = True
        return counts | ({"server_tool_requests": requests} if requests else {})


_WITHOUT_CACHE: Final = frozenset({"anthropic", "bedrock"})
"""The providers that count cached tokens beside the input."""


def _anthropic(usage: Any) -> Counts:
    requests = _requests(_member(usage, "server_tool_use"))
    return {**_anthropic_tokens(usage), "server_tool_requests": requests}


def _anthropic_tokens(usage: Any) -> Counts:
    read = _count(usage, "cache_read_input_tokens")
    written = _count(usage, "cache_creation_input_tokens")
    return {
        "input_tokens": _sum(_count(usage, "input_tokens"), read, written),
        "output_tokens": _count(usage, "output_tokens"),
        "cache_read_tokens": read,
        "cache_write_tokens": written,
        "cache_write_1h_tokens": _count(usage, "cache_creation", "ephemeral_1h_input_tokens") or None,
        "reasoning_tokens": _count(usage, "output_tokens_details", "thinking_tokens") or None,
    }


def _bedrock(usage: Any) -> Counts:
    read = _count(usage, "cacheReadInputTokens")
    written = _count(usage, "cacheWriteInputTokens")
    details = _items(_member(usage, "cacheDetails"))
    hour = [_count(detail, "inputTokens") for detail in details if _member(detail, "ttl") == "1h"]
    return {
        "input_tokens": _sum(_count(usage, "inputTokens"), read, written),
        "output_tokens": _count(usage, "outputTokens"),
        "cache_read_tokens": read,
        "cache_write_tokens": written,
        "cache_write_1h_tokens": _sum(*hour) or None,
    }


def _chat(usage: Any) -> Counts:
    prompt, total = _count(usage, "prompt_tokens"), _count(usage, "total_tokens")
    answer = _count(usage, "completion_tokens")
    reasoning = _count(usage, "completion_tokens_details", "reasoning_tokens")
    if reasoning and _sum(prompt, answer, reasoning) == total:
        answer = _sum(answer, reasoning)
    searches = _count(usage, "num_search_queries")
    read = (
        _count(usage, "prompt_tokens_details", "cached_tokens"),
        *(_count(usage, name) for name in _CHAT_CACHE_READ),
    )
    written = (
        _count(usage, "prompt_tokens_details", "cache_write_tokens"),
        _count(usage, "cache_creation_input_tokens"),
    )
    return {
        "input_tokens": prompt,
        "output_tokens": answer,
        "cache_read_tokens": next(_numbers(read), None),
        "cache_write_tokens": next(_numbers(written), None),
        "reasoning_tokens": reasoning or None,
        "input_audio_tokens": _count(usage, "prompt_tokens_details", "audio_tokens") or None,
        "output_audio_tokens": _count(usage, "completion_tokens_details", "audio_tokens") or None,
        "server_tool_requests": _requests(_member(usage, "server_tool_use"))
        or ({"web_search": searches} if searches else None),
    }


_CHAT_CACHE_READ: Final = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
"""Where servers other than OpenAI's count the tokens that they read from their caches."""


def _responses(usage: Any) -> Counts:
    prompt, total = _count(usage, "input_tokens"), _count(usage, "total_tokens")
    answer = _count(usage, "output_tokens")
    reasoning = _count(usage, "output_tokens_details", "reasoning_tokens")
    if reasoning and _sum(prompt, answer, reasoning) == total:
        answer = _sum(answer, reasoning)
    requests: dict[str, int] = {}
    for item in _items(_member(usage, "output")):
        kind = _member(item, "type")
        if isinstance(kind, str) and (hosted := _HOSTED.fullmatch(kind)):
            requests[hosted[1]] = requests.get(hosted[1], 0) + 1
    return {
        "input_tokens": prompt,
        "output_tokens": answer,
        "cache_read_tokens": _count(usage, "input_tokens_details", "cached_tokens"),
        "cache_write_tokens": _count(usage, "input_tokens_details", "cache_write_tokens"),
        "reasoning_tokens": reasoning or None,
        "input_audio_tokens": _count(usage, "input_tokens_details", "audio_tokens") or None,
        "output_audio_tokens": _count(usage, "output_tokens_details", "audio_tokens") or None,
        "server_tool_requests": requests,
    }


def _gemini(usage: Any) -> Counts:
    thoughts = _count(usage, "thoughts_token_count")
    return {
        "input_tokens": _sum(
            _count(usage, "prompt_token_count"), _count(usage, "tool_use_prompt_token_count")
        ),
        "output_tokens": _sum(_count(usage, "candidates_token_count"), thoughts),
        "cache_read_tokens": _count(usage, "cached_content_token_count"),
        "reasoning_tokens": thoughts or None,
        "input_audio_tokens": _audio(usage, "prompt_tokens_details", "tool_use_prompt_tokens_details"),
        "output_audio_tokens": _audio(usage, "candidates_tokens_details"),
        "server_tool_requests": _searches(usage),
    }


def _searches(usage: Any) -> dict[str, int]:
    queries = [query for query in _items(_member(usage, "web_search_queries")) if query]
    return {"web_search": len(queries)} if queries else {}


def _audio(usage: Any, *names: str) -> int | None:
    details = [detail for name in names for detail in _items(_member(usage, name))]
    counts = [
        _count(detail, "token_count")
        for detail in details
        if "AUDIO" in (modality := _member(detail, "modality"), getattr(modality, "value", None))
    ]
    return _sum(*counts) or None


_READERS: Final[Mapping[Provider, tuple[tuple[str, ...], Callable[[Any], Counts]]]] = {
    "anthropic": (
        (
            "input_tokens",
            "output_tokens",
            "cache_read_input_tokens",
            "cache_creation_input_tokens",
            "cache_creation",
            "output_tokens_details",
            "server_tool_use",
            "iterations",
        ),
        _anthropic,
    ),
    "bedrock": (
        ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "cacheDetails"),
        _bedrock,
    ),
    "openai-chat": (
        (
            "prompt_tokens",
            "completion_tokens",
            "total_tokens",
            "prompt_tokens_details",
            "completion_tokens_details",
            *_CHAT_CACHE_READ,
            "cache_creation_input_tokens",
            "server_tool_use",
            "num_search_queries",
        ),
        _chat,
    ),
    "openai-responses": (
        (
            "input_tokens",
            "output_tokens",
            "total_tokens",
            "input_tokens_details",
            "output_tokens_details",
            "output",
        ),
        _responses,
    ),
    "gemini": (
        (
            "prompt_token_count",
            "candidates_token_count",
            "thoughts_token_count",
            "tool_use_prompt_token_count",
            "cached_content_token_count",
            "prompt_tokens_details",
            "tool_use_prompt_tokens_details",
            "candidates_tokens_details",
            "web_search_queries",
        ),
        _gemini,
    ),
}
"""For each provider: the members of its object of counts, and the function that reads them."""


_COUNTED: Final = frozenset({*_READERS["openai-chat"][0], *_READERS["openai-responses"][0]})
_COUNTED_DETAILS: Final = frozenset(
    {"cached_tokens", "cache_write_tokens", "reasoning_tokens", "audio_tokens", "text_tokens"}
)
_DETAILS: Final = tuple(sorted(name for name in _COUNTED if name.endswith("_details")))


def uncounted(usage: Any) -> dict[str, Any]:
    """What a usage of Chat Completions or Responses has beside the counts that are read, for
    example a router's `cost`, as decoded JSON. Zeros are left out: the SDKs send a zero for what is
    not counted.
    """
    members = others(usage, _COUNTED)
    for name in _DETAILS:
        details = others(_member(usage, name) or _NOTHING, _COUNTED_DETAILS)
        members[name] = {detail: count for detail, count in details.items() if count}
    return {name: member for name, member in members.items() if member}


def _member(value: Any, name: str) -> Any:
    """A member of an SDK's object or of decoded JSON. JSON may have the name in camelCase."""
    # Gemini counts in each chunk of a stream. The test for `Mapping` is slow, and pydantic's own
    # lookup of a missing attribute is ten times slower.
    if isinstance(value, dict):
        member = value.get(name)
        return value.get(camel_case(name)) if member is None else member
    members = getattr(value, "__dict__", _NOTHING)
    if name in members:
        return members[name]
    if isinstance(value, BaseModel) and not hasattr(type(value), name):
        return (value.__pydantic_extra__ or _NOTHING).get(name)
    if isinstance(value, Mapping):
        member = value.get(name)
        return value.get(camel_case(name)) if member is None else member
    return getattr(value, name, None)


def _count(usage: Any, *path: str) -> int | None:
    for name in path:
        usage = _member(usage, name)
    return usage if type(usage) is int and usage >= 0 else None


def _sum(*counts: int | None) -> int | None:
    """The sum of the counts that are known. None if none of them is."""
    numbers = list(_numbers(counts))
    return sum(numbers) if numbers else None


def _numbers(counts: tuple[int | None, ...]) -> Iterator[int]:
    return (count for count in counts if count is not None)


def _items(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else ()


def _requests(members: Any) -> dict[str, int]:
    """The requests to tools of the provider, by the name of the tool."""
    named = members if isinstance(members, Mapping) else getattr(members, "__dict__", {})
    requests: dict[str, int] = {}
    for name, count in named.items():
        tool = _REQUESTS.fullmatch(name) if isinstance(name, str) else None
        if tool and type(count) is int and 0 < count < 2**63 and len(requests) < SERVER_TOOLS_MAX:
            requests[tool[1]] = count
    return requests
