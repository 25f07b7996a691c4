"""The corpus: responses and streams of model providers, each a file with the request that must
follow it. `README.md` beside this module says how to add a case.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from tests.builders import event
from tests.provider_types import check
from tests.providers.order_rules import assert_in_order
from tests.providers.sdk_objects import response_object, stream_objects

from runfold_projections.ledger import build_messages_from_events
from runfold_projections.providers import Encoded, encode, recorder
from runfold_schemas.codec import encode as encode_event
from runfold_schemas.codec import parse_event
from runfold_schemas.data import Data
from runfold_schemas.events import AnyEvent, ResponseRecorded, TokenUsage
from runfold_schemas.messages import PROVIDERS, Message, Provider

FOLDER: Final = Path(__file__).parent / "cases"
OPENING: Final = [{"type": "user_message", "data": {"message": "Begin."}}]

CONVERSATION: Final[dict[Provider, str]] = {
    "bedrock": "messages",
    "anthropic": "messages",
    "openai-chat": "messages",
    "openai-responses": "input",
    "gemini": "contents",
}
"""The member of a request that holds the conversation."""


class Case(BaseModel):
    """A response or a stream, and what must become of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str
    kind: str
    """The row of the table that counts this case."""
    response: dict[str, Any] | None = None
    chunks: list[Any] | None = None
    broken_off: bool = False
    """Whether the connection ends behind the last chunk."""
    maker: str | None = None
    extensions: list[str] = Field(default_factory=list)
    """Members and kinds of blocks that the maker takes and the official package does not have."""
    beta: bool = False
    """Whether the request needs what Anthropic has in beta."""
    tool_names: dict[str, str] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)
    """`EncodeOptions` of the second request."""
    as_object: bool = True
    """Whether the objects of the official package have all members of the response."""
    model: str | None = None
    """The class of the package's object, if it is not the usual one."""
    before: list[dict[str, Any]] = Field(default_factory=lambda: OPENING)
    after: list[dict[str, Any]]
    request: dict[str, Any]
    next_request: dict[str, Any] = Field(default_factory=dict)
    faults: list[str] = Field(default_factory=list)
    dropped: list[str] = Field(default_factory=list)
    usage: dict[str, Any] | None = None
    beside: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A case with its place in the corpus."""

    provider: Provider
    name: str
    case: Case

    def __str__(self) -> str:
        return f"{self.provider}/{self.name}"

    __repr__ = __str__

    def ways(self) -> Iterator[str]:
        """The forms in which the case can be recorded."""
        for form, content in (("whole", self.case.response), ("stream", self.case.chunks)):
            if content is not None:
                yield f"{form}-json"
                if self.case.as_object:
                    yield f"{form}-object"

    def record(self, way: str, *, tool_names: Mapping[str, str] | None = None) -> list[Data]:
        """The events of the response in one of the `ways`, after a request with these names."""
        recording = recorder(
            self.provider, tool_names=self.case.tool_names if tool_names is None else tool_names
        )
        if way.startswith("whole"):
            response: Any = self.case.response
            if way == "whole-object":
                response = response_object(self.provider, self.case.response, self.case.model)
            return list(recording.response(response))
        chunks = self.case.chunks or []
        if way == "stream-object":
            chunks = stream_objects(self.provider, chunks, self.case.model)
        said = [data for chunk in chunks for data in recording.feed(chunk)]
        return said + recording.blocks.end(finished=not self.case.broken_off)

    def log(self, said: Sequence[Data], message_id: str = "m-1") -> list[AnyEvent]:
        """The events of the case's run: what is before the response, the response, and what is
        after it.
        """
        return [*self.before(), *self.recorded(said, message_id), *self.after()]

    def before(self) -> list[AnyEvent]:
        said: list[AnyEvent] = []
        for number, each in enumerate(self.case.before):
            if "response" in each:
                earlier = recorder(self.provider).response(each["response"])
                said += self.recorded(earlier, f"earlier-{number}")
            else:
                said.append(published(each))
        return said

    def after(self) -> list[AnyEvent]:
        return [published(each) for each in self.case.after]

    def recorded(self, said: Iterable[Data], message_id: str = "m-1") -> list[AnyEvent]:
        maker = {"maker": self.case.maker} if self.case.maker else {}
        recorded = [event(data, message_id=message_id, provider=self.provider, **maker) for data in said]
        for each in recorded:
            encode_event(each)
        return recorded

    def ledger(self, way: str) -> list[Message]:
        return build_messages_from_events(self.log(self.record(way)))


def published(fields: dict[str, Any]) -> AnyEvent:
    """An event in the form in which HTTP takes it."""
    envelope = event(ResponseRecorded()).model_dump(mode="json", exclude={"type", "data"})
    return parse_event(envelope | fields)


@cache
def corpus() -> tuple[Found, ...]:
    """All cases, by provider and name."""
    return tuple(
        Found(provider, path.stem, _load(path))
        for provider in PROVIDERS
        for path in sorted((FOLDER / provider).glob("*.json"))
    )


def second_request(found: Found, way: str) -> Encoded:
    """The request that follows the case's response."""
    return encode(found.ledger(way), found.provider, **found.case.options)


