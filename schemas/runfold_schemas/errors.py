"""Every error that Runfold raises on purpose.

RunfoldError
├── InvalidEventError        the event breaks the contract; sending it again cannot help
│   └── EventTooLargeError
├── InvalidIdError           an id is empty or too long for a topic name
├── InexpressibleError       a provider's request format cannot hold a part of the ledger
├── BudgetExceededError      a ledger cannot be fitted to its budget
├── UndecodableError         bytes on a topic are not an event
├── RunNotFoundError
├── RunConflictError         the run belongs to another agent or session
├── RunEndedError            the run has ended and the event is not marked late
├── BlobNotFoundError        the blob store does not have the bytes
├── SessionNotFoundError
├── SessionConflictError     the session id is taken
├── SessionEndedError        the session has ended; no event can be appended
├── BankNotFoundError
├── BankConflictError        the bank id is taken
├── BankNotEmptyError        the bank still has memories; only a forced delete removes it
├── MemoryNotFoundError
├── MemoryConflictError      the memory id is taken
├── MemoryChangedError       other writers changed the memory during every attempt
├── RevisionNotFoundError
├── NoModelError             the call needs a language model, and none is configured
├── GenerationFailedError    the language model refused, or its answer cannot be used
├── RejectedError            the log refused the event (a lost `expected_offset`, a lifecycle
│                            change after the end)
├── QuarantinedError         a run or a key cannot be folded; an operator has to act
├── NotQuarantinedError
├── DeadLetterNotFoundError
├── NotYetVisibleError       a read waited for an offset until its deadline
├── UndecidedError           a memory's change is durable, but its outcome is not readable yet
├── KeyNotFoundError         there is no such API key
├── TenantNotFoundError      there is no such tenant, or somebody drops it
├── UnauthenticatedError     the request has no valid API key or token
├── ForbiddenError           the API key or the token may not do this
│   ├── ScopeMissingError    it lacks a scope
│   └── OutsideLimitsError   it is limited to other agents or users
├── QuotaExceededError       the tenant has used up a quota; retry later
├── UnavailableError         Kafka or MongoDB does not answer; retry
├── DamagedError             MongoDB has a document that cannot be used; a command mends it
├── ArchiveDamagedError      the archive lacks records of a run, or they have changed
└── ConfigurationError       a broker or a setting does not meet a requirement of Runfold
"""

from typing import ClassVar, Final

_REASON_MAX: Final = 1000


class RunfoldError(Exception):
    """The root of the tree above. `retriable` says whether the same call may succeed later."""

    retriable: ClassVar[bool] = False


class InvalidEventError(RunfoldError):
    """An event that breaks the contract, so no reader would accept it.

    `field` is the dotted path of the wrong field, "" if the event as a whole is wrong. `index` is
    the position of the event in its batch, counted from 0, or None outside a batch.
    """

    def __init__(self, message: str, *, field: str = "", index: int | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.index = index

    def __str__(self) -> str:
        message = super().__str__()
        return message if self.index is None else f"[{self.index}]: {message}"


class EventTooLargeError(InvalidEventError):
    """An event or a batch above the topic's `max.message.bytes`. `size` and `limit` are bytes.
    `events` of a batch have this size; 1: the event itself is too large.
    """

    def __init__(self, *, size: int, limit: int, events: int = 1) -> None:
        if events > 1:
            cause = f"the first {events:,} events of the batch have {size:,} bytes with their envelopes"
            cure = "publish fewer events in one batch"
        else:
            cause = f"the record has {size:,} bytes"
            cure = "configure a blob store for images and other bytes, or keep large content elsewhere and"
            cure += " publish a reference"
        super().__init__(f"{cause}, the limit is {limit:,}: {cure}")
        self.size = size
        self.limit = limit


class InvalidIdError(RunfoldError):
    """An id that cannot be part of a topic name. `name` is the kind of id, `value` the id."""

    def __init__(self, message: str, *, name: str, value: str) -> None:
        super().__init__(message)
        self.name = name
        self.value = value


class InexpressibleError(RunfoldError):
    """A part of the ledger that `provider`'s request format cannot hold.

    `message_index` and `part_index` count from 0. Encoding with `lossy="drop"` omits such parts
    and lists them in the request's `dropped`.
    """

    def __init__(self, provider: str, reason: str, *, message_index: int, part_index: int) -> None:
        super().__init__(
            f"{provider} cannot express part {part_index} of message {message_index}: {reason};"
            ' lossy="drop" omits the part (on the command line: --lossy)'
        )
        self.provider = provider
        self.reason = reason
        self.message_index = message_index
        self.part_index = part_index


class BudgetExceededError(RunfoldError):
    """A ledger that cannot be fitted to its budget: `tokens` are those of the instructions, the
    summary and the last messages, which are always part of a request.
    """

    def __init__(self, *, tokens: int, budget: int, counted_by: str) -> None:
        super().__init__(
            f"the instructions and the last messages have {tokens:,} tokens by {counted_by},"
            f" the budget has {budget:,}"
        )
        self.tokens = tokens
        self.budget = budget
        self.counted_by = counted_by


class UndecodableError(RunfoldError):
    """Bytes that are not an event of this contract. `reason` fits into one line of a header.

    The reason may quote the bytes. It is stored in a page beside them, so it is cut at 1,000
    characters. `runfold verify` compares stored reasons, so their texts stay the same.
    """

    def __init__(self, reason: str) -> None:
        self.reason = " ".join(reason[:_REASON_MAX].split())
        super().__init__(self.reason)


class RunNotFoundError(RunfoldError):
    """No run has this id."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id!r} does not exist: open it first")
        self.run_id = run_id


class RunConflictError(RunfoldError):
    """The run id is taken by another agent or session, which have no names here if the caller may
    not know them.
    """

    def __init__(self, run_id: str, *, agent_id: str = "", session_id: str | None = None) -> None:
        owner = f"agent {agent_id!r}" if agent_id else "another agent or session"
        owner += f" in session {session_id!r}" if session_id else ""
        super().__init__(f"run {run_id!r} already belongs to {owner}: choose another run_id")
        self.run_id = run_id
        self.agent_id = agent_id
        self.session_id = session_id


class RunEndedError(RunfoldError):
    """The run has ended, and the event is not marked late."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id!r} has ended: publish with late=true to add the event anyway")
        self.run_id = run_id


