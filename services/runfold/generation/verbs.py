"""The verbs that generate memories, the same over HTTP and in this process."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from runfold.client.appender import Position
from runfold.client.memory import MemoryVerbs
from runfold.generation.options import ChangedMemory, GenerationOptions, Source, StreamContent
from runfold.generation.triggers import TriggerRule


class GenerationVerbs(Protocol):
    """The verbs' docstrings are in `Generator` and `IngestStreams`."""

    async def generate(
        self,
        bank_id: str,
        scope: Mapping[str, str] | None,
        source: Source,
        options: GenerationOptions | None = None,
    ) -> Sequence[ChangedMemory]: ...

    async def ingest(
        self,
        bank_id: str,
        scope: Mapping[str, str],
        stream_id: str,
        contents: Sequence[StreamContent],
        *,
        rule: TriggerRule | None = None,
        options: GenerationOptions | None = None,
        force_flush: bool = False,
    ) -> Position | None: ...


class MemoryBackend(NamedTuple):
    """Memories, and the verbs that generate them."""

    memories: MemoryVerbs
    generation: GenerationVerbs
