"""The blobs of one log: storing what its events hold, and fetching what its ledger refers to."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from runfold.blobs.store import BlobStore
from runfold_projections.blobs import extract
from runfold_projections.providers.blobs import BlobUse, is_foreign, target_maker, uses
from runfold_schemas.blobs import BlobReference
from runfold_schemas.errors import BlobNotFoundError, InvalidEventError
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import Message, Provider

REQUEST_BYTES_MAX: Final[Mapping[Provider, int]] = {
    # "The maximum request size is 32 MB" for Anthropic's own API, and 20 MB on Bedrock.
    "anthropic": 32_000_000,
    "bedrock": 20_000_000,
    # Up to 50 MB of images or files in a request.
    "openai-chat": 50_000_000,
    "openai-responses": 50_000_000,
    # Inline data of the Gemini API.
    "gemini": 100_000_000,
}
"""The most bytes of a request to a provider. Blobs in it are base64."""

NO_STORE: Final = "no blob store is configured here: set RUNFOLD_BLOBS, or `blobs` of the client"


class LogBlobs:
    """Stores the blobs of the events of one log."""

    def __init__(self, store: BlobStore, log_id: str) -> None:
        self._store = store
        self._log_id = log_id
        self._has_stored = False

    def may_take(self, encoded_bytes: int) -> bool:
        """Whether an event of this size can hold a blob."""
        return encoded_bytes > self._store.bytes_min

    async def take(self, event: AnyEvent) -> AnyEvent:
        """The event with references in the place of its blobs, when these are stored. Raises
        `InvalidEventError` for a blob that is too large, and `UnavailableError`.
        """
        # Decoding and hashing 64 MB takes a quarter of a second, in which a thread holds up nobody.
        taken, blobs = await asyncio.to_thread(extract, event, bytes_min=self._store.bytes_min)
        for reference in blobs:
            if reference.size > self._store.bytes_max:
                raise InvalidEventError(
                    f"an attachment has {reference.size:,} bytes; {self._store.bytes_max:,} are allowed",
                    field="data",
                )
        self._has_stored = self._has_stored or bool(blobs)
        for reference, content in blobs.items():
            await self._store.put(self._log_id, reference, content)
        return taken

    async def discard(self) -> None:
        """Deletes what was stored for a log that was deleted meanwhile."""
        if self._has_stored:
            await self._store.delete_logs([self._log_id])


class Fetching:
    """Collects the references of ledgers, and fetches their blobs for a provider's request."""

    def __init__(self, store: BlobStore | None, provider: Provider, maker: str | None = None) -> None:
        self._store = store
        self._provider = provider
        self._maker = maker
        # The maker of the last response, to which a request goes by default.
        self._last_maker: str | None = None
        self._uses: list[tuple[BlobUse, str]] = []

    @property
    def is_empty(self) -> bool:
        """Whether no message refers to a blob."""
        return not self._uses

    def add(self, log_id: str, messages: Iterable[Message]) -> None:
        """Takes the next messages."""
        messages = list(messages)
        self._last_maker = target_maker(None, messages) or self._last_maker
        self._uses += ((use, log_id) for use in uses(messages, self._provider))

    async def fetch(self) -> dict[str, bytes | str]:
        """The bytes by digest, or the reason why there are none. As many blobs are fetched as fit
        into one request, the newest first.
        """
        maker = self._maker or self._last_maker
        sent = [(use.reference, log_id) for use, log_id in self._uses if not is_foreign(use.maker, maker)]
        # A blob is in the request as often as the ledger refers to it.
        counts = Counter(reference for reference, _ in sent)
        fetched: dict[str, bytes | str] = {}
        fitting: list[tuple[BlobReference, str]] = []
        left = limit = REQUEST_BYTES_MAX[self._provider]
        for reference, log_id in _newest_first(sent).items():
            size = counts[reference] * _encoded_bytes(reference)
            if self._store is None:
                fetched[reference.sha256] = NO_STORE
            elif size > left:
                fetched[reference.sha256] = (
                    f"with the newer blobs it exceeds the {limit:,} bytes that {self._provider} takes"
                )
            else:
                left -= size
                fitting.append((reference, log_id))
        contents = await asyncio.gather(*(self._fetch(*each) for each in fitting))
        for (reference, _), content in zip(fitting, contents, strict=True):
            # A reference with a wrong size has no bytes, and another one with the same digest may.
            if isinstance(content, bytes) or reference.sha256 not in fetched:
                fetched[reference.sha256] = content
        return fetched

    async def _fetch(self, reference: BlobReference, log_id: str) -> bytes | str:
        assert self._store is not None
        try:
            return await self._store.get(log_id, reference)
        except BlobNotFoundError as error:
            return error.reason


async def fetch_blobs(
    store: BlobStore | None,
    log_id: str,
    messages: Sequence[Message],
    provider: Provider,
    maker: str | None = None,
) -> dict[str, bytes | str]:
    """The blobs that a request with the messages of one log needs. Raises `UnavailableError`."""
    fetching = Fetching(store, provider, maker)
    fetching.add(log_id, messages)
    return await fetching.fetch()


def _newest_first(sent: Sequence[tuple[BlobReference, str]]) -> dict[BlobReference, str]:
    """The last log that refers to each blob."""
    logs: dict[BlobReference, str] = {}
    for reference, log_id in reversed(sent):
        logs.setdefault(reference, log_id)
    return logs


def _encoded_bytes(reference: BlobReference) -> int:
    return (reference.size + 2) // 3 * 4
