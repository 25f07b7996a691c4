"""Skeleton: to be written."""

from collections.abc import Mapping, Sequence
from typing import Any

from runfold_projections.providers.encoding import Encoded, Lossy
from runfold_projections.providers.recording import Blocks
from runfold_schemas.events import Data
from runfold_schemas.messages import Message


def encode(messages: Sequence[Message], lossy: Lossy) -> Encoded:
    raise NotImplementedError


def recognizes(response: Any) -> bool:
    return False


class AnthropicRecorder:
    def __init__(self, tool_names: Mapping[str, str]) -> None:
        self.blocks = Blocks("anthropic", tool_names=tool_names)

    def response(self, response: Any) -> Sequence[Data]:
        raise NotImplementedError

    def feed(self, chunk: Any) -> Sequence[Data]:
        raise NotImplementedError
