"""Fits a ledger to a budget of tokens. What is left out is the beginning of the conversation, in
units that providers accept alone: a message of the user, or a message of the assistant with the
results of its calls.

    instructions | summary | question that is cut | units from the cut on

Instructions before the cut stay as instructions, the newest first, up to a share of the budget.

The cut is a fold of the messages in their order. It stays where it is until the request exceeds the
budget. It then moves so far that much of the budget is free (`Budget.cut_to`). So requests between
two cuts begin with the whole request before, and prompt caches match. A longer ledger repeats the
cuts of a shorter one, because each cut depends on earlier messages only.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from runfold_projections.amendments import expand_log, offset_of
from runfold_projections.budget import Budget, Fitted
from runfold_projections.ledger import build_placed_messages
from runfold_projections.message_tokens import TokenCounter, count_message
from runfold_schemas.data import maker_key
from runfold_schemas.errors import BudgetExceededError
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import (
    Message,
    OpaquePart,
    Provider,
    TextPart,
    ThinkingPart,
    ToolResultPart,
)
from runfold_schemas.summaries import Summary

HEADING: Final = "[Summary of the conversation before]"
"""The first line of the user message that holds a summary."""

_INSTRUCTIONS_SHARE: Final = 0.25
"""The most of a budget that instructions before the cut take, because some agents give each turn
its context as a system message.
"""

SessionOffset = tuple[int, int]
"""The number of a run in its session, counted from 0, and an offset of the run's log."""


class PlacedSummary(NamedTuple):
    """A summary, the position of its event, and the position before which it covers everything."""

    position: SessionOffset
    end: SessionOffset
    text: str
    is_valid: bool
    """Whether the summary names the end of messages that its author can have seen."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages with the position of each, and the summaries of their beginnings, in the order of
    the log.
    """

    messages: list[Message] = field(default_factory=list)
    positions: list[SessionOffset] = field(default_factory=list)
    summaries: list[PlacedSummary] = field(default_factory=list)

    def add(self, messages: Sequence[Message], position: SessionOffset) -> None:
        """Adds messages with one position. A request has all or none of them."""
        self.messages.extend(messages)
        self.positions.extend([position] * len(messages))


def place_messages(
    log: Iterable[tuple[int, AnyEvent]], *, run_index: int = 0, onto: Conversation | None = None
) -> Conversation:
    """The ledger of a log of `(offset, event)` pairs with its positions. With `onto`, the messages
    follow those of earlier runs.
    """
    conversation = onto or Conversation()
    events = expand_log(list(log))
    for place, message in build_placed_messages(events):
        conversation.add([message], (run_index, offset_of(place)))
    for place, event in events:
        if isinstance(event.data, Summary):
            offset = offset_of(place)
            # No summary covers what follows it.
            end = min(event.data.end_offset, offset)
            conversation.summaries.append(
                PlacedSummary(
                    (run_index, offset), (run_index, end), event.data.text, event.data.end_offset <= offset
                )
            )
    return conversation


def fit(
    conversation: Conversation,
    budget: Budget,
    provider: Provider,
    counter: TokenCounter,
    *,
    maker: str | None = None,
) -> Fitted:
    """The messages of a request to the provider that has no more tokens than the budget. `maker` is
    that of the model, by default the maker of the last response.

    Instructions at the beginning are always kept, and so are the last message of the user and the
    last message of the assistant after it with its results. Raises `BudgetExceededError` if these
    alone exceed the budget. Later instructions are kept as far as a quarter of the budget reaches,
    the newest first. Others are in `Fitted.left_out`.
    """
    maker = maker or last_maker(conversation)
    return _Fitting(conversation, budget, provider, counter, maker=maker).run()


def last_maker(conversation: Conversation) -> str | None:
    """The maker of the last response whose maker is known."""
    return next((message.maker for message in reversed(conversation.messages) if message.maker), None)


class _Unit(NamedTuple):
    """Messages that a request has all or none of."""

    begin: int
    """The index of the first message."""
    opens: bool
    """Whether the unit is a message of the user."""
    question: int
    """The index of the user's last message before an answer."""
    repeated: tuple[int, ...]
    """The indexes of earlier messages that a request beginning with the unit has too: the question
    before an answer, and where the provider wants thinking first, the beginning of the answer.
    """


