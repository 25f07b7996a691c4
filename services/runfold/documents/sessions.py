"""Sessions as JSON: the bodies of requests and answers, and the client's reading of answers.

The bytes of an event are those of the log, in both directions, so numbers keep every digit.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from runfold.client.session import RecordedEvent, Session
from runfold.documents.fields import CreationId, Expiring
from runfold.printable import json_line
from runfold_projections.run import RunRecord
from runfold_projections.session import SessionRecord
from runfold_schemas.data import DisplayName, Labels

_CHUNK_EVENTS = 200


class CreateSession(Expiring):
    """A session to create. Without `session_id` the session gets a new id."""

    app: str
    user: str = ""
    session_id: str | None = None
    event_id: CreationId = None
    state: dict[str, Any] = Field({})
    labels: Labels = Field({})
    display_name: DisplayName | None = None


class UpdateSession(Expiring):
    """The changes of a session. Labels are merged with the labels it has. A field that is missing
    or null stays as it is.
    """

    labels: Labels | None = None
    display_name: DisplayName | None = None


class SessionDocument(BaseModel):
    """A session as it was at one moment."""

    session_id: str
    app: str
    user: str
    run_id: str = Field(description="The run whose log has the session's events.")
    status: Literal["active", "ended"]
    created_at: datetime
    updated_at: datetime = Field(
        description="The time of its last event, or of a later change of its labels, name or expiry."
    )
    expires_at: datetime | None
    display_name: str | None
    labels: dict[str, str]
    state: dict[str, Any] = Field(
        description="`app:` keys are shared by the app, `user:` keys by the user. Other keys"
        " belong to the session."
    )
    next_offset: int = Field(
        description="The session includes everything before this offset of its run's log."
    )
    last_offset: int = Field(
        description="The offset of its last event. Send it as `expected_offset` to append only"
        " if nothing was appended since."
    )

    @classmethod
    def of(cls, session: Session) -> "SessionDocument":
        record = session.record
        return SessionDocument(
            session_id=record.session_id,
            app=record.app,
            user=record.user,
            run_id=record.run_id,
            status="ended" if session.ended else "active",
            created_at=record.created_at,
            updated_at=session.updated_at,
            expires_at=record.expires_at,
            display_name=record.display_name,
            labels=record.labels,
            state=dict(session.state),
            next_offset=session.next_offset,
            last_offset=session.last_offset,
        )

    def session(self, events: Sequence[RecordedEvent] = ()) -> Session:
        """The session that the document describes. A document does not have the id of the log, and
        not the run's counts of events.
        """
        record = SessionRecord(
            session_id=self.session_id,
            app=self.app,
            user=self.user,
            run_id=self.run_id,
            log_id="",
            created_at=self.created_at,
            changed_at=self.created_at,
            labels=self.labels,
            display_name=self.display_name,
            expires_at=self.expires_at,
        )
        run = RunRecord(
            run_id=self.run_id,
            agent_id=self.app,
            session_id=self.session_id,
            status="completed" if self.status == "ended" else "running",
            started_at=self.created_at,
            updated_at=self.updated_at,
            next_offset=self.next_offset,
        )
        return Session(record, run, self.next_offset, self.last_offset, self.state, events)


class SessionEvent(BaseModel):
    """An event of a session's log."""

    offset: int
    log_time: int = Field(description="The broker's append time, in milliseconds since 1970.")
    outcome: Literal["accepted", "late"]
    event: dict[str, Any] = Field(description="The event, with the same bytes as in the log.")


class SessionWithEvents(SessionDocument):
    """The answer to `include=events`."""

    events: list[SessionEvent] = []


class SessionPage(BaseModel):
    """A page of sessions."""

    sessions: list[SessionDocument]
    next_cursor: str | None = Field(description="Null on the last page.")


class SessionEventPage(BaseModel):
    """Part of a session's events."""

    session_id: str
    run_id: str
    next_offset: int = Field(description="`first_offset` of the next page.")
    end_offset: int = Field(
        description="The end of the log as it is now: the `next_offset` of the last page."
    )
    events: list[SessionEvent]


class StateDocument(BaseModel):
    """Shared state by key. The keys have their prefixes."""

    state: dict[str, Any]


def session_json(session: Session) -> bytes:
    """The session's document, without its events."""
    document = SessionDocument.of(session)
    facts = document.model_dump_json(exclude={"state"}).encode()
    # Numbers in the state may have any size. Python's own encoder writes every digit.
    return b'%b,"state":%b}' % (facts.removesuffix(b"}"), _exact(session.state))


def state_json(state: dict[str, Any]) -> bytes:
    return b'{"state":%b}' % _exact(state)


def whole_json(session: Session) -> Iterator[bytes]:
    """The session with its events as one JSON object, in chunks."""
    yield b'%b,"events":[' % session_json(session).removesuffix(b"}")
    for begin in range(0, len(session.events), _CHUNK_EVENTS):
        chunk = session.events[begin : begin + _CHUNK_EVENTS]
        yield (b"," if begin else b"") + b",".join(map(event_json, chunk))
    yield b"]}"


def whole_lines(session: Session) -> Iterator[bytes]:
    """The session on a line, and each of its events on a line of its own."""
    yield json_line(session_json(session)) + b"\n"
    for begin in range(0, len(session.events), _CHUNK_EVENTS):
        chunk = session.events[begin : begin + _CHUNK_EVENTS]
        yield b"".join(b"%b\n" % json_line(event_json(logged)) for logged in chunk)


def event_json(logged: RecordedEvent) -> bytes:
    # `event` is the last member, so that a client can split the line without parsing the event.
    members = (logged.offset, logged.log_time, logged.outcome.encode(), logged.value)
    return b'{"offset":%d,"log_time":%d,"outcome":"%b","event":%b}' % members


def sessions_json(documents: Iterable[bytes], next_cursor: str | None) -> bytes:
    """A page of sessions. Each document was made by `session_json`."""
    return b'{"sessions":[%b],"next_cursor":%b}' % (b",".join(documents), _exact(next_cursor))


def session_of(line: bytes) -> Session:
    return SessionDocument.model_validate_json(line).session()


def session_of_lines(body: bytes) -> Session:
    """The session that `whole_lines` wrote."""
    first, *rest = body.removesuffix(b"\n").split(b"\n")
    return SessionDocument.model_validate_json(first).session([_logged(line) for line in rest])


def sessions_of(body: bytes) -> tuple[list[Session], str | None]:
    page = SessionPage.model_validate_json(body)
    return [document.session() for document in page.sessions], page.next_cursor


def _logged(line: bytes) -> RecordedEvent:
    # No member before the event can contain these bytes, and the event is the last in its line.
    head, _, value = line.partition(b',"event":')
    facts = json.loads(head + b"}")
    return RecordedEvent(facts["offset"], facts["log_time"], facts["outcome"], value.removesuffix(b"}"))


def _exact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
