"""Sessions as JSON: what the routes are asked and answer, and what a client reads of it.

An event keeps the very bytes that it has in the log, on the way out and on the way in, so numbers
keep every digit.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from runfold.client.session import Logged, Session
from runfold.documents.fields import CreationId, Expiring
from runfold_projections.run import RunRecord
from runfold_projections.session import SessionRecord
from runfold_schemas.data import DisplayName, Labels

_AT_A_TIME = 200


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
    """The changes of a session. Labels are merged with the labels it has. A field that is missing or
    null stays as it is.
    """

    labels: Labels | None = None
    display_name: DisplayName | None = None


class SessionDocument(BaseModel):
    """A session as it was at one moment."""

    session_id: str
    app: str
    user: str
    run_id: str = Field(description="The run whose log the session's events stand in.")
    status: Literal["active", "ended"]
    created_at: datetime
    updated_at: datetime = Field(
        description="When its last event happened, or when it was changed after that."
    )
    expires_at: datetime | None
    display_name: str | None
    labels: dict[str, str]
    state: dict[str, Any] = Field(description="`app:` and `user:` keys are shared, others are its own.")
    next_offset: int = Field(description="Everything before this offset of its run's log is in it.")
    last_offset: int = Field(
        description="Of its last event: the `expected_offset` of an event that nothing else may come before."
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

    def session(self, events: Sequence[Logged] = ()) -> Session:
        """The session that the document is of, but for what a document does not say: its log's id,
        and the run's counts.
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
    log_time: int = Field(description="When the log took it, milliseconds since 1970.")
    outcome: Literal["accepted", "late"]
    event: dict[str, Any] = Field(description="The event, byte for byte as it is in the log.")


class SessionWithEvents(SessionDocument):
    """With `include=events`."""

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
    end_offset: int = Field(description="The log's end as it is now; the last page's `next_offset`.")
    events: list[SessionEvent]


class StateDocument(BaseModel):
    """What a scope of shared state holds; its keys have their beginnings."""

    state: dict[str, Any]


def session_json(session: Session) -> bytes:
    """The session's document, without its events."""
    document = SessionDocument.of(session)
    facts = document.model_dump_json(exclude={"state"}).encode()
    # The state's numbers have any size, which Python's own encoder writes to the last digit.
    return b'%b,"state":%b}' % (facts.removesuffix(b"}"), _exact(session.state))


def state_json(state: dict[str, Any]) -> bytes:
    return b'{"state":%b}' % _exact(state)


def whole_json(session: Session) -> Iterator[bytes]:
    """The session with its events as one JSON object, in portions."""
    yield b'%b,"events":[' % session_json(session).removesuffix(b"}")
    for begin in range(0, len(session.events), _AT_A_TIME):
        portion = session.events[begin : begin + _AT_A_TIME]
        yield (b"," if begin else b"") + b",".join(map(event_json, portion))
    yield b"]}"


def whole_lines(session: Session) -> Iterator[bytes]:
    """The session on a line, and each of its events on a line of its own."""
    yield session_json(session) + b"\n"
    for begin in range(0, len(session.events), _AT_A_TIME):
        portion = session.events[begin : begin + _AT_A_TIME]
        yield b"".join(b"%b\n" % _one_line(event_json(one)) for one in portion)


def event_json(one: Logged) -> bytes:
    # Also for a client that takes events apart without parsing them: `event` is the last member.
    said = (one.offset, one.log_time, one.outcome.encode(), one.value)
    return b'{"offset":%d,"log_time":%d,"outcome":"%b","event":%b}' % said


def sessions_json(documents: Iterable[bytes], next_cursor: str | None) -> bytes:
    """A page of sessions, each as `session_json` made it."""
    return b'{"sessions":[%b],"next_cursor":%b}' % (b",".join(documents), _exact(next_cursor))


def session_of(line: bytes) -> Session:
    return SessionDocument.model_validate_json(line).session()


def session_of_lines(body: bytes) -> Session:
    """What `whole_lines` made."""
    first, *rest = body.removesuffix(b"\n").split(b"\n")
    return SessionDocument.model_validate_json(first).session([_logged(line) for line in rest])


def sessions_of(body: bytes) -> tuple[list[Session], str | None]:
    page = SessionPage.model_validate_json(body)
    return [document.session() for document in page.sessions], page.next_cursor


def _logged(line: bytes) -> Logged:
    # Nothing before the event can hold these bytes, and it is the last in its line.
    head, _, value = line.partition(b',"event":')
    facts = json.loads(head + b"}")
    return Logged(facts["offset"], facts["log_time"], facts["outcome"], value.removesuffix(b"}"))


def _one_line(text: bytes) -> bytes:
    # A producer of its own may have broken its JSON into lines. Between tokens a space means the
    # same, and inside of strings there are no breaks.
    return text.replace(b"\n", b" ") if b"\n" in text else text


def _exact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