class _Fitting:
    """One fitting: the cut while the messages are read in their order."""

    def __init__(
        self,
        conversation: Conversation,
        budget: Budget,
        provider: Provider,
        counter: TokenCounter,
        *,
        maker: str | None,
    ) -> None:
        self._maker = maker
        self._messages = conversation.messages
        self._positions = conversation.positions
        self._summaries = conversation.summaries
        self._budget = budget
        self._provider = provider
        self._counter = counter
        counts = (count_message(message, provider, counter) for message in self._messages)
        self._tokens_before = list(accumulate(counts, initial=0))
        self._head = _count_instructions(self._messages)
        self._is_instruction = _find_instructions(self._messages, self._head)
        later = zip(self._is_instruction, pairwise(self._tokens_before), strict=True)
        self._instructions_before = list(
            accumulate((end - begin if each else 0 for each, (begin, end) in later), initial=0)
        )
        self._units, self._unit_of = _divide(self._messages, self._positions, self._head)
        if provider == "anthropic":
            self._units = _repeat_thinking(self._units, self._messages)
        self._begins = [self._positions[unit.begin] for unit in self._units]
        # The index from which the instructions before each unit are kept.
        limit = int(budget.tokens * _INSTRUCTIONS_SHARE)
        before = self._instructions_before
        self._kept_from = [bisect_left(before, before[unit.begin] - limit) for unit in self._units]
        # The first unit of the request, the unit with the provider's last compaction, and the
        # summary that covers most so far, with its message and tokens.
        self._cut = 0
        self._compacted = 0
        self._summary: PlacedSummary | None = None
        self._summary_message: list[Message] = []
        self._summary_tokens = 0

    def run(self) -> Fitted:
        waiting = iter(self._summaries)
        summary = next(waiting, None)
        for index in range(self._head, len(self._messages)):
            while summary is not None and summary.position < self._positions[index]:
                self._take(summary, index)
                summary = next(waiting, None)
            if self._is_compaction(self._messages[index]):
                self._compacted = self._unit_of[index - self._head]
                self._cut = max(self._cut, self._compacted)
            self._keep_budget(index + 1)
        while summary is not None:
            self._take(summary, len(self._messages))
            summary = next(waiting, None)
        self._keep_budget(len(self._messages))
        return self._result()

    def _take(self, summary: PlacedSummary, end: int) -> None:
        """Takes a summary, given the number of messages before it. The cut moves at once if
        messages are left out anyway.
        """
        taken = self._summary
        if taken is not None and (summary.is_valid, summary.end) < (taken.is_valid, taken.end):
            return
        text = f"{HEADING}\n{summary.text}"
        self._summary = summary
        self._summary_message = [Message(role="user", parts=(TextPart(text=text),))]
        self._summary_tokens = count_message(self._summary_message[0], self._provider, self._counter)
        if self._cut:
            self._cut = max(self._cut, self._covered(end))
            self._keep_budget(end)

    def _keep_budget(self, end: int) -> None:
        """Moves the cut if the first `end` messages exceed the budget."""
        if end <= self._head or self._tokens(self._cut, end) <= self._budget.tokens:
            return
        last = self._unit_of[end - 1 - self._head]
        first = min(max(self._cut + 1, self._covered(end)), last)
        target = self._budget.tokens * self._budget.cut_to
        openings = [unit for unit in range(first, last + 1) if self._units[unit].opens]
        opening = next((unit for unit in openings if self._tokens(unit, end) <= target), None)
        if opening is not None and 2 * self._tokens(opening, end) >= target:
            self._cut = opening
        elif opening is None and openings and self._tokens(openings[-1], end) <= self._budget.tokens:
            self._cut = openings[-1]
        else:
            # One answer is so long that the request would have too much or too little without a cut
            # within it.
            begin = openings[-1] + 1 if opening is None and openings else first
            answers = range(begin, (last if opening is None else opening) + 1)
            self._cut = next((unit for unit in answers if self._tokens(unit, end) <= target), last)

    def _tokens(self, cut: int, end: int) -> int:
        """The tokens of the first `end` messages, if the unit `cut` is the first of the request."""
        before = self._tokens_before
        if not self._units:
            return before[end]
        unit = self._units[cut]
        tokens = before[self._head] + before[end] - before[unit.begin]
        if cut:
            tokens += sum(before[index + 1] - before[index] for index in unit.repeated)
            tokens += self._kept_tokens(cut)
        return tokens + (self._summary_tokens if self._uses_summary(cut, end) else 0)

    def _kept_tokens(self, cut: int) -> int:
        """The tokens of the instructions before the unit that are kept."""
        before = self._instructions_before
        return before[self._units[cut].begin] - before[self._kept_from[cut]]

    def _uses_summary(self, cut: int, end: int) -> bool:
        return self._compacted < self._covered(end) <= cut

    def _covered(self, end: int) -> int:
        """The first unit that the summary does not cover whole."""
        if self._summary is None or end <= self._head:
            return 0
        last = self._unit_of[end - 1 - self._head]
        return min(max(bisect_right(self._begins, self._summary.end) - 1, 0), last)

    def _is_compaction(self, message: Message) -> bool:
        """Whether the provider takes a message for everything before it. A message of another maker
        is sent without its block.
        """
        if message.maker and maker_key(message.maker) != maker_key(self._maker or ""):
            return False
        return message.role == "assistant" and any(
            isinstance(part, OpaquePart) and part.provider == self._provider and _compacts(part.content)
            for part in message.parts
        )

    def _result(self) -> Fitted:
        end = len(self._messages)
        tokens = self._tokens(self._cut, end)
        keeps = tokens <= self._budget.tokens
        if self._cut and not keeps:
            tokens -= self._kept_tokens(self._cut)
        if tokens > self._budget.tokens:
            raise BudgetExceededError(
                tokens=tokens, budget=self._budget.tokens, counted_by=self._counter.name
            )
        if not self._cut:
            runs = [run for run, _ in self._positions]
            return Fitted(self._messages, tokens, self._counter.name, run_indexes=runs)
        unit = self._units[self._cut]
        uses_summary = self._uses_summary(self._cut, end)
        summary = self._summary_message if uses_summary else []
        kept = {
            index
            for index in range(self._kept_from[self._cut], unit.begin)
            if keeps and self._is_instruction[index]
        }
        before = [*range(self._head), *(index for index in sorted(kept) if index < unit.question)]
        after = [
            *sorted((*unit.repeated, *(index for index in kept if index >= unit.question))),
            *range(unit.begin, end),
        ]
        messages = [self._messages[index] for index in (*before, *after)]
        runs = [self._positions[index][0] for index in (*before, *after)]
        if uses_summary and self._summary is not None:
            messages[len(before) : len(before)] = summary
            runs.insert(len(before), self._summary.position[0])
        known = self._units[max(self._compacted, self._covered(end) if uses_summary else 0)].begin
        left_out = [self._messages[index] for index in range(known, unit.begin) if index not in kept]
        run_index, end_offset = self._begins[self._cut]
        return Fitted(
            messages,
            tokens,
            self._counter.name,
            left_out=[*summary, *left_out] if left_out else [],
            end_offset=end_offset if left_out else None,
            run_indexes=runs,
            run_index=run_index,
        )


