"""What backends of traces make of spans, as their sources and documentation say (November 2026)."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.collectors import Span


class Observation(NamedTuple):
    """An entry of Langfuse: `OtelIngestionProcessor` and `ObservationTypeMapper` of its server."""

    kind: str
    model: str | None
    usage: dict[str, float]
    cost: float | None
    session: str | None
    user: str | None
    input: Any
    output: Any
    level: str


def in_langfuse(span: Span) -> Observation:
    """Langfuse's mapping of attributes, as far as it reads ours."""
    read = span.attributes
    kinds = {"AGENT": "AGENT", "LLM": "GENERATION", "TOOL": "TOOL"}
    usage_names = {"input_tokens": "input", "output_tokens": "output"}
    usage = {
        usage_names.get(name.removeprefix("gen_ai.usage."), name.removeprefix("gen_ai.usage.")): float(count)
        for name, count in read.items()
        if name.startswith("gen_ai.usage.") and name != "gen_ai.usage.cost"
    }
    session = read.get("session.id")
    return Observation(
        kinds[read["openinference.span.kind"]],
        read.get("gen_ai.request.model"),
        usage,
        read.get("gen_ai.usage.cost"),
        # Longer ids, and others than ASCII, are dropped.
        session if session is None or (len(session) <= 200 and session.isascii()) else None,
        read.get("user.id"),
        read.get("gen_ai.input.messages") or read.get("gen_ai.tool.call.arguments"),
        read.get("gen_ai.output.messages") or read.get("gen_ai.tool.call.result"),
        "ERROR" if span.is_error else "DEFAULT",
    )


def check_phoenix(span: Span) -> None:
    """Phoenix needs a kind in capitals, and reads messages of the conventions as JSON."""
    assert span.attributes["openinference.span.kind"] in {"AGENT", "LLM", "TOOL"}
    for name in ("gen_ai.input.messages", "gen_ai.output.messages"):
        for message in json.loads(span.attributes.get(name, "[]")):
            assert message["role"] in {"system", "user", "assistant", "tool"}
            for part in message["parts"]:
                assert part["type"] in {"text", "reasoning", "tool_call", "tool_call_response"}


def check_tempo(spans: Sequence[Span]) -> None:
    """Tempo takes any valid OTLP: ids of 16 and 8 bytes that are not zero, and times in order."""
    ids = {span.span_id for span in spans}
    assert len(ids) == len(spans)
    assert len({span.trace_id for span in spans}) == 1
    for span in spans:
        assert len(span.trace_id) == 32
        assert len(span.span_id) == 16
        assert int(span.trace_id, 16)
        assert int(span.span_id, 16)
        assert 0 < span.start <= span.end
        assert span.name
        assert span.resource["service.name"]
    roots = [span for span in spans if span.parent_id not in ids]
    assert len(roots) == 1