def comparable(body: Any) -> Any:
    """The body of a request as JSON: bytes become base64, as the files have them."""
    match body:
        case dict():
            return {name: comparable(member) for name, member in body.items()}
        case list():
            return [comparable(member) for member in body]
        case bytes():
            return base64.b64encode(body).decode()
        case _:
            return body


def official(body: Any, extensions: Sequence[str]) -> Any:
    """The body without the members and the kinds of blocks that only the maker knows."""
    match body:
        case dict():
            return {
                name: official(member, extensions) for name, member in body.items() if name not in extensions
            }
        case list():
            return [official(member, extensions) for member in body if _kind(member) not in extensions]
        case _:
            return body


def assert_as_expected(found: Found, way: str) -> None:
    """Records, folds and encodes the case. Raises if anything differs from the file, or if the
    provider's package would not have the request.
    """
    case, said = found.case, found.record(way)
    encoded = encode(build_messages_from_events(found.log(said)), found.provider, **case.options)
    last = said[-1]
    assert isinstance(last, ResponseRecorded)

    assert_equal(case.request, comparable(encoded.body))
    assert_equal(case.next_request, encoded.next_request)
    assert_named(case.dropped, [fault.text for fault in encoded.dropped])
    assert_named(case.faults, last.faults)
    check(found.provider, official(encoded.body, case.extensions), beta=case.beta)
    assert_in_order(found.provider, encoded.body)
    if case.usage is not None:
        counted = [data for data in said if isinstance(data, TokenUsage)]
        assert_equal([case.usage], [data.model_dump(mode="json", exclude_unset=True) for data in counted])
    if case.beside is not None:
        beside = (last.provider_data or {}).get(found.provider, {})
        assert_equal(case.beside, {name: beside.get(name) for name in case.beside})


def assert_equal(expected: Any, found: Any) -> None:
    """Raises with the lines of JSON that differ."""
    before, after = (
        json.dumps(each, indent=1, ensure_ascii=False, sort_keys=True).splitlines()
        for each in (expected, found)
    )
    if expected != found:
        raise AssertionError("\n".join(unified_diff(before, after, "expected", "found", n=1, lineterm="")))


def assert_named(expected: Sequence[str], texts: Sequence[str]) -> None:
    """Each text contains the expected words, so that a better wording breaks no case."""
    if len(expected) != len(texts) or not all(
        words in text for words, text in zip(expected, texts, strict=True)
    ):
        raise AssertionError(f"expected {expected}, found {texts}")


def _kind(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else None


def _load(path: Path) -> Case:
    return Case.model_validate(json.loads(path.read_text(encoding="utf-8")))
