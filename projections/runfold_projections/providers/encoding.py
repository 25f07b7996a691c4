"""The shared state of encoders: the current part, legal ids and names, and the parts that cannot be
expressed.

An encoder never reorders parts. It replaces ids and names that the provider would refuse. A longer
ledger with the same beginning gets the same replacements, so a provider's prompt cache still
matches.
"""

import json
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypedDict

from runfold_projections.budget import Fitted
from runfold_projections.providers.blobs import Blobs, inline, is_foreign, refers, target_maker
from runfold_projections.providers.first_bytes import true_type
from runfold_projections.providers.image_limits import too_large
from runfold_projections.providers.legal_names import UniqueNames, exact_id, is_exact, legal, numbered
from runfold_projections.providers.media_types import MediaPartT, respelled
from runfold_projections.providers.models import rules_of
from runfold_projections.providers.server_tools import RefusedBlocks, refused_server_blocks
from runfold_projections.validation import Fault, Rule
from runfold_schemas.errors import InexpressibleError
from runfold_schemas.messages import (
    DocumentPart,
    ImagePart,
    MediaPart,
    Message,
    OpaquePart,
    Part,
    Provider,
    Role,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
)

Lossy = Literal["refuse", "drop"]
"""How to treat a part that the request format cannot hold: raise an error, or drop and list it."""


class EncodeOptions(TypedDict, total=False):
    """How a ledger becomes a request, beside its format."""

    lossy: Lossy
    """How to treat a part that the request cannot hold. By default "refuse"."""
    maker: str | None
    """The maker of the model that gets the request, for example `deepseek` or `api.groq.com`. Only
    the maker of a response gets back its thinking, its signatures and its unknown members. By
    default the maker of the last response.
    """
    model: str | None
    """The name of the model that gets the request, if its rules differ from those of others."""
    with_thinking: bool
    """Whether the request holds the thinking of earlier responses. By default True."""
    cache_marks: int
    """How many marks of the prompt cache the caller sets beside the messages, for example on tools,
    of the four that Anthropic and Bedrock take in a request. By default 0.
    """
    blobs: Blobs
    """The bytes of the blobs that the ledger refers to, by their digest, or the reason why there
    are none. `Run.ledger` and the HTTP API fetch them.
    """


class Limits(NamedTuple):
    """A provider's limits for ids of calls and names of tools."""

    id_illegal: re.Pattern[str] | None
    """Matches each character that an id must not have. None if all characters are allowed."""
    id_max: int
    name_illegal: re.Pattern[str]
    name_max: int
    ids_unique: bool
    """Whether an id is unique in a conversation (True) or in a message (False)."""
    are_exact: bool = False
    """Whether each id has exactly `id_max` letters and digits."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A ledger as a provider's request.

    `tool_names` and `tool_ids` map the names and ids in `body` to those of the ledger, if they
    differ.
    """

    body: dict[str, Any]
    """The messages of the request. The caller adds model, tools and limits."""
    dropped: list[Fault] = field(default_factory=list)
    """The parts that were omitted, and pieces of parts, for example an attachment of a result."""
    omitted: frozenset[tuple[int, int]] = frozenset()
    """The indexes of the message and the part of each part that was omitted whole."""
    restated: list[Fault] = field(default_factory=list)
    """What stands in another form, because the model takes it in no other: instructions within the
    conversation as the user's words, and words of the user behind an answer of the assistant that
    the ledger does not have.
    """
    tool_names: dict[str, str] = field(default_factory=dict)
    tool_ids: dict[str, str] = field(default_factory=dict)
    next_request: dict[str, Any] = field(default_factory=dict)
    """The members beside the messages that the request needs to continue the last response, for
    example Anthropic's `container`. `body` does not contain them.
    """
    fitted: Fitted | None = None
    """How the ledger was fitted, if a budget was given. `dropped` then counts the messages of the
    fitted ledger.
    """


class Call(NamedTuple):
    """The id and the name of a call in the request, and the call in the ledger."""

    id: str
    name: str
    part: ToolUsePart


