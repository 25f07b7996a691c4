"""How an installation works, dead letters and the quarantine over HTTP, for scripts of operators.

    async with HttpOperations("http://127.0.0.1:8080") as operations:
        document = await operations.read()
        for entry in (await operations.quarantine())[0]:
            print(entry.id, entry.reason)

The verbs need the scopes of their routes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from runfold.documents.dead_letters import DeadLetterDocument, DeadLetterEntry, DeadLetterPage
from runfold.documents.operations import OperationsDocument
from runfold.documents.quarantine import QuarantineEntry, QuarantinePage
from runfold.remote.api_client import HttpVerbs, quoted, texts_of
from runfold_schemas.lists import QuarantineKind


class HttpOperations(HttpVerbs):
    """The verbs of operators over HTTP. `HttpVerbs` has the parameters. Each verb raises
    `UnavailableError` if a server that it needs does not answer.
    """

    async def read(self) -> OperationsDocument:
        """Which projectors work, how far they are behind, what is stuck or set aside, and the last
        rebuild and verify.
        """
        return OperationsDocument.model_validate_json(await self._client.call("GET", "operations"))

    async def dead_letters(
        self,
        *,
        topic: str | None = None,
        run_id: str | None = None,
        requeued: bool | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[Sequence[DeadLetterEntry], str | None]:
        """A page of the records that could not be decoded, the newest first, and the cursor of the
        next page. `requeued`: only those whose event was published again, or was not. The `limit`
        is 1,000 at most.
        """
        filters = {"topic": topic, "run_id": run_id, "requeued": requeued}
        body = await self._get("dead-letters", **filters, limit=limit, cursor=cursor)
        page = DeadLetterPage.model_validate_json(body)
        return page.dead_letters, page.next_cursor

    async def dead_letter(self, letter_id: str) -> DeadLetterDocument:
        """A dead letter with its content. Raises `DeadLetterNotFoundError`."""
        return DeadLetterDocument.model_validate_json(await self._get(_letter(letter_id)))

    async def requeue(self, letter_id: str, event: Mapping[str, Any] | None = None) -> DeadLetterEntry:
        """Publishes the event of a dead letter at the end of its run, or in its place a mended
        `event` with `type` and `data`. A repetition publishes nothing.

        Raises `DeadLetterNotFoundError`, `RunNotFoundError`, `RunEndedError`, and
        `InvalidEventError` if the event cannot be published.
        """
        request = to_json({} if event is None else {"event": event})
        body = await self._client.call("POST", f"{_letter(letter_id)}/requeue", json=request)
        return DeadLetterEntry.model_validate_json(body)

    async def quarantine(
        self, kind: QuarantineKind | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> tuple[Sequence[QuarantineEntry], str | None]:
        """A page of what projectors have set aside because it cannot be folded, by id, and the
        cursor of the next page. The `limit` is 1,000 at most.
        """
        body = await self._get("quarantine", kind=kind, limit=limit, cursor=cursor)
        page = QuarantinePage.model_validate_json(body)
        return page.quarantine, page.next_cursor

    async def quarantined(self, entry_id: str) -> QuarantineEntry:
        """An entry of the quarantine. Raises `NotQuarantinedError`."""
        return QuarantineEntry.model_validate_json(await self._get(_entry(entry_id)))

    async def retry(self, entry_id: str) -> QuarantineEntry:
        """Asks the projectors to fold it once more, which they do within seconds. Afterwards the
        entry is gone, or has another attempt. Raises `NotQuarantinedError`.
        """
        body = await self._client.call("POST", f"{_entry(entry_id)}/retry")
        return QuarantineEntry.model_validate_json(body)

    async def skip(self, entry_id: str, *, offset: int) -> QuarantineEntry:
        """Lets the records of the entry count for nothing, for every reader and for ever. `offset`
        is the entry's: if the entry is about other records by now, nothing is skipped. Raises
        `NotQuarantinedError`, `InvalidEventError`.
        """
        body = await self._client.call("POST", f"{_entry(entry_id)}/skip", json=to_json({"offset": offset}))
        return QuarantineEntry.model_validate_json(body)

    async def _get(self, path: str, **parameters: str | int | None) -> bytes:
        return await self._client.call("GET", path, params=texts_of(parameters))


def _letter(letter_id: str) -> str:
    return f"dead-letters/{quoted(letter_id)}"


def _entry(entry_id: str) -> str:
    return f"quarantine/{quoted(entry_id)}"
