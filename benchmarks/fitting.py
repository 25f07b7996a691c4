"""Measures the fitting of ledgers: its time, and how often a request begins with the whole request
before, so that a provider's prompt cache matches.
"""

import json
import statistics
import time
from itertools import pairwise
from typing import Any

from query import EVENTS, Figures
from texts import text

from providers import conversation
from runfold import AssistantMessage, Budget, Summary, SystemMessage, ToolCall, ToolResult, UserMessage
from runfold.ids import new_event_id
from runfold.settings import Settings
from runfold_projections.fitting import fit, place_messages
from runfold_projections.message_tokens import ESTIMATE
from runfold_projections.providers import encode
from runfold_schemas.codec import new_event
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import PROVIDERS

REPEATS = 15
TURNS = 200
BUDGET = Budget(tokens=20_000)
"""A turn has 470 tokens, so 200 of them are five times the budget."""

Log = list[tuple[int, AnyEvent]]


async def fitting(_: Settings) -> Figures:
    """Fits a ledger of 3,000 events, and follows 200 turns."""
    placed = place_messages(enumerate(conversation()))
    figures: Figures = []
    for tokens, which in ((10_000_000, "all of which fit"), (20_000, "a twelfth of which fits")):
        times = []
        for _repeat in range(REPEATS):
            began = time.process_time()
            fit(placed, Budget(tokens=tokens), "anthropic", ESTIMATE)
            times.append(1e3 * (time.process_time() - began))
        what = f"fit a ledger of {EVENTS:,} events, {which}, processor time"
        figures.append((what, "< 30 ms", f"{statistics.median(times):.1f} ms"))
    for summarizes, how in ((False, "turns left out"), (True, "summaries of what was left out")):
        stable = {provider: _stability(provider, summarizes=summarizes) for provider in PROVIDERS}
        shares = [kept / turns for kept, turns in stable.values()]
        what = f"requests of {TURNS} turns that begin with the whole request before, {how}"
        kept, turns = stable["anthropic"]
        figures.append((what, ">= 90 %", f"{min(shares):.1%} ({turns - kept} changes, each provider)"))
    return figures


def _stability(provider: Any, *, summarizes: bool) -> tuple[int, int]:
    """The number of requests that begin with the request before, and the number of pairs."""
    log: Log = []
    _add(log, SystemMessage(message=text(600)))
    requests = [_request(log, number, provider, summarizes=summarizes) for number in range(TURNS)]
    kept = sum(after[: len(before)] == before for before, after in pairwise(requests))
    return kept, TURNS - 1


def _request(log: Log, turn: int, provider: Any, *, summarizes: bool) -> list[str]:
    """The messages of the request for a turn, whose answer is added to the log."""
    call = f"call-{turn}"
    _add(log, UserMessage(message=text(300)))
    _add(log, ToolCall(tool_call_id=call, tool_name="search", payload={"query": text(100)}))
    _add(log, ToolResult(tool_call_id=call, tool_name="search", result={"found": [text(500)]}))
    fitted = fit(place_messages(log), BUDGET, provider, ESTIMATE)
    if summarizes and fitted.left_out:
        assert fitted.end_offset is not None
        _add(log, Summary(text=text(1_500), end_offset=fitted.end_offset))
        fitted = fit(place_messages(log), BUDGET, provider, ESTIMATE)
    body = encode(fitted.messages, provider).body
    _add(log, AssistantMessage(message=text(500)))
    return [json.dumps(member, sort_keys=True) for member in _members(body)]


def _members(body: dict[str, Any]) -> list[Any]:
    """The instructions and the messages of a request, in the order of the provider's cache."""
    instructions = body.get("system", body.get("systemInstruction"))
    conversation = body.get("messages") or body.get("input") or body["contents"]
    return [instructions, *conversation]


def _add(log: Log, data: Any) -> None:
    envelope = {"event_id": new_event_id(), "run_id": "run-1", "timestamp": "2026-01-02T03:04:05Z"}
    log.append((len(log), new_event(data, **envelope)))