class Encoding:
    """The state of one encoding. `messages` and `parts` iterate and track the current part."""

    def __init__(self, provider: Provider, limits: Limits, options: EncodeOptions) -> None:
        self._provider = provider
        self._limits = limits
        self._lossy = options.get("lossy", "refuse")
        self._maker = options.get("maker")
        self.with_thinking = options.get("with_thinking", True)
        self._blobs = options.get("blobs") or {}
        self.model = options.get("model")
        self.rules = rules_of(provider, self.model)
        self._messages: Sequence[Message] = ()
        # The maker of the current message, if another maker gets the request.
        self._foreign: str | None = None
        self._next_request: dict[str, Any] = {}
        self._message_index = self._part_index = 0
        self._refused = RefusedBlocks({}, frozenset())
        # The calls of the last assistant message, by their id in the ledger.
        self._calls: dict[str, list[Call]] = {}
        self._used_ids = self._new_ids()
        self._used_names = UniqueNames(limits.name_max)
        self._ids: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self.dropped: list[Fault] = []
        self._omitted: set[tuple[int, int]] = set()
        self.restated: list[Fault] = []
        self.foreign_marks = options.get("cache_marks", 0)
        self.marks = self.foreign_marks
        """The marks of the prompt cache, the caller's and those that the encoder counts."""

    def messages(self, messages: Sequence[Message]) -> Iterator[Message]:
        """The messages in their order. Instructions within the conversation become the user's words
        if the model takes none there.
        """
        if self._provider in ("anthropic", "bedrock"):
            within = self.rules.instructions_within
            self._refused = refused_server_blocks(messages, self._provider, instructions_within=within)
        maker = target_maker(self._maker, messages)
        self._messages = messages
        has_begun = False
        for index, message in enumerate(messages):
            self._message_index, self._part_index = index, 0
            self._foreign = message.maker if is_foreign(message.maker, maker) else None
            if message.role == "assistant":
                self._next_request = self._needs_of(message)
                self._calls = {}
                if not self._limits.ids_unique:
                    self._used_ids = self._new_ids()
            is_within = message.role == "system" and has_begun
            yield self.restate(message) if is_within and not self.rules.instructions_within else message
            has_begun = has_begun or message.role != "system"

    def restate(self, message: Message) -> Message:
        """The current system message as a message of the user whose texts are marked, and listed in
        `Encoded.restated`.
        """
        why = "the model takes instructions at the beginning only, so these are the user's words"
        parts: list[Part] = []
        for index, part in enumerate(message.parts):
            if isinstance(part, TextPart) and part.text.strip():
                self.restated.append(self._fault("instructions-within", why, part_index=index))
                parts.append(part.model_copy(update={"text": f"[Instructions] {part.text}"}))
            else:
                parts.append(part)
        return message.model_copy(update={"role": "user", "parts": tuple(parts)})

    def note_bridge(self) -> None:
        """Lists that the assistant answers before the current message of the user."""
        why = "the model answers results of tools before the user goes on, so an answer stands between"
        self.restated.append(self._fault("assistant-after-results", why, part_index=0))

    def parts(self, message: Message) -> Iterator[Part]:
        """The message's parts, without the data that only another maker understands."""
        refused = self._refused.rules
        for index, part in enumerate(message.parts):
            self._part_index = index
            if part.type == "thinking" and not self.with_thinking:
                self._omitted.add((self._message_index, index))
                continue
            if refused and (rule := refused.get((self._message_index, index))):
                self.leave_out("a call of the provider's tool and its result are one pair", rule=rule)
            elif self._foreign is None:
                yield from self._resolved(part)
            elif isinstance(part, ThinkingPart | OpaquePart):
                self.refuse(f"only {self._foreign} understands the {part.type} part")
            else:
                yield from self._resolved(part.model_copy(update={"provider_data": None}))

    def _resolved(self, part: Part) -> Iterator[Part]:
        """The part with the bytes of its blobs, and with media types that all providers know and
        that its bytes show. Nothing if it has no bytes, or bytes that no provider reads.
        """
        resolved = self._inlined(part) if refers(part, self._provider) else part
        if resolved is None:
            return
        resolved = respelled(resolved)
        if isinstance(resolved, MediaPart):
            yield from self._readable([resolved])
        elif isinstance(resolved, ToolResultPart) and resolved.attachments:
            yield resolved.model_copy(update={"attachments": tuple(self._readable(resolved.attachments))})
        else:
            yield resolved

    def _readable(self, media: Iterable[MediaPartT]) -> Iterator[MediaPartT]:
        """The media with their true types, without those that no provider reads."""
        for medium in media:
            shown = true_type(medium.media_type, medium.data) if medium.data else medium.media_type
            if shown is None:
                self.refuse(
                    f"the bytes of {medium.media_type} are not whole or not of that type",
                    rule="media-is-readable",
                )
                continue
            known = medium if shown == medium.media_type else medium.model_copy(update={"media_type": shown})
            why = too_large(self._provider, known, self._messages) if isinstance(known, ImagePart) else None
            if why is None:
                yield known
            else:
                self.refuse(why, rule="image-size")

    def _inlined(self, part: Part) -> Part | None:
        """The part with the bytes of its blobs. None if it has none."""
        inlined, missing = inline(part, self._blobs, self._provider)
        for reason in dict.fromkeys(missing):
            self.refuse(reason, rule="blob-missing")
        if inlined is not None:
            self.keep_part()
        return inlined

    def _needs_of(self, message: Message) -> dict[str, Any]:
        needs = (message.next_request or {}).get(self._provider)
        return needs if isinstance(needs, dict) and self._foreign is None else {}

    def refuse(self, why: str, *, rule: Rule = "inexpressible", tool_use_id: str | None = None) -> None:
        """Raises `InexpressibleError` for the current part, or lists it as dropped."""
        self.leave_out(why, rule=rule, tool_use_id=tool_use_id)
        if self._lossy == "refuse":
            raise InexpressibleError(
                self._provider, why, message_index=self._message_index, part_index=self._part_index
            )

    def leave_out(self, why: str, *, rule: Rule = "inexpressible", tool_use_id: str | None = None) -> None:
        """Lists the current part as dropped without an error, because it has no content that the
        provider would accept.
        """
        self.dropped.append(self._fault(rule, why, part_index=self._part_index, tool_use_id=tool_use_id))
        self._omitted.add((self._message_index, self._part_index))

    def keep_part(self) -> None:
        """Notes that the request has the current part, although pieces of it were refused."""
        self._omitted.discard((self._message_index, self._part_index))

    def _fault(self, rule: Rule, why: str, *, part_index: int, tool_use_id: str | None = None) -> Fault:
        return Fault(
            rule=rule,
            text=f"{self._provider}: {why}",
            message_index=self._message_index,
            part_index=part_index,
            tool_use_id=tool_use_id,
        )

    def provider_data(self, part: Part) -> dict[str, Any]:
        """The data that the part holds for this provider. Empty if there are none."""
        by_provider = getattr(part, "provider_data", None)
        data = by_provider.get(self._provider) if by_provider else None
        return data if isinstance(data, dict) else {}

    def is_refused(self, server_tool_id: str | None) -> bool:
        """Whether the request has no call of the provider's tool with this id, because the provider
        would refuse the call.
        """
        return server_tool_id in self._refused.tool_ids

    def call(self, part: ToolUsePart) -> Call:
        """The call with an id and a name that the provider accepts."""
        tool_id = self._used_ids.claim(self._legal_id(part.id))
        self._ids[tool_id] = part.id
        call = Call(tool_id, self._name(part.name), part)
        self._calls.setdefault(part.id, []).append(call)
        return call

    def match_call(self, part: ToolResultPart) -> Call | None:
        """The call that a result answers. Refuses the result and returns None if the message before
        has no such call.
        """
        calls = self._calls.get(part.tool_use_id)
        if not calls:
            self.refuse(
                f"tool_result {part.tool_use_id!r} answers no call of the message before",
                rule="result-has-call",
                tool_use_id=part.tool_use_id,
            )
            return None
        return calls.pop(0) if len(calls) > 1 else calls[0]

    def decoded(self, part: DocumentPart) -> str | None:
        """The text in a document that has its bytes. Refuses the document and returns None if its
        bytes are no text in UTF-8.
        """
        try:
            return b64decode(part.data or "").decode()
        except UnicodeDecodeError:
            self.refuse(f"a document of {part.media_type} that is not UTF-8")
            return None

    def leaves_thinking_alone(self, message: Message) -> bool:
        """Whether nothing but thinking remains of the current message after parts of it were
        dropped. No provider accepts that, so the thinking is listed as dropped too.
        """
        here = [fault for fault in self.dropped if fault.message_index == self._message_index]
        if all(fault.rule == "text-not-blank" for fault in here):
            return False
        places = ((self._message_index, index) for index in range(len(message.parts)))
        kept = [(place, message.parts[place[1]]) for place in places if place not in self._omitted]
        if not kept or not all(isinstance(part, ThinkingPart) for _, part in kept):
            return False
        why = "thinking that nothing follows in its message"
        for place, _ in kept:
            self.dropped.append(self._fault("more-than-thinking", why, part_index=place[1]))
            self._omitted.add(place)
        return True

    def finish(self, body: dict[str, Any]) -> Encoded:
        """The result of the encoding."""
        return Encoded(
            body,
            dropped=self.dropped,
            omitted=frozenset(self._omitted),
            restated=self.restated,
            tool_names={legal: name for name, legal in self._names.items() if legal != name},
            tool_ids={legal: tool_id for legal, tool_id in self._ids.items() if legal != tool_id},
            next_request=self._next_request,
        )

    def _new_ids(self) -> UniqueNames:
        limits = self._limits
        return UniqueNames(limits.id_max, variant=exact_id if limits.are_exact else numbered)

    def _legal_id(self, tool_id: str) -> str:
        limits = self._limits
        if limits.are_exact:
            return tool_id if is_exact(tool_id, limits.id_max) else exact_id(tool_id, 1, limits.id_max)
        return legal(tool_id, limits.id_illegal, limits.id_max) or "call"

    def _name(self, name: str) -> str:
        # Equal names stay equal, and different names stay different.
        if name not in self._names:
            limits = self._limits
            allowed = legal(name, limits.name_illegal, limits.name_max) or "tool"
            self._names[name] = self._used_names.claim(allowed)
        return self._names[name]


def merge_adjacent(
    messages: Iterable[tuple[Role, list[dict[str, Any]]]],
) -> list[tuple[Role, list[dict[str, Any]]]]:
    """Merges adjacent messages of the same role, for providers whose roles must alternate. Empty
    messages are omitted.
    """
    result: list[tuple[Role, list[dict[str, Any]]]] = []
    for role, blocks in messages:
        if result and result[-1][0] == role:
            result[-1][1].extend(blocks)
        elif blocks:
            result.append((role, list(blocks)))
    return result


def input_of(part: ToolUsePart) -> Any:
    """The input of a call. A call that was published without a payload has no arguments."""
    return {} if part.input is None else part.input


def text_of(content: Any) -> str:
    """A result's content as text: a string unchanged, anything else as JSON."""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
