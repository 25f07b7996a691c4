"""Cache points of Bedrock's Converse: blocks behind the blocks up to which the prompt is cached."""

from collections.abc import Mapping
from typing import Any, Final

_Block = dict[str, Any]

_POINTS_MAX: Final = 4
"""Claude's limit for a request."""


def cache_points(data: Mapping[str, Any]) -> list[_Block]:
    """The cache point behind a part with this provider data, if it asks for one."""
    point = data.get("cachePoint")
    return [{"cachePoint": point}] if isinstance(point, dict) else []


def settle_points(system: list[_Block], messages: list[_Block], *, elsewhere: int) -> None:
    """Puts the points of a request where Converse takes them. Of the four that there may be, less
    those `elsewhere`, the last ones of the instructions and then the newest remain: a ledger only
    grows, so an agent that marks each of its messages has more.
    """
    kept = _limit_points(system, _POINTS_MAX - elsewhere)
    for message in reversed(messages):
        message["content"] = _behind_results(message["content"])
        kept = _limit_points(message["content"], kept)


def _limit_points(blocks: list[_Block], kept: int) -> int:
    """Keeps the last points of these blocks. Returns how many more the request may have."""
    for index in reversed(range(len(blocks))):
        if "cachePoint" in blocks[index]:
            if kept <= 0:
                del blocks[index]
            kept -= 1
    return kept


def _behind_results(blocks: list[_Block]) -> list[_Block]:
    """The blocks of a message with each cache point behind all results of tools, because results
    are first in a message. Of several points in a row the first remains.
    """
    results = max((index + 1 for index, block in enumerate(blocks) if "toolResult" in block), default=0)
    head, tail = blocks[:results], blocks[results:]
    points = [block for block in head if "cachePoint" in block]
    ordered = [block for block in head if "cachePoint" not in block] + points + tail
    return [
        block
        for index, block in enumerate(ordered)
        if "cachePoint" not in block or (index > 0 and "cachePoint" not in ordered[index - 1])
    ]