class ForbiddenError(RunfoldError):
    """The principal may not do this. The message says what is missing."""


class ScopeMissingError(ForbiddenError):
    """The API key or the token of the request lacks a scope."""

    def __init__(self, message: str, *, missing_scope: str) -> None:
        super().__init__(message)
        self.missing_scope = missing_scope


class OutsideLimitsError(ForbiddenError):
    """The API key or the token of the request is limited to other agents or users. `limit` is
    `agents` or `users`. `value` is the agent or user that is missing; if it is empty, the request
    is about all of them.
    """

    def __init__(self, message: str, *, limit: str, value: str = "") -> None:
        super().__init__(message)
        self.limit = limit
        self.value = value


class BlobNotFoundError(RunfoldError):
    """The blob store does not have the bytes with this SHA-256 digest."""

    def __init__(self, sha256: str, *, reason: str) -> None:
        super().__init__(f"there is no blob {sha256!r}: {reason}")
        self.sha256 = sha256
        self.reason = reason


class SessionNotFoundError(RunfoldError):
    """No session has this id."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id!r} does not exist: create it first")
        self.session_id = session_id


class SessionConflictError(RunfoldError):
    """The session id is taken, by an agent `framework` if another one is refused for that."""

    def __init__(self, session_id: str, *, framework: str = "") -> None:
        use = f"has events of the framework {framework!r}" if framework else "exists already"
        super().__init__(f"session {session_id!r} {use}: choose another id, or delete it first")
        self.session_id = session_id
        self.framework = framework


class SessionEndedError(RunfoldError):
    """The session has ended, so no event can be appended to it."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id!r} has ended: continue in a new session")
        self.session_id = session_id


class BankNotFoundError(RunfoldError):
    """No bank has this id."""

    def __init__(self, bank_id: str) -> None:
        super().__init__(f"bank {bank_id!r} does not exist: create it first")
        self.bank_id = bank_id


class BankConflictError(RunfoldError):
    """The bank id is taken."""

    def __init__(self, bank_id: str) -> None:
        super().__init__(f"bank {bank_id!r} exists already: choose another id")
        self.bank_id = bank_id


class BankNotEmptyError(RunfoldError):
    """The bank still has memories, and the delete was not forced."""

    def __init__(self, bank_id: str) -> None:
        super().__init__(
            f"bank {bank_id!r} is not empty: delete its memories first, or delete the bank with force=true"
        )
        self.bank_id = bank_id


class MemoryNotFoundError(RunfoldError):
    """The bank has no memory of this id: none was created, or it was deleted or has expired."""

    def __init__(self, bank_id: str, memory_id: str) -> None:
        super().__init__(
            f"memory {memory_id!r} of bank {bank_id!r} does not exist, or was deleted or has expired:"
            " create it, or roll it back within 48 hours of its deletion"
        )
        self.bank_id, self.memory_id = bank_id, memory_id


class MemoryConflictError(RunfoldError):
    """The bank already has a memory of this id."""

    def __init__(self, bank_id: str, memory_id: str) -> None:
        super().__init__(
            f"memory {memory_id!r} of bank {bank_id!r} exists already: choose another id, or update it"
        )
        self.bank_id, self.memory_id = bank_id, memory_id


class MemoryChangedError(RunfoldError):
    """Other writers changed the memory during every attempt to change it."""

    retriable = True

    def __init__(self, bank_id: str, memory_id: str) -> None:
        super().__init__(
            f"other writers changed memory {memory_id!r} of bank {bank_id!r} during every attempt: try again"
        )
        self.bank_id, self.memory_id = bank_id, memory_id


class RevisionNotFoundError(RunfoldError):
    """The memory has no revision of this id, or the revision has expired."""

    def __init__(self, bank_id: str, memory_id: str, revision_id: str) -> None:
        super().__init__(
            f"memory {memory_id!r} of bank {bank_id!r} has no revision {revision_id!r}, or the revision has"
            " expired (revisions of a deleted memory expire after 48 hours): list the memory's revisions"
        )
        self.bank_id, self.memory_id, self.revision_id = bank_id, memory_id, revision_id


