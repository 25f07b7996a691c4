"""Every error that Runfold raises on purpose.

RunfoldError ├── InvalidEventError        the event breaks the contract; sending it again cannot
help │   └── EventTooLargeError ├── InvalidIdError           an id is empty or too long for a topic
name ├── InexpressibleError       a provider's request has no form for a part of the ledger ├──
UndecodableError         bytes on a topic are not an event ├── RunNotFoundError ├── RunConflictError
the run belongs to another agent ├── RunEndedError            the run has ended and the event was
not marked late ├── SessionNotFoundError ├── SessionConflictError     the session id is taken ├──
SessionEndedError        the session has ended: nothing is appended to it any more ├──
BankNotFoundError ├── BankConflictError        the bank's id is taken ├── BankNotEmptyError        a
bank with memories is deleted only by force ├── MemoryNotFoundError ├── MemoryConflictError      the
memory's id is taken ├── MemoryChangedError       others kept changing the memory while it was
changed here ├── RevisionNotFoundError ├── NoModelError             this needs a language model, and
none is configured ├── GenerationFailedError    the language model refused, or its answer was none
├── RejectedError            the log refused the event (an `expected_offset` that lost, a lifecycle
change after the end) ├── NotYetVisibleError       a read waited for an offset and its deadline
passed ├── UnavailableError         Kafka or MongoDB does not answer; retry └── ConfigurationError
a broker or a setting is not what the design relies on
"""

from typing import ClassVar, Final

_REASON_MAX: Final = 1000


class RunfoldError(Exception):
    """The root of the tree above. `retriable` says whether the same call may succeed later."""

    retriable: ClassVar[bool] = False


class InvalidEventError(RunfoldError):
    """An event that no reader would accept. `field` is the dotted path to what is wrong, "" for the
    whole, and `index` the event's place in its batch.
    """

    def __init__(self, message: str, *, field: str = "", index: int | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.index = index

    def __str__(self) -> str:
        message = super().__str__()
        return message if self.index is None else f"[{self.index}]: {message}"


class EventTooLargeError(InvalidEventError):
    """An event or a batch that the topic would refuse. Sizes are bytes."""

    def __init__(self, *, size: int, limit: int) -> None:
        super().__init__(
            f"the record is {size:,} bytes long, the limit is {limit:,}: keep large content elsewhere and publish a reference"
        )
        self.size = size
        self.limit = limit


class InvalidIdError(RunfoldError):
    """An id that cannot name a topic. `name` is the kind of id, `value` the id itself."""

    def __init__(self, message: str, *, name: str, value: str) -> None:
        super().__init__(message)
        self.name = name
        self.value = value


class InexpressibleError(RunfoldError):
    """A part that `provider` cannot be told. Encoding with `lossy="drop"` leaves it out and says
    so.
    """

    def __init__(self, provider: str, reason: str, *, message_index: int, part_index: int) -> None:
        super().__init__(f"{provider} cannot express part {part_index} of message {message_index}: {reason}")
        self.provider = provider
        self.reason = reason
        self.message_index = message_index
        self.part_index = part_index


class UndecodableError(RunfoldError):
    """Bytes that are not an event of this contract. `reason` is one line, for the dead letter's
    header.

    It may quote the bytes, which may be long; it is kept in a page beside them, so it is cut.
    """

    def __init__(self, reason: str) -> None:
        self.reason = " ".join(reason[:_REASON_MAX].split())
        super().__init__(self.reason)


class RunNotFoundError(RunfoldError):
    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id!r} does not exist: open it first")
        self.run_id = run_id


class RunConflictError(RunfoldError):
    """The run id is taken by another agent or session."""

    def __init__(self, run_id: str, *, agent_id: str, session_id: str | None) -> None:
        owner = f"agent {agent_id!r}" + (f" in session {session_id!r}" if session_id else "")
        super().__init__(f"run {run_id!r} already belongs to {owner}: choose another run_id")
        self.run_id = run_id
        self.agent_id = agent_id
        self.session_id = session_id


class RunEndedError(RunfoldError):
    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id!r} has ended: mark the event late if it belongs to it all the same")
        self.run_id = run_id


class SessionNotFoundError(RunfoldError):
    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id!r} does not exist")
        self.session_id = session_id