def _count_instructions(messages: Sequence[Message]) -> int:
    """The number of system messages at the beginning."""
    others = (index for index, message in enumerate(messages) if message.role != "system")
    return next(others, len(messages))


def _find_instructions(messages: Sequence[Message], head: int) -> list[bool]:
    """Whether each message has instructions that no message before it has: neither one of those at
    the beginning nor the last system message. Runs of a session often repeat theirs.
    """
    said = list(messages[:head])
    found = [False] * head
    for message in messages[head:]:
        found.append(message.role == "system" and message not in said)
        if found[-1]:
            said = [*messages[:head], message]
    return found


def _divide(
    messages: Sequence[Message], positions: Sequence[SessionOffset], head: int
) -> tuple[list[_Unit], list[int]]:
    """The units of the messages after the head, and the unit of each message.

    A unit begins with a record of the log, because a summary covers whole records.
    """
    units: list[_Unit] = []
    unit_of: list[int] = []
    question = head
    asked: tuple[int, ...] = ()
    for index in range(head, len(messages)):
        opens = _opens(messages[index])
        is_new = not units or positions[index] > positions[units[-1].begin]
        if is_new and (not units or opens or _begins_answer(messages, index, after=units[-1])):
            units.append(_Unit(index, opens, *((index, ()) if opens else (question, asked))))
        if opens:
            question, asked = index, (index,)
        unit_of.append(len(units) - 1)
    return units, unit_of


def _repeat_thinking(units: Sequence[_Unit], messages: Sequence[Message]) -> list[_Unit]:
    """The units, where each that goes on with an answer repeats how the answer begins, if that has
    thinking in front and the unit has not. While thinking is on, Anthropic refuses a last turn
    with calls that begins otherwise.
    """
    repeating: list[_Unit] = []
    beginning: list[int] | None = None
    ends = [*(unit.begin for unit in units), len(messages)][1:]
    for unit, end in zip(units, ends, strict=True):
        answer = [index for index in range(unit.begin, end) if _is_of_answer(messages[index])]
        is_first = unit.opens or beginning is None
        if is_first:
            beginning = answer or None
        if is_first or not beginning or _thinks(messages[unit.begin]) or not _thinks(messages[beginning[0]]):
            repeating.append(unit)
        else:
            repeating.append(unit._replace(repeated=(*unit.repeated, *beginning)))
        if any(message.role == "system" for message in messages[unit.begin : end]):
            beginning = None  # an instruction ends a turn as a question does
    return repeating


def _is_of_answer(message: Message) -> bool:
    return message.role == "assistant" or (message.role == "user" and not _opens(message))


def _thinks(message: Message) -> bool:
    return bool(message.parts) and isinstance(message.parts[0], ThinkingPart)


def _begins_answer(messages: Sequence[Message], index: int, *, after: _Unit) -> bool:
    """Whether a message that opens nothing begins a unit. Results belong to the calls before them.
    Messages of the assistant without anything in between are one answer.
    """
    if messages[index].role == "user":
        return after.opens
    return messages[index].role == "assistant" and messages[index - 1].role != "assistant"


def _opens(message: Message) -> bool:
    """Whether the message is a new one of the user, and not the rest of an exchange with tools."""
    if message.role != "user":
        return False
    return not any(isinstance(part, ToolResultPart | OpaquePart) for part in message.parts)


def _compacts(content: object) -> bool:
    """Whether a provider's block stands for everything before it. A block of Anthropic without
    content is a compaction that failed.
    """
    if not isinstance(content, dict) or content.get("type") != "compaction":
        return False
    return bool(content.get("content") or content.get("encrypted_content"))