class NoModelError(RunfoldError):
    """Generating memories from conversations needs a language model, and none is configured."""

    def __init__(self) -> None:
        super().__init__(
            "generating memories from conversations needs a language model, and none is configured: set"
            " RUNFOLD_GENERATION_MODEL (for example openai:gpt-5-mini) and the variable of the provider's"
            " API key"
        )


class GenerationFailedError(RunfoldError):
    """The language model refused or gave an answer that cannot be used. Asking again gives the
    same.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"no memories were generated: {reason}")
        self.reason = reason


class RejectedError(RunfoldError):
    """The event is in the log at `offset` and has no effect there."""

    def __init__(self, run_id: str, *, offset: int, reason: str) -> None:
        super().__init__(f"run {run_id!r} rejected the event at offset {offset}: {reason}")
        self.run_id, self.offset, self.reason = run_id, offset, reason


class QuarantinedError(RunfoldError):
    """A run, or a key of a shared topic, cannot be folded beyond `offset`. `entry_id` is its id in
    the quarantine. Waiting does not help: an operator has to retry or to skip the records.
    """

    def __init__(self, entry_id: str, *, reason: str, offset: int | None = None) -> None:
        place = "" if offset is None else f" from offset {offset} on"
        super().__init__(
            f"{entry_id} cannot be read{place} ({reason}): an operator has to act, see `runfold quarantine"
            f" show {entry_id}`"
        )
        self.entry_id = entry_id
        self.offset = offset
        self.reason = reason


class DeadLetterNotFoundError(RunfoldError):
    """There is no dead letter of this id."""

    def __init__(self, letter_id: str) -> None:
        super().__init__(f"there is no dead letter {letter_id}: `runfold dead-letters list` lists them")
        self.letter_id = letter_id


class NotQuarantinedError(RunfoldError):
    """Nothing is in quarantine under this id."""

    def __init__(self, entry_id: str) -> None:
        super().__init__(f"{entry_id} is not in quarantine: `runfold quarantine ls` lists what is")
        self.entry_id = entry_id


class NotYetVisibleError(RunfoldError):
    """Neither the projections nor the log reached `min_offset` within `timeout_seconds`."""

    retriable = True

    def __init__(self, run_id: str, *, min_offset: int, timeout_seconds: float) -> None:
        super().__init__(
            f"run {run_id!r} did not reach offset {min_offset} within {timeout_seconds} s: retry, and check"
            " the offset against the answer of the publish"
        )
        self.run_id, self.min_offset, self.timeout_seconds = run_id, min_offset, timeout_seconds


class UndecidedError(RunfoldError):
    """A change of a memory is durable, but its outcome was not readable in time. Repeating the
    call would make the change twice.
    """

    def __init__(self, memory_id: str, *, reason: str) -> None:
        super().__init__(
            f"the change of memory {memory_id!r} is stored, but its outcome is not readable yet ({reason}):"
            " read the memory later, and do not repeat the change"
        )
        self.memory_id = memory_id
        self.reason = reason


class KeyNotFoundError(RunfoldError):
    """No API key has this id, or it was revoked."""

    def __init__(self, key_id: str, *, reason: str = "does not exist: list the keys") -> None:
        super().__init__(f"the API key {key_id!r} {reason}")
        self.key_id = key_id


class TenantNotFoundError(RunfoldError):
    """No tenant has this name, or it is being dropped."""

    def __init__(self, tenant: str, *, reason: str = "does not exist: add it first") -> None:
        super().__init__(f"the tenant {tenant!r} {reason}")
        self.tenant = tenant


class UnauthenticatedError(RunfoldError):
    """The request has no API key and no token, or one that is not valid."""


class QuotaExceededError(RunfoldError):
    """The tenant has used up a quota until then; "": until a run has ended."""

    retriable = True

    def __init__(self, message: str, *, quota: str, limit: int, retry_after_seconds: int, until: str) -> None:
        super().__init__(message)
        self.quota, self.limit = quota, limit
        self.retry_after_seconds, self.until = retry_after_seconds, until


class UnavailableError(RunfoldError):
    """A server does not answer. `server` names it, for example "Kafka" or "MongoDB"."""

    retriable = True

    def __init__(self, server: str, *, reason: str) -> None:
        super().__init__(f"{server} is not available ({reason}): retry")
        self.server = server
        self.reason = reason


class DamagedError(RunfoldError):
    """MongoDB has a document that cannot be used, for example because its checksum is wrong. `cure`
    is the command that makes the document again from the log.
    """

    def __init__(self, stored: str, *, reason: str, cure: str) -> None:
        super().__init__(f"MongoDB has a damaged document ({stored}: {reason}): run `{cure}`")
        self.stored = stored
        self.reason = reason
        self.cure = cure


class ConfigurationError(RunfoldError):
    """A broker, a setting or another server does not meet a requirement. The message says what to
    change.
    """
