"""The interface of embedders, and the types of vectors. Code that stores or compares vectors
depends on this module only.
"""

from collections.abc import Sequence
from typing import Final, Protocol, Self, TypeAlias

from runfold_schemas.errors import ConfigurationError

try:
    import numpy as np
    from numpy.typing import NDArray
except ImportError as error:
    raise ConfigurationError("similarity of memories needs numpy: pip install 'runfold[memory]'") from error

Vector: TypeAlias = NDArray[np.float32]
"""An array of shape (dimensions,) with the Euclidean length 1."""

Vectors: TypeAlias = NDArray[np.float32]
"""An array of shape (texts, dimensions). Each row is a `Vector`."""

_BYTES_MAX: Final = 8_000


class Embedder(Protocol):
    """Computes vectors of texts. Use it as an async context manager. It loads the model, or
    connects to the endpoint, for the first text.
    """

    @property
    def model(self) -> str:
        """The name of the vector space, to be stored with each vector. Only vectors with the same
        name can be compared.
        """
        ...

    @property
    def dimensions(self) -> int | None:
        """The length of the vectors. None if the settings name no length and the endpoint has not
        answered yet.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """The vectors of the texts, a row for each text. Only the beginning of a long text counts.

        Raises `UnavailableError` if the endpoint does not answer, and `ConfigurationError` if it
        refuses the request.
        """
        ...


def embeddable(text: str) -> str:
    """The beginning of `text`, as embedders send it to their model: 8,000 bytes. The limits of
    models count tokens, usually 8,191. A token has at least one byte, so 8,000 bytes are within the
    limit. Halves of surrogate pairs are replaced. An empty text becomes a space, because some
    endpoints refuse empty texts.
    """
    beginning = text[:_BYTES_MAX].encode(errors="replace")[:_BYTES_MAX]
    return beginning.decode(errors="ignore") or " "
