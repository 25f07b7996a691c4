"""What an embedder is: whoever stores or compares vectors knows this and not where they come
from.
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
"""Of shape (dimensions,), its Euclidean length 1."""

Vectors: TypeAlias = NDArray[np.float32]
"""Of shape (texts, dimensions), each row a `Vector`."""

_BYTES_MAX: Final = 8_000


class Embedder(Protocol):
    """Leave its `async with` block when it is not needed any more. The model is loaded, or the
    endpoint connected, with the first text.
    """

    @property
    def model(self) -> str:
        """The name of the vectors' space, to be kept beside them: only vectors of one name may be
        compared.
        """
        ...

    @property
    def dimensions(self) -> int | None:
        """How long the vectors are. None: an endpoint that was not told has yet to show it with its
        first answer.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """A row for each text, in their order. Of a long text only the beginning counts; none is
        refused.

        Raises `UnavailableError`, `ConfigurationError`.
        """
        ...


def embeddable(text: str) -> str:
    """What is read of a text. Every model has a limit, counted in tokens that only its endpoint
    knows; since a token is no less than a byte, this many bytes are within the usual 8,191. Halves
    of surrogate pairs are in no vocabulary, and an empty text is refused by some endpoints.
    """
    beginning = text[:_BYTES_MAX].encode(errors="replace")[:_BYTES_MAX]
    return beginning.decode(errors="ignore") or " "
