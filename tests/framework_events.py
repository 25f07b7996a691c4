"""Events of agent frameworks for tests, as the frameworks write them."""

from base64 import b64encode
from typing import Any

from google.adk.events import Event
from google.genai import types
from tests.builders import events
from tests.media import png

from runfold_projections.ledger import build_messages_from_events
from runfold_projections.repair import repair
from runfold_schemas.data import Data
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import Message
from runfold_schemas.sessions import FrameworkEvent

PICTURE = png(b"\xff\xfe\xfb" * 3)
PNG = b64encode(PICTURE).decode()
"""With bytes that base64 for URLs writes otherwise, as ADK does."""


def adk(*parts: types.Part, author: str = "agent", role: str | None = None, **fields: Any) -> FrameworkEvent:
    """An event as ADK writes it."""
    role = role or ("user" if author == "user" else "model")
    content = types.Content(role=role, parts=list(parts))
    written = Event(author=author, invocation_id="e-1", content=content, **fields)
    return adk_body(written.model_dump(mode="json", by_alias=True, exclude_none=True))


def adk_body(body: dict[str, Any]) -> FrameworkEvent:
    return FrameworkEvent(framework="adk", body=body)


def vertex(adk_event: FrameworkEvent, *, whole: bool = True) -> FrameworkEvent:
    """An event of Agent Engine's sessions, as ADK's service sends it; without ADK's own event if it
    is not `whole`.
    """
    raw = adk_event.body
    body = {name: raw.get(name) for name in ("author", "invocationId", "content")}
    body["eventMetadata"] = {"partial": raw.get("partial", False)}
    return FrameworkEvent(framework="vertex", body={**body, "rawEvent": raw} if whole else body)


def item(**body: Any) -> FrameworkEvent:
    return FrameworkEvent(framework="openai-agents", body=body)


def text(said_: str) -> types.Part:
    return types.Part(text=said_)


def call(tool_id: str | None, name: str = "look", **args: Any) -> types.Part:
    return types.Part(function_call=types.FunctionCall(id=tool_id, name=name, args=args))


def result(tool_id: str | None, response: Any, name: str = "look", **fields: Any) -> types.Part:
    return types.Part(
        function_response=types.FunctionResponse(id=tool_id, name=name, response=response, **fields)
    )


def mended(log: list[AnyEvent]) -> tuple[list[Data], list[Message]]:
    appended = repair(list(enumerate(log)))
    return appended, build_messages_from_events([*log, *events(*appended)])


QUESTION = adk(text("Is it raining?"), author="user")

# A response of the Responses API as the Agents SDK keeps it, and what it adds to it.
REASONED = item(type="reasoning", id="rs_1", summary=[{"type": "summary_text", "text": "Hm."}])
SPOKE = item(
    type="message",
    id="msg_1",
    role="assistant",
    status="completed",
    content=[{"type": "output_text", "text": "I look.", "annotations": []}],
)
CALLED = item(type="function_call", id="fc_1", call_id="call_1", name="look", arguments='{"at": "Lyon"}')
SEARCHED = item(type="web_search_call", id="ws_1", status="completed", action={"type": "search"})
ANSWERED = item(type="function_call_output", call_id="call_1", output="rain")
ASKED = item(role="user", content="Is it raining?")
