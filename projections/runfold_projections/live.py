"""Which events of a log are live, and what stands in the place of the others.

Four things decide, of which a later one counts more than an earlier one:

- An amendment (`event_amended`): its stand-ins, or nothing, replace what an event says. The actions
  of an amended event, for example a rewind, have their effects nevertheless.
- A rewind of ADK (`rewindBeforeInvocationId`): nothing is left of the events from the first one of
  that invocation up to the rewind.
- A compaction of ADK: its summary stands where the events were that it covers. Nothing is left of
  them, except for calls of tools that are answered later.
- A transcription of speech in ADK: consecutive pieces of one speaker are one message, in the place
  of the last piece.

The rules are those by which ADK makes its requests (`_apply_rewinds`, `_process_compaction_events`,
`_get_contents`). A rewind can undo another rewind, so all are decided from the end of the log.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import Any, Final, Literal, NamedTuple

from runfold_projections.frameworks import adk_body, expand_adk, is_question_of_adk
from runfold_projections.providers.values import items, mapping, string
from runfold_schemas.data import Data
from runfold_schemas.events import AssistantMessage, EventAmended
from runfold_schemas.ledger_events import LedgerEvent
from runfold_schemas.sessions import FrameworkEvent

Replacements = Mapping[int, Sequence[Data]]
"""What stands in the place of the events at these offsets. Empty: nothing."""

_PARTS: Final = ("text", "inlineData", "fileData", "executableCode", "codeExecutionResult")
"""The members of a part that a model sees, unless the part is a thought."""

_TIME_MAX: Final = 2.0**62

_ALWAYS_SENT: Final = ("functionCall", "functionResponse", "thoughtSignature", "toolCall", "toolResponse")

_Decisions = dict[int, tuple[float, Sequence[Data]]]
"""Replacements, each with the offset of the event that decided it."""

_Speaker = Literal["user", "model"]


class _Compaction(NamedTuple):
    offset: int
    start: float
    end: float
    """The times of the first and of the last event that it covers, in seconds since 1970."""
    content: Mapping[str, Any]


@dataclass(slots=True)
class _Fact:
    """What is decided by one event of ADK."""

    offset: int
    invocation_id: str
    timestamp: float
    is_blank: bool = False
    """Whether it says nothing, for example if it only changes state."""
    is_visible: bool = True
    """Whether ADK would send it to a model."""
    rewinds_before: str = ""
    compaction: _Compaction | None = None
    speaker: _Speaker | None = None
    """Of a piece of a transcription."""
    text: str = ""
    calls: frozenset[str] = frozenset()
    answers: frozenset[str] = frozenset()


@dataclass(slots=True)
class LivePlanner:
    """Takes the events of a log in their order, and says what stands in the place of which."""

    _amendments: dict[int, tuple[float, EventAmended]] = field(default_factory=dict)
    """By the offset of the amended event. The last amendment of an offset counts."""
    _facts: list[_Fact] = field(default_factory=list)

    def feed(self, offset: int, event: LedgerEvent) -> None:
        """Takes the next event."""
        data = event.data
        if type(data) is FrameworkEvent:
            if data.framework != "openai-agents":
                self._facts.append(_fact(offset, adk_body(data)))
        elif type(data) is EventAmended:
            self._amendments[data.offset] = offset, data

    def amend(self, amendment: EventAmended) -> None:
        """Takes an amendment that is not in the log yet."""
        self._amendments[amendment.offset] = inf, amendment

    def replacements(self) -> Replacements:
        """What stands in the place of the events that are not as they were."""
        decided: _Decisions = {}
        live = list(self._after_rewinds(decided))
        live = self._after_compactions(live, decided)
        _join_transcriptions(live, decided)
        for offset, (amended_at, amendment) in self._amendments.items():
            if offset not in decided or decided[offset][0] < amended_at:
                decided[offset] = amended_at, [stand_in.decode() for stand_in in amendment.stand_ins]
        return {offset: replacement for offset, (_, replacement) in decided.items()}

    def _after_rewinds(self, decided: _Decisions) -> Iterator[_Fact]:
        first_of: dict[str, int] = {}
        for index, fact in enumerate(self._facts):
            if fact.invocation_id:
                first_of.setdefault(fact.invocation_id, index)
        live: list[_Fact] = []
        index = len(self._facts) - 1
        while index >= 0:
            fact = self._facts[index]
            if not fact.rewinds_before:
                live.append(fact)
                index -= 1
                continue
            first = min(first_of.get(fact.rewinds_before, index), index)
            for undone in self._facts[first : index + 1]:
                decided[undone.offset] = fact.offset, ()
            index = first - 1
        return reversed(live)

    def _after_compactions(self, live: list[_Fact], decided: _Decisions) -> list[_Fact]:
        compactions = [fact.compaction for fact in live if fact.compaction is not None]
        if not compactions:
            return live
        kept = _without_contained(compactions)
        covered = _Covered(kept)
        answered_later = _calls_answered_later(live, covered)
        left: list[_Fact] = []
        for fact in live:
            by = covered.by(fact.timestamp)
            if fact.compaction is not None:
                decided[fact.offset] = fact.offset, ()
            elif by is not None and not answered_later & (fact.calls | fact.answers):
                decided[fact.offset] = by.offset, ()
                continue
            left.append(fact)
        places = _Places(self._facts, left, decided, covered)
        for each in kept:
            place = places.before(each.end)
            decided_at, before = decided.get(place, (each.offset, ()))
            summary = expand_adk({"author": "model", "content": each.content})
            decided[place] = max(decided_at, each.offset), _numbered([*before, *summary])
        return left


def _numbered(summaries: Sequence[Data]) -> list[Data]:
    """Texts with different indexes, because texts of one event and index are one text."""
    return [
        data.model_copy(update={"content_index": index}) if isinstance(data, AssistantMessage) else data
        for index, data in enumerate(summaries)
    ]


def _without_contained(compactions: Sequence[_Compaction]) -> list[_Compaction]:
    """Those whose range is in no other one's, with ascending starts and ends. Of equal ranges, the
    last one stays.
    """
    kept: list[_Compaction] = []
    end = -inf
    for each in sorted(compactions, key=lambda each: (each.start, -each.end, -each.offset)):
        if each.end > end:
            kept.append(each)
            end = each.end
    return kept


class _Covered:
    """The times that compactions cover."""

    def __init__(self, compactions: Sequence[_Compaction]) -> None:
        """`compactions` have ascending starts and ends."""
        self._compactions = compactions
        self._starts = [each.start for each in compactions]
        self._ends = [each.end for each in compactions]

    def by(self, timestamp: float) -> _Compaction | None:
        """The last of the compactions that cover this time."""
        begun = bisect_right(self._starts, timestamp)
        return self._compactions[begun - 1] if bisect_left(self._ends, timestamp) < begun else None


class _Places:
    """The places of events of which nothing is left, for summaries."""

    def __init__(
        self, facts: Sequence[_Fact], left: Sequence[_Fact], decided: _Decisions, covered: _Covered
    ) -> None:
        self._free = [fact.offset for fact in facts if fact.offset in decided or fact.is_blank]
        said = [fact for fact in left if fact.compaction is None and not fact.is_blank]
        self._said = [fact.offset for fact in said]
        # A summary stands before the calls that stay although it covers them.
        times = (inf if covered.by(fact.timestamp) else fact.timestamp for fact in said)
        self._newest = list(accumulate(times, max))
        """For each of them, the latest time up to there."""

    def before(self, timestamp: float) -> int:
        """The last free place before all that was said after this time."""
        later = bisect_right(self._newest, timestamp)
        end = self._said[later] if later < len(self._said) else inf
        return self._free[max(bisect_left(self._free, end) - 1, 0)]


def _calls_answered_later(live: Sequence[_Fact], covered: _Covered) -> frozenset[str]:
    """The calls that stay although a compaction covers them, because no compaction covers an answer
    to one of the calls of their event.
    """
    answered = frozenset[str]().union(
        *(fact.answers for fact in live if fact.answers and not covered.by(fact.timestamp))
    )
    return frozenset[str]().union(*(fact.calls for fact in live if fact.calls & answered))


def _join_transcriptions(live: Sequence[_Fact], decided: _Decisions) -> None:
    pieces: list[_Fact] = []
    for fact in [*(fact for fact in live if fact.is_visible), None]:
        if pieces and (fact is None or fact.speaker != pieces[-1].speaker):
            last, text = pieces[-1], "".join(piece.text for piece in pieces)
            content = {"role": last.speaker, "parts": [{"text": text}]}
            decided |= {piece.offset: (last.offset, ()) for piece in pieces}
            decided[last.offset] = last.offset, expand_adk({"author": last.speaker, "content": content})
            pieces = []
        if fact is not None and fact.speaker is not None:
            pieces.append(fact)


def _fact(offset: int, body: Mapping[str, Any]) -> _Fact:
    actions, content = mapping(body.get("actions")), mapping(body.get("content"))
    parts = [part for part in items(content.get("parts")) if isinstance(part, dict)]
    fact = _Fact(
        offset,
        string(body.get("invocationId")),
        _time(body.get("timestamp")),
        rewinds_before=string(actions.get("rewindBeforeInvocationId")),
        compaction=_compaction(offset, mapping(actions.get("compaction"))),
        calls=_ids(parts, "functionCall"),
        answers=_ids(parts, "functionResponse"),
    )
    if body.get("content") is None:
        fact.speaker, fact.text = _speech(body)
        fact.is_blank = fact.speaker is None
    fact.is_visible = not body.get("partial") and (
        fact.compaction is not None
        or any(body.get(name) for name in ("inputTranscription", "outputTranscription"))
        or (any(map(_is_sent, parts)) and not any(map(is_question_of_adk, parts)))
    )
    return fact


def _speech(body: Mapping[str, Any]) -> tuple[_Speaker | None, str]:
    if text := string(mapping(body.get("inputTranscription")).get("text")):
        return "user", text
    if text := string(mapping(body.get("outputTranscription")).get("text")):
        return "model", text
    return None, ""


def _is_sent(part: Mapping[str, Any]) -> bool:
    if any(part.get(name) for name in _ALWAYS_SENT):
        return True
    return not part.get("thought") and any(part.get(name) for name in _PARTS)


def _compaction(offset: int, body: Mapping[str, Any]) -> _Compaction | None:
    start, end = (_time(body.get(name)) for name in ("startTimestamp", "endTimestamp"))
    content = mapping(body.get("compactedContent"))
    return _Compaction(offset, start, end, content) if content and max(start, end) < inf else None


def _time(value: Any) -> float:
    """Seconds since 1970. Infinity if it is no time, which no compaction covers."""
    return float(value) if isinstance(value, int | float) and abs(value) < _TIME_MAX else inf


def _ids(parts: Iterable[Mapping[str, Any]], kind: str) -> frozenset[str]:
    return frozenset(id_ for part in parts if (id_ := string(mapping(part.get(kind)).get("id"))))
