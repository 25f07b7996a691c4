"""Marks of Anthropic's prompt cache: `cache_control` in the blocks of a request."""

from typing import Any, Final

_Block = dict[str, Any]

# "A maximum of 4 blocks with cache_control may be provided."
MARKS_MAX: Final = 4


def newest_marks(system: list[_Block], conversation: list[_Block], *, kept: int) -> None:
    """Keeps this number of marks: the last ones of the instructions, then the newest of the
    conversation. A ledger only grows, so an agent that marks each of its messages has more.
    """
    kept = _limit_marks(system, kept)
    for message in reversed(conversation):
        kept = _limit_marks(message["content"], kept)


def _limit_marks(blocks: list[_Block], kept: int) -> int:
    """Keeps the last marks of these blocks. Returns how many more the request may have."""
    for index in reversed(range(len(blocks))):
        block = blocks[index]
        if "cache_control" in block:
            if kept <= 0:
                blocks[index] = {name: value for name, value in block.items() if name != "cache_control"}
            kept -= 1
        if block.get("type") == "tool_result" and isinstance(content := block.get("content"), list):
            kept = _limit_marks(content, kept)
    return kept