class SessionConflictError(RunfoldError):
    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id!r} exists already: choose another id, or delete it first")
        self.session_id = session_id


class SessionEndedError(RunfoldError):
    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id!r} has ended: go on in a new one")
        self.session_id = session_id


class BankNotFoundError(RunfoldError):
    def __init__(self, bank_id: str) -> None:
        super().__init__(f"bank {bank_id!r} does not exist")
        self.bank_id = bank_id


class BankConflictError(RunfoldError):
    def __init__(self, bank_id: str) -> None:
        super().__init__(f"bank {bank_id!r} exists already: choose another id")
        self.bank_id = bank_id


class BankNotEmptyError(RunfoldError):
    def __init__(self, bank_id: str) -> None:
        super().__init__(f"bank {bank_id!r} is not empty: delete it by force, with all that is in it")
        self.bank_id = bank_id


class MemoryNotFoundError(RunfoldError):
    def __init__(self, bank_id: str, memory_id: str) -> None:
        super().__init__(f"memory {memory_id!r} of bank {bank_id!r} does not exist, or exists no more")
        self.bank_id = bank_id
        self.memory_id = memory_id


class MemoryConflictError(RunfoldError):
    def __init__(self, bank_id: str, memory_id: str) -> None:
        super().__init__(
            f"memory {memory_id!r} of bank {bank_id!r} exists already: choose another id, or update it"
        )
        self.bank_id = bank_id
        self.memory_id = memory_id


class MemoryChangedError(RunfoldError):
    retriable = True

    def __init__(self, bank_id: str, memory_id: str) -> None:
        super().__init__(
            f"memory {memory_id!r} of bank {bank_id!r} was changed by others again and again: try again"
        )
        self.bank_id = bank_id
        self.memory_id = memory_id


class RevisionNotFoundError(RunfoldError):
    def __init__(self, bank_id: str, memory_id: str, revision_id: str) -> None:
        super().__init__(
            f"memory {memory_id!r} of bank {bank_id!r} has no revision {revision_id!r}, or has it no more: revisions expire,"
            " those of a deleted memory after 48 hours"
        )
        self.bank_id = bank_id
        self.memory_id = memory_id
        self.revision_id = revision_id


class NoModelError(RunfoldError):
    """Generating memories of conversations needs a language model."""

    def __init__(self) -> None:
        super().__init__(
            "memories are generated of conversations by a language model, and none is configured: set RUNFOLD_GENERATION_MODEL"
            " (for example openai:gpt-5-mini, with the provider's API key in its own variable)"
        )


class GenerationFailedError(RunfoldError):
    """The language model has no answer to this; asked the same again, it would have none either."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"no memories were generated: {reason}")
        self.reason = reason


class RejectedError(RunfoldError):
    """The event is in the log at `offset` and changes nothing there."""

    def __init__(self, run_id: str, *, offset: int, reason: str) -> None:
        super().__init__(f"run {run_id!r} rejected the event at offset {offset}: {reason}")
        self.run_id = run_id
        self.offset = offset
        self.reason = reason


class NotYetVisibleError(RunfoldError):
    """The projections have not reached `min_offset` within the deadline (seconds)."""

    retriable = True

    def __init__(self, run_id: str, *, min_offset: int, timeout_seconds: float) -> None:
        super().__init__(
            f"run {run_id!r} was not projected to offset {min_offset} within {timeout_seconds} s: retry, or read with source=log"
        )
        self.run_id = run_id
        self.min_offset = min_offset
        self.timeout_seconds = timeout_seconds


class UndecidedError(RunfoldError):
    """A change of a memory is durable, but what has become of it could not be read in time. Making
    it again would make it twice.
    """

    def __init__(self, memory_id: str, *, reason: str) -> None:
        super().__init__(
            f"the change of memory {memory_id!r} is recorded and will be seen, but not yet ({reason}): read it later, do not repeat it"
        )
        self.memory_id = memory_id
        self.reason = reason


class UnavailableError(RunfoldError):
    """A server that we need does not answer. `server` is "Kafka", "MongoDB" or "The projector"."""

    retriable = True

    def __init__(self, server: str, *, reason: str) -> None:
        super().__init__(f"{server} is not available ({reason}): retry")
        self.server = server
        self.reason = reason


class ConfigurationError(RunfoldError):
    """What runs is not what was designed for; the message says what to change."""
